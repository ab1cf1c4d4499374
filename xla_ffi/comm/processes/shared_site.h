// SharedSite: a call of a program whose ranks are in several processes, by a name that is the same
// in all of them.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_SHARED_SITE_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_SHARED_SITE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace jaxmg {

// 128 bits of a text; equal digests are taken for equal texts.
using Digest = std::array<uint64_t, 2>;
Digest DigestOf(const std::string& text);

// XLA makes the sites of a program when it makes the executable, in the same order in every
// process. So a site is named by what it calls, and by how many such sites this process had made
// before: processes that run the same programs in the same order give equal names.
struct SharedSite {
  std::string routine;
  std::string text;  // the routine and its attributes, for messages
  int ranks;
  std::vector<int> processes;  // by group and rank: the index of its process
  Digest digest;               // of all of that
  int64_t index;               // how many sites of this digest there had been

  int groups() const { return static_cast<int>(processes.size()) / ranks; }
  int process_of(int group, int rank) const { return processes[group * ranks + rank]; }
};

// The next site of this process of such calls. `processes` has a multiple of `ranks` entries.
std::shared_ptr<const SharedSite> NewSharedSite(std::string routine, std::string text, int ranks,
                                                std::vector<int> processes);

// Whether this process has made a site of that name, be it gone since.
bool HasMadeSite(const Digest& digest, int64_t index);

// The site of that name, if this process has one; null if it has none, or none any more.
std::shared_ptr<const SharedSite> FindSharedSite(const Digest& digest, int64_t index);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_SHARED_SITE_H_
