// Wires between this process's devices and those of others (device/wire.h): which there are, and
// the rendezvous by which both ends come to a block at one time. README.md says why it is so.
//
// A pair of devices has a wire for each direction, made in the first call that needs it and kept.
// Blocks of all calls between the two go over it one after the other, in the order in which the
// receiver takes them.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_WIRES_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_WIRES_H_

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
#include "xla_ffi/comm/processes/connection.h"
#include "xla_ffi/comm/processes/frame.h"
#include "xla_ffi/device/device.h"
#include "xla_ffi/device/wire.h"

namespace jaxmg {

class WireLink;
class WirePartner;
struct WireChannel;

// What is enqueued, and not known to be done.
struct Moving {
  WireChannel* channel;
  std::shared_ptr<Event> done;
};

// A block that is to go.
struct Parcel {
  WireLink* link;
  int from, to;  // ranks
  Device* device;
  Bytes2D block;  // of columns that lie one behind the other
  std::shared_ptr<Event> ready;
  WireChannel* channel;
};

// One direction between a device of this process and one of a partner's.
struct WireChannel {
  enum class End { kNone, kMaking, kMade, kFailed };

  WirePartner* partner = nullptr;
  bool outgoing = false;
  int here = 0, there = 0;  // the devices
  End mine = End::kNone, theirs = End::kNone;
  Status failure;
  std::atomic<bool> given_up{false};
  std::unique_ptr<Wire> wire;  // once it is made, for ever

  int64_t last = 0;                     // number of a block that went out
  std::map<int64_t, Parcel> announced;  // and not answered
  bool receiving = false;               // a rank has its turn
  int64_t accepted = 0;                 // the block to which it is about to say go
  std::set<int64_t> withdrawn;          // of what comes
};

// Another process; with the lock held.
class WirePartner {
 private:
  friend class Wires;
  enum class Offer { kNone, kMaking, kMade };

  std::shared_ptr<Connection> connection_;
  Offer mine_ = Offer::kNone;
  bool theirs_known_ = false;
  std::string my_name_, their_name_;  // empty: none
  std::string why_not_;               // why there are no wires at all
  std::string failure_;               // of the last that were not made
  bool in_use_ = false;
  bool lost_ = false;
  std::map<std::tuple<bool, int, int>, WireChannel> channels_;  // by outgoing, here, there
};

class Wires {
 public:
  // The process's only one.
  static Wires& The();

  void Use(WireSource& source) { source_ = &source; }

  // --- Before blocks pass ------------------------------------------------------------------------
  // Waits until the other has come to this too. Null where both can't make wires of the same kind:
  // `*why_not` says why.
  Status Meet(int process, const std::shared_ptr<Connection>& connection,
              Clock::time_point deadline, std::shared_ptr<WirePartner>* partner,
              std::string* why_not);
  // Begins to make those that are not there between devices of this process and of the other, in
  // both directions.
  Status Begin(const std::shared_ptr<WirePartner>& partner, const std::vector<int>& here,
               const std::vector<int>& there);
  // Waits until all of them are made on both sides, or `*failure` says why one of them never is:
  // the same on both sides.
  Status Await(int process, WirePartner& partner, const std::vector<int>& here,
               const std::vector<int>& there, Clock::time_point deadline, Status* failure);
  WireChannel* ChannelOf(WirePartner& partner, bool outgoing, int here, int there);

  // --- Blocks ------------------------------------------------------------------------------------
  // Sends it when it is ready and the receiver takes it; then tells its link.
  void Send(Parcel parcel);
  // Takes a block that was announced: says so, and waits until it has come.
  Status Receive(WireChannel& channel, int64_t number, void* data, size_t bytes);
  // Nothing of a rank's is read after this. Waits for what the other side has taken already.
  void Recall(WireLink* link, int from) noexcept;

  // For people; empty where nothing was found out.
  std::string Describe(int process);

  // --- The hub's thread --------------------------------------------------------------------------
  // Whether the frame can be right.
  bool Came(int process, const FrameHeader& header, Payload payload);
  void Lose(int process) noexcept;

 private:
  template <typename T>
  friend T& Forever();
  Wires() = default;

  // In their order: no may follow go, where that and the withdrawal have crossed.
  struct Answer {
    WireChannel* channel;
    int64_t number;
    bool taken;
  };
  std::shared_ptr<WirePartner> PartnerOf(int process);
  Status OfferOnce(WirePartner& partner);
  Status StartMaking(const std::shared_ptr<WirePartner>& partner, WireChannel* channel,
                     std::string id);
  void MakeEnd(WirePartner& partner, WireChannel& channel, std::string id) noexcept;
  Status AwaitPassing(WireChannel& channel, const Event& done);
  bool CameFor(WirePartner& partner, const std::shared_ptr<WirePartner>& shared,
               const FrameHeader& header, const std::string& body);

  // --- The courier's thread (wires_courier.cc) ---------------------------------------------------
  Status StartCourier();
  void Run() noexcept;
  using Lock = std::unique_lock<std::mutex>;
  bool TakeAnswer(Lock& lock);
  bool AnnounceReady(Lock& lock);
  void CheckAll(Lock& lock);
  Status Note(const Parcel& parcel, std::shared_ptr<Event> done);
  void Fail(const Parcel& parcel, const Status& status) noexcept;

  std::atomic<WireSource*> source_{nullptr};

  Monitor monitor_;  // of all that follows
  std::map<int, std::shared_ptr<WirePartner>> partners_;
  std::list<Parcel> waiting_;  // not announced
  std::deque<Answer> answers_;
  // Whose parcel the courier has in hand: a link and a rank.
  using Sender = std::pair<const WireLink*, int>;
  Sender busy_ = {nullptr, -1};
  int recalls_ = 0;
  bool started_ = false;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_WIRES_H_
