#include "xla_ffi/comm/processes/shared_site.h"

#include <map>
#include <mutex>
#include <utility>

#include "xla_ffi/comm/monitor.h"

namespace jaxmg {
namespace {

struct Sites {
  std::mutex mutex;
  std::map<Digest, int64_t> made;
  std::map<std::pair<Digest, int64_t>, std::weak_ptr<const SharedSite>> living;
};

Sites& TheSites() { return Forever<Sites>(); }

// FNV-1a, from an offset of its own for each half.
uint64_t Half(const std::string& text, uint64_t hash) {
  for (const unsigned char byte : text) hash = (hash ^ byte) * 0x100000001b3u;
  return hash ^ (hash >> 29);
}

// Runs where XLA deletes the executable, on whatever thread.
void Remove(const SharedSite* site) noexcept {
  Sites& sites = TheSites();
  {
    std::lock_guard<std::mutex> lock(sites.mutex);
    sites.living.erase({site->digest, site->index});
  }
  delete site;
}

}  // namespace

Digest DigestOf(const std::string& text) {
  return {Half(text, 0xcbf29ce484222325u), Half(text, 0x9e3779b97f4a7c15u)};
}

std::shared_ptr<const SharedSite> NewSharedSite(std::string routine, std::string text, int ranks,
                                                std::vector<int> processes) {
  std::string all = text;
  for (int process : processes) all += "," + std::to_string(process);
  const Digest digest = DigestOf(all);
  Sites& sites = TheSites();
  auto made = std::make_unique<SharedSite>(
      SharedSite{std::move(routine), std::move(text), ranks, std::move(processes), digest, 0});
  SharedSite* site = made.release();
  const std::shared_ptr<const SharedSite> shared(site, &Remove);
  std::lock_guard<std::mutex> lock(sites.mutex);
  site->index = sites.made[digest];
  sites.living[{digest, site->index}] = shared;
  ++sites.made[digest];
  return shared;
}

bool HasMadeSite(const Digest& digest, int64_t index) {
  Sites& sites = TheSites();
  std::lock_guard<std::mutex> lock(sites.mutex);
  const auto made = sites.made.find(digest);
  return made != sites.made.end() && index < made->second;
}

std::shared_ptr<const SharedSite> FindSharedSite(const Digest& digest, int64_t index) {
  Sites& sites = TheSites();
  std::lock_guard<std::mutex> lock(sites.mutex);
  const auto found = sites.living.find({digest, index});
  return found == sites.living.end() ? nullptr : found->second.lock();
}

}  // namespace jaxmg
