#include "xla_ffi/comm/processes/shared_call_site.h"

#include <map>
#include <mutex>
#include <utility>

#include "xla_ffi/comm/monitor.h"

namespace jaxmg {
namespace {

struct CallSites {
  std::mutex mutex;
  std::map<Digest, int64_t> counts;
  std::map<std::pair<Digest, int64_t>, std::weak_ptr<const SharedCallSite>> living;
};

CallSites& TheCallSites() { return Forever<CallSites>(); }

// Computes half of a digest by FNV-1a. The halves use different offsets, `hash`.
uint64_t Half(const std::string& text, uint64_t hash) {
  for (const unsigned char byte : text) hash = (hash ^ byte) * 0x100000001b3u;
  return hash ^ (hash >> 29);
}

// Called when XLA deletes the executable, on any thread.
void Remove(const SharedCallSite* call_site) noexcept {
  CallSites& call_sites = TheCallSites();
  {
    std::lock_guard<std::mutex> lock(call_sites.mutex);
    call_sites.living.erase({call_site->digest, call_site->index});
  }
  delete call_site;
}

}  // namespace

Digest DigestOf(const std::string& text) {
  return {Half(text, 0xcbf29ce484222325u), Half(text, 0x9e3779b97f4a7c15u)};
}

std::shared_ptr<const SharedCallSite> NewSharedCallSite(std::string routine, std::string text,
                                                        int ranks, std::vector<int> processes) {
  std::string all = text;
  for (int process : processes) all += "," + std::to_string(process);
  const Digest digest = DigestOf(all);
  CallSites& call_sites = TheCallSites();
  auto made = std::make_unique<SharedCallSite>(
      SharedCallSite{std::move(routine), std::move(text), ranks, std::move(processes), digest, 0});
  SharedCallSite* call_site = made.release();
  const std::shared_ptr<const SharedCallSite> shared(call_site, &Remove);
  std::lock_guard<std::mutex> lock(call_sites.mutex);
  call_site->index = call_sites.counts[digest];
  call_sites.living[{digest, call_site->index}] = shared;
  ++call_sites.counts[digest];
  return shared;
}

bool HasMadeCallSite(const Digest& digest, int64_t index) {
  CallSites& call_sites = TheCallSites();
  std::lock_guard<std::mutex> lock(call_sites.mutex);
  const auto count = call_sites.counts.find(digest);
  return count != call_sites.counts.end() && index < count->second;
}

std::shared_ptr<const SharedCallSite> FindSharedCallSite(const Digest& digest, int64_t index) {
  CallSites& call_sites = TheCallSites();
  std::lock_guard<std::mutex> lock(call_sites.mutex);
  const auto found = call_sites.living.find({digest, index});
  return found == call_sites.living.end() ? nullptr : found->second.lock();
}

}  // namespace jaxmg
