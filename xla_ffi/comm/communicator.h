// Communicator: all that passes between the ranks of one call.
//
// Every rank holds one, and calls it from one thread. Messages between two ranks arrive in the
// order in which they were sent. A failing rank calls Abort, after which every call of every rank
// returns the same error. A wait for another rank has a limit, which the maker chooses.
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

  // Every rank brings the outcome of what it did alone; all get the same one: Ok if all are, else
  // the error of the lowest rank that has one. A meeting of the hosts; devices are not waited for.
  virtual Status Agree(const Status& mine) noexcept = 0;
  // Every rank brings a number and gets all of them, in rank order. A meeting of the hosts too.
  virtual Status Share(int64_t mine, std::vector<int64_t>* all) = 0;

  // Enqueues sending `block` to `peer` after the stream's work so far. Never blocks. The block must
  // stay as it is until WaitSent.
  virtual Status Send(Stream stream, int peer, const Bytes2D& block) = 0;
  // The same to every other rank.
  virtual Status SendToAll(Stream stream, const Bytes2D& block) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) JAXMG_RETURN_IF_ERROR(Send(stream, peer, block));
    }
    return Status::Ok();
  }
  // How many blocks have been sent to `peer` so far.
  virtual int64_t Sent(int peer) const = 0;
  // The stream's later work starts after the first `count` blocks sent to `peer` have been taken.
  virtual Status WaitSent(Stream stream, int peer, int64_t count) = 0;
  // Enqueues receiving into `block`, which must have the sent block's height and columns. Blocks
  // the host until the peer's Send was called.
  virtual Status Recv(Stream stream, int peer, const Bytes2D& block) = 0;

  // Receives by reference, where ranks share their memory (the host's do): `block` becomes the
  // peer's own, to be read until Return. Blocks as Recv does.
  virtual Status Borrow(Stream stream, int peer, Bytes2D* block) = 0;
  // The block last borrowed from `peer` is not needed after the stream's work so far.
  virtual Status Return(Stream stream, int peer) = 0;

  // Gives up: all ranks' calls return this error from now on.
  virtual void Abort(const Status& status) noexcept = 0;
  // That error, once somebody has given up. Any thread, at any time.
  virtual Status Failure() const noexcept = 0;
};

// A rank that is alone: nothing passes.
class SoloCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status Agree(const Status& mine) noexcept override { return mine; }
  Status Share(int64_t mine, std::vector<int64_t>* all) override {
    all->assign(1, mine);
    return Status::Ok();
  }
  Status Send(Stream, int, const Bytes2D&) override { return Nobody(); }
  int64_t Sent(int) const override { return 0; }
  Status WaitSent(Stream, int, int64_t) override { return Status::Ok(); }
  Status Recv(Stream, int, const Bytes2D&) override { return Nobody(); }
  Status Borrow(Stream, int, Bytes2D*) override { return Nobody(); }
  Status Return(Stream, int) override { return Nobody(); }
  void Abort(const Status&) noexcept override {}
  Status Failure() const noexcept override { return Status::Ok(); }

 private:
  static Status Nobody() { return Status::Fixed(Code::kInternal, "a rank alone has no peers"); }
};

// `block` of rank `root` to the same block of every other rank. The root may
// change it only after WaitSent to each of them.
Status Broadcast(Communicator& comm, Stream stream, int root, const Bytes2D& block);

// Every rank's `mine` (bytes) to `all` (size * bytes) on every rank, in rank order. The stream's
// later work starts after the others have taken it, and everything that was sent before.
Status AllGather(Communicator& comm, Device& device, Stream stream, const void* mine, void* all,
                 size_t bytes);

// A step that may fail on one rank alone: every rank does it, gives up for all where it fails, and
// returns what all agree on.
Status Together(Communicator& comm, const std::function<Status()>& step);

// The stream's later work starts after everything this rank sent has been taken.
Status WaitAllSent(Communicator& comm, Stream stream);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_COMMUNICATOR_H_
