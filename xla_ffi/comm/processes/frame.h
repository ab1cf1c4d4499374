// Frames: what passes over a connection between two processes. A header of fixed size, then as many
// bytes as it says. Both sides are little-endian machines, which the hello sees to.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_FRAME_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_FRAME_H_

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/processes/shared_site.h"

namespace jaxmg {

inline constexpr uint32_t kWireFormat = 4;

enum class FrameType : uint32_t {
  // "jmgh": the first frame in both directions; anything else is closed. lead: the format, from and
  // to: processes, value: the sender's limit of silence in ns; a random number, and in the answer
  // the sender's proof
  kHello = 0x68676d6a,
  kPing = 1,  // value: the sender's limit of silence in ns
  kRefused,   // in the place of a hello; aux 1: not yet, to be asked again; text
  kProof,     // of who has said hello first
  // Meeting. `call` is the number under which the sender waits.
  kMeet,      // to the lead; CallName, text
  kWithdraw,  // to the lead: its limit is over
  kGo,        // from the lead; value: the call's number from now on
  kFail,      // from the lead; status
  kAskMade,   // from the lead: has the process made the program of a call? CallName
  kNotMade,   // to the lead: it has not, and waits in another call; CallName
  kFailCall,  // to all: a rank of this will not come; CallName, status
  // Of a call, whose number is `call` and whose lead is `lead`.
  kVote,  // to the lead; from: the rank; value: the number it shares, aux: whether it does; status
  kOutcome,  // from the lead; status, or the shared numbers
  kAbort,    // to all; status
  kDepart,   // to all; from: the rank, or -1: all of the process's; status
  kData,     // from, to; value: bytes of a column; the block, column after column
  kTaken,    // from, to: of the block that was taken; aux 1: after the SharedCount in `value`
  kPlaced,   // from, to; value: bytes of a column, aux: columns; SharedPlace
  kReady,    // from, to; value: bytes of a column, aux: columns; the block's number on its wire
  kDevices,  // the ordinals of the sender's devices, by rank
  // Of memory that the sender shares.
  kSegment,  // from: its number, or -1: the words; value: bytes; with a file
  kForget,   // from: its number; nobody reads it any more
  // Of wires. from, to: devices, of who sends blocks and who receives them; aux: 1 from who sends
  // them, 0 from who receives them; value: a block's number.
  kWireOffer,     // aux: whether there are any; their name, or why there are none
  kWireId,        // the wire's
  kWireMade,      // status
  kWireGo,        // the block is taken
  kWireWithdraw,  // it will not be sent, unless it is taken already
  kWireNo,        // it is not taken
};

struct FrameHeader {
  FrameType type = FrameType::kPing;
  int32_t lead = 0;  // the index of the process that gave the call its number
  int64_t call = 0;
  int32_t from = 0, to = 0;  // ranks
  int64_t value = 0;
  int32_t code = 0;  // of a status: its text is at the end of the bytes
  int32_t aux = 0;
  int64_t bytes = 0;
};
static_assert(sizeof(FrameHeader) == 48 && std::is_trivially_copyable_v<FrameHeader>);

// That a word of the sender's has come to a count (segments.h).
struct SharedCount {
  uint32_t word, count;
};
static_assert(sizeof(SharedCount) == sizeof(FrameHeader::value));

// Where a block lies in the sender's memory, and after what it is ready.
struct SharedPlace {
  int64_t offset, pitch;
  SharedCount ready;
  int32_t segment;
  int32_t spare;
};
static_assert(sizeof(SharedPlace) == 32 && std::is_trivially_copyable_v<SharedPlace>);

// A call, by a name that is the same in all processes. With group -1: in whatever group.
struct CallName {
  Digest digest;
  int64_t index, run, group;
  bool operator==(const CallName& other) const { return SameCall(other) && group == other.group; }
  bool SameCall(const CallName& other) const { return SameSite(other) && run == other.run; }
  bool SameSite(const CallName& other) const {
    return digest == other.digest && index == other.index;
  }
};
static_assert(std::is_trivially_copyable_v<CallName>);

// A status that came with `code` and `text`; of a fixed text where there is no memory for that.
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

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_FRAME_H_
