// Communicator: the interface through which the ranks of one call exchange data.
//
// Every rank holds one Communicator and calls it from one thread. Messages between two ranks arrive
// in the order in which they were sent. A rank that fails calls Abort; from then on every call of
// every rank returns the same error. Waits for another rank have a time limit, which the creator of
// the Communicator chooses.
#ifndef JAXMG_XLA_FFI_COMM_COMMUNICATOR_H_
#define JAXMG_XLA_FFI_COMM_COMMUNICATOR_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "xla_ffi/base/status.h"
#include "xla_ffi/device/device.h"

namespace jaxmg {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Collective. Each rank passes the status of its own work; all ranks get the same result: Ok if
  // all are Ok, else the error of the lowest rank that has one. Synchronizes the hosts; does not
  // wait for devices.
  virtual Status Agree(const Status& mine) noexcept = 0;
  // Collective. Each rank passes a number and gets the numbers of all ranks, in rank order.
  // Synchronizes the hosts, as Agree does.
  virtual Status Share(int64_t mine, std::vector<int64_t>* all) = 0;

  // Enqueues a send of `block` to `peer` after the stream's work so far. Never blocks. The block
  // must not change until WaitSent.
  virtual Status Send(Stream stream, int peer, const Bytes2D& block) = 0;
  // Sends the block to every other rank.
  virtual Status SendToAll(Stream stream, const Bytes2D& block) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) JAXMG_RETURN_IF_ERROR(Send(stream, peer, block));
    }
    return Status::Ok();
  }
  // Returns the number of blocks sent to `peer` so far.
  virtual int64_t Sent(int peer) const = 0;
  // Makes the stream's later work wait until `peer` has taken the first `count` blocks sent to it.
  virtual Status WaitSent(Stream stream, int peer, int64_t count) = 0;
  // Enqueues a receive into `block`, which must have the height and the columns of the block that
  // was sent. Blocks the host until the peer has called Send.
  virtual Status Recv(Stream stream, int peer, const Bytes2D& block) = 0;

  // Receives by reference, on devices whose ranks share memory (the host): sets `block` to the
  // peer's own block, which may be read until Return. Blocks the host as Recv does.
  virtual Status Borrow(Stream stream, int peer, Bytes2D* block) = 0;
  // Releases the block last borrowed from `peer`, after the stream's work so far.
  virtual Status Return(Stream stream, int peer) = 0;

  // Fails the call: from now on every call of every rank returns this error.
  virtual void Abort(const Status& status) noexcept = 0;
  // Returns the error passed to Abort, or Ok. Any thread may call it at any time.
  virtual Status Failure() const noexcept = 0;
  // Returns whether Abort was called. Takes no lock: cheap enough for each step of an algorithm.
  virtual bool failed() const noexcept = 0;
};

// The Communicator of a call of one rank, or of a rank that works alone on behalf of the ranks of
// `outer` and fails if they fail. Has no peers.
class SoloCommunicator : public Communicator {
 public:
  explicit SoloCommunicator(const Communicator* outer = nullptr) : outer_(outer) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status Agree(const Status& mine) noexcept override { return mine; }
  Status Share(int64_t mine, std::vector<int64_t>* all) override {
    all->assign(1, mine);
    return Status::Ok();
  }
  Status Send(Stream, int, const Bytes2D&) override { return NoPeersError(); }
  int64_t Sent(int) const override { return 0; }
  Status WaitSent(Stream, int, int64_t) override { return Status::Ok(); }
  Status Recv(Stream, int, const Bytes2D&) override { return NoPeersError(); }
  Status Borrow(Stream, int, Bytes2D*) override { return NoPeersError(); }
  Status Return(Stream, int) override { return NoPeersError(); }
  void Abort(const Status&) noexcept override {}
  Status Failure() const noexcept override {
    return outer_ == nullptr ? Status::Ok() : outer_->Failure();
  }
  bool failed() const noexcept override { return outer_ != nullptr && outer_->failed(); }

 private:
  const Communicator* const outer_;

  static Status NoPeersError() {
    return Status::Fixed(Code::kInternal, "a single rank has no peers");
  }
};

// Returns the error of a rank that gives up because another rank called Abort with `failure`. An
// interrupt is returned unchanged, because no rank failed.
Status GivenUp(const Status& failure) noexcept;

// Sends `block` of rank `root` to `block` of every other rank. The root may change it only after
// WaitSent to each of them.
Status Broadcast(Communicator& comm, Stream stream, int root, const Bytes2D& block);

// Gathers `bytes` bytes at `mine` of every rank into `all` (size * bytes), in rank order, on every
// rank. The stream's later work starts after the other ranks have taken this rank's part and
// everything sent before.
Status AllGather(Communicator& comm, Device& device, Stream stream, const void* mine, void* all,
                 size_t bytes);

// Runs a step that may fail on a single rank. If it fails on this rank, aborts the call. Returns
// the status that all ranks agree on.
Status RunCollectively(Communicator& comm, const std::function<Status()>& step);

// Makes the stream's later work wait until all blocks that this rank sent have been taken.
Status WaitAllSent(Communicator& comm, Stream stream);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_COMMUNICATOR_H_
