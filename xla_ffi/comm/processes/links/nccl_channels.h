// NcclChannels: the NCCL channels between devices of this process and devices of others
// (device/nccl_channel.h), and the protocol by which both ends enqueue a block's transfer at the
// same time. README.md explains why the protocol is needed.
//
// A pair of devices has one channel for each direction. A channel is made in the first call that
// needs it and kept. The blocks of all calls between the two devices use it one after the other, in
// the order in which the receiver accepts them.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_NCCL_CHANNELS_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_NCCL_CHANNELS_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/monitor.h"
#include "xla_ffi/comm/processes/connections/connection.h"
#include "xla_ffi/comm/processes/connections/frame.h"
#include "xla_ffi/device/device.h"
#include "xla_ffi/device/nccl_channel.h"

namespace jaxmg {

class NcclLink;
class NcclPeer;
struct NcclChannel;

// A send that was enqueued and may be incomplete.
struct EnqueuedSend {
  NcclChannel* channel;
  std::shared_ptr<Event> done;
};

// A send that has not been enqueued.
struct PendingSend {
  NcclLink* link;
  int from, to;  // ranks
  Device* device;
  Bytes2D block;  // contiguous columns
  std::shared_ptr<Event> ready;
  NcclChannel* channel;
};

// One direction between a device of this process and a device of a peer.
struct NcclChannel {
  enum class State { kNone, kMaking, kMade, kFailed };

  NcclPeer* peer = nullptr;
  bool outgoing = false;
  int here = 0, there = 0;  // the devices
  State mine = State::kNone, theirs = State::kNone;
  Status failure;
  std::atomic<bool> canceled{false};
  std::unique_ptr<ChannelEnd> end;  // set once when it is made, then kept

  int64_t last = 0;                          // the number of the last announced block
  std::map<int64_t, PendingSend> announced;  // sends that were announced and not answered
  bool receiving = false;                    // whether a rank receives a block
  int64_t accepted = 0;                      // the number of the block that it accepts
  std::set<int64_t> withdrawn;  // incoming blocks that were withdrawn before their receive
};

// Another process. Its members require the lock of the NcclChannels.
class NcclPeer {
 private:
  friend class NcclChannels;
  enum class Offer { kNone, kMaking, kMade };

  std::shared_ptr<Connection> connection_;
  Offer mine_ = Offer::kNone;
  bool theirs_known_ = false;
  std::string my_name_, their_name_;  // empty if none
  std::string why_not_;               // why no channels can be made
  std::string failure_;               // why the last attempt to make channels failed
  bool in_use_ = false;
  bool lost_ = false;
  std::map<std::tuple<bool, int, int>, NcclChannel> channels_;  // by outgoing, here, there
};

class NcclChannels {
 public:
  // Returns the process's single instance.
  static NcclChannels& Instance();

  void Use(ChannelSource& source) { source_ = &source; }

  // --- Before blocks are sent -------------------------------------------------------------------
  // Waits until the other process has made its offer. If the two can't make channels of the same
  // kind, sets `*peer` to null and `*why_not` to the reason.
  Status Negotiate(int process, const std::shared_ptr<Connection>& connection,
                   Clock::time_point deadline, std::shared_ptr<NcclPeer>* peer,
                   std::string* why_not);
  // Starts to make the missing channels, in both directions, between these devices of this process
  // and of the other.
  Status StartMakingAll(const std::shared_ptr<NcclPeer>& peer, const std::vector<int>& here,
                        const std::vector<int>& there);
  // Waits until all these channels are made on both sides. If one can't be made, sets the same
  // `*failure` on both sides.
  Status Await(int process, NcclPeer& peer, const std::vector<int>& here,
               const std::vector<int>& there, Clock::time_point deadline, Status* failure);
  NcclChannel* ChannelOf(NcclPeer& peer, bool outgoing, int here, int there);

  // --- Blocks -----------------------------------------------------------------------------------
  // Sends a block once it is ready and the receiver has accepted it; then notifies its link.
  void Send(PendingSend pending);
  // Accepts an announced block and waits until it has been received.
  Status Receive(NcclChannel& channel, int64_t number, void* data, size_t bytes);
  // Guarantees that no memory of the rank is read afterwards. Waits for the sends that the other
  // side has accepted.
  void Recall(NcclLink* link, int from) noexcept;

  // Returns a description for users; empty if nothing is known.
  std::string Describe(int process);

  // --- The hub's thread -------------------------------------------------------------------------
  // Returns false if the frame is invalid.
  bool OnFrame(int process, const FrameHeader& header, Payload payload);
  void Lose(int process) noexcept;

 private:
  template <typename T>
  friend T& Forever();
  NcclChannels() = default;

  // Answers are kept in the order of arrival: a refusal may follow kNcclGo if kNcclGo crossed the
  // withdrawal.
  struct Answer {
    NcclChannel* channel;
    int64_t number;
    bool taken;
  };
  std::shared_ptr<NcclPeer> FindOrAddPeer(int process);
  Status SendOfferOnce(NcclPeer& peer);
  Status StartMaking(const std::shared_ptr<NcclPeer>& peer, NcclChannel* channel, std::string id);
  void MakeEnd(NcclPeer& peer, NcclChannel& channel, std::string id) noexcept;
  Status AwaitEvent(NcclChannel& channel, const Event& done);
  bool OnChannelFrame(NcclPeer& peer, const std::shared_ptr<NcclPeer>& shared,
                      const FrameHeader& header, const std::string& body);

  // --- The sender thread (nccl_sender.cc) -------------------------------------------------------
  Status StartSenderThread();
  void Run() noexcept;
  using Lock = std::unique_lock<std::mutex>;
  bool TakeAnswer(Lock& lock);
  bool AnnounceReady(Lock& lock);
  void CheckAll(Lock& lock);
  Status TrackSend(const PendingSend& pending, std::shared_ptr<Event> done);
  void Fail(const PendingSend& pending, const Status& status) noexcept;

  std::atomic<ChannelSource*> source_{nullptr};

  Monitor monitor_;  // guards everything below
  std::map<int, std::shared_ptr<NcclPeer>> peers_;
  std::list<PendingSend> waiting_;  // not announced
  std::deque<Answer> answers_;
  // The link and rank whose send the sender thread is handling.
  using Sender = std::pair<const NcclLink*, int>;
  Sender busy_ = {nullptr, -1};
  int recalls_ = 0;
  bool started_ = false;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_LINKS_NCCL_CHANNELS_H_
