// SharedCallSite: a call in a program whose ranks are in several processes, under a name that is
// equal in all of them.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_SHARED_CALL_SITE_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_SHARED_CALL_SITE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace jaxmg {

// A 128-bit digest of a text. Equal digests are assumed to mean equal texts.
using Digest = std::array<uint64_t, 2>;
Digest DigestOf(const std::string& text);

// XLA creates the call sites of a program together with the executable, in the same order in every
// process. So a call site is identified by its text and by the number of equal call sites that the
// process created before: processes that run the same programs in the same order assign equal
// names.
struct SharedCallSite {
  std::string routine;
  std::string text;  // the routine and its attributes, for messages
  int ranks;
  std::vector<int> processes;  // by group and rank: the index of the rank's process
  Digest digest;               // of the text and the processes
  int64_t index;               // the number of earlier call sites with this digest

  int groups() const { return static_cast<int>(processes.size()) / ranks; }
  int process_of(int group, int rank) const { return processes[group * ranks + rank]; }
};

// Creates the next call site with this text in this process. The size of `processes` must be a
// multiple of `ranks`.
std::shared_ptr<const SharedCallSite> NewSharedCallSite(std::string routine, std::string text,
                                                        int ranks, std::vector<int> processes);

// Returns whether this process has ever created the call site of this name.
bool HasMadeCallSite(const Digest& digest, int64_t index);

// Returns the call site of this name; null if this process has no such site or has deleted it.
std::shared_ptr<const SharedCallSite> FindSharedCallSite(const Digest& digest, int64_t index);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_SHARED_CALL_SITE_H_
