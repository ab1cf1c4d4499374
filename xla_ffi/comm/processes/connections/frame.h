// Frames: the messages of a connection between two processes. A frame is a header of fixed size,
// followed by the number of bytes stated in the header. Both machines must be little-endian, which
// the hello frame checks.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_FRAME_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_FRAME_H_

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/processes/shared_call_site.h"

namespace jaxmg {

inline constexpr uint32_t kFrameFormat = 6;

enum class FrameType : uint32_t {
  // "jmgh": the first frame in both directions; a connection that starts with anything else is
  // closed. lead: the format version; from and to: processes; value: the sender's silence limit in
  // ns; bytes: a random number and, in the reply, the sender's proof
  kHello = 0x68676d6a,
  kPing = 1,  // value: the sender's silence limit in ns
  kRefusal,   // instead of a hello; aux 1: try again later; text
  kProof,     // the proof of the process that sent the first hello
  // Rendezvous. `call` is the sender's number of its pending call.
  kJoin,      // to the lead; CallName, text
  kWithdraw,  // to the lead: its time limit has passed
  kGo,        // from the lead; value: the number that the call has from now on
  kFail,      // from the lead; status
  kLate,      // from the lead; some processes are still missing; their names, to be printed
  // Search for processes that wait for each other (rendezvous_cycles.cc). If the frame has a
  // status, the cycle was found; value: the index of the receiver's wait in the chain.
  kAskWaits,  // from the lead, to a process that has not arrived; CallName, WaitChain, status
  kWaits,     // the answer, to the lead of a call that the process waits in; WaitChain, status
  kFailCall,  // to all: a rank of this process will not arrive; CallName, status
  // Frames of a call, identified by `call` and `lead`.
  kVote,
  kOutcome,   // from the lead; status, or the shared numbers
  kAbort,     // to all; status
  kDepart,    // to all; from: the rank, or -1 for all ranks of the process; status
  kData,      // from, to; value: bytes of a column; aux: columns; the block, by columns
  kTaken,     // from, to: of the block; aux 1: taken after the SharedCount in `value`
  kLocation,  // from, to; value: bytes of a column; aux: columns; BlockLocation
  kReady,     // from, to; value: bytes of a column, aux: columns; the block's number in its channel
  kDevices,   // the ordinals of the sender's devices, by rank
  // Frames about memory that the sender shares.
  kSegment,  // from: its number, or -1 for the words; value: bytes; with a file
  kForget,   // from: its number; the sender has released it
  // Frames about NCCL channels. from, to: the sending and the receiving device; aux: 1 if the frame
  // comes from the sending side, 0 if from the receiving side; value: the number of a block.
  kNcclOffer,     // aux: whether the source is available; its name, or the reason
  kNcclId,        // the channel's identifier
  kNcclMade,      // status
  kNcclGo,        // the receiver has accepted the block
  kNcclWithdraw,  // the block will not be sent, unless it was already accepted
  kNcclNo,        // the block was not accepted
};

struct FrameHeader {
  FrameType type = FrameType::kPing;
  int32_t lead = 0;  // the index of the process that assigned the call's number
  int64_t call = 0;
  int32_t from = 0, to = 0;  // ranks
  int64_t value = 0;
  int32_t code = 0;  // of a status; its text is at the end of the bytes
  int32_t aux = 0;
  int64_t bytes = 0;
};
static_assert(sizeof(FrameHeader) == 48 && std::is_trivially_copyable_v<FrameHeader>);

// A count in one of the sender's words (segments.h).
struct SharedCount {
  uint32_t word, count;
};
static_assert(sizeof(SharedCount) == sizeof(FrameHeader::value));

// The location of a block in the sender's memory, and the count at which it is ready.
struct BlockLocation {
  int64_t offset, pitch;
  SharedCount ready;
  int32_t segment;
  int32_t spare;
};
static_assert(sizeof(BlockLocation) == 32 && std::is_trivially_copyable_v<BlockLocation>);

// Identifies a call by a name that is the same in all processes. Group -1 means all groups.
struct CallName {
  Digest digest;
  int64_t index, run, group;
  bool operator==(const CallName& other) const { return IsSameCall(other) && group == other.group; }
  bool IsSameCall(const CallName& other) const { return IsSameCallSite(other) && run == other.run; }
  bool IsSameCallSite(const CallName& other) const {
    return digest == other.digest && index == other.index;
  }
};
static_assert(std::is_trivially_copyable_v<CallName>);

// Makes a status from a received code and text. Uses a fixed text if memory is exhausted.
inline Status StatusFrom(int32_t code, const char* text, size_t size) noexcept {
  const bool known = code > 0 && code <= static_cast<int32_t>(Code::kInternal);
  const Code as = known ? static_cast<Code>(code) : Code::kInternal;
  if (code == 0) return Status::Ok();
  try {
    return Status(as, std::string(text, size));
  } catch (...) {
    return Status::Fixed(as, "another process failed, and here is no memory for its message");
  }
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_FRAME_H_
