#include "xla_ffi/device/host/lapack.h"

#include <sched.h>

#include <algorithm>
#include <mutex>
#include <thread>

namespace jaxmg {
namespace {

std::mutex sharing_mutex;
int sharing = 0;  // number of working ranks
int setting_before = 0;
thread_local int ranks_of_call = 0;

}  // namespace

template <typename T>
Lapack<T>& HostLapack() {
  static Lapack<T> table;
  return table;
}

BlasThreads& HostBlasThreads() {
  static BlasThreads threads;
  return threads;
}

int HostCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
  return known ? CPU_COUNT(&set) : static_cast<int>(std::thread::hardware_concurrency());
}

int UnsharedBlasThreads() {
  const BlasThreads& threads = HostBlasThreads();
  if (threads.get == nullptr) return 0;
  std::lock_guard<std::mutex> lock(sharing_mutex);
  return sharing > 0 ? setting_before : threads.get();
}

BlasThreadShare::BlasThreadShare(int ranks) {
  const BlasThreads& threads = HostBlasThreads();
  if (threads.get == nullptr || threads.set == nullptr) return;
  ranks_of_call = ranks;
  std::lock_guard<std::mutex> lock(sharing_mutex);
  const int current = threads.get();
  if (sharing++ == 0) setting_before = current;
  // Several devices with a matrix each run concurrent calls of one rank.
  const int share = std::max(1, std::min(current, HostCores() / std::max(ranks, sharing)));
  if (share != current) threads.set(share);
}

BlasThreadShare::~BlasThreadShare() {
  const BlasThreads& threads = HostBlasThreads();
  if (threads.get == nullptr || threads.set == nullptr) return;
  std::lock_guard<std::mutex> lock(sharing_mutex);
  if (--sharing == 0 && threads.get() != setting_before) threads.set(setting_before);
}

BlasThreadsOfAll::BlasThreadsOfAll() {
  const BlasThreads& threads = HostBlasThreads();
  if (threads.get == nullptr || threads.set == nullptr) return;
  std::lock_guard<std::mutex> lock(sharing_mutex);
  if (sharing != ranks_of_call || threads.get() == setting_before) return;
  share_ = threads.get();
  threads.set(setting_before);
}

BlasThreadsOfAll::~BlasThreadsOfAll() {
  if (share_ == 0) return;
  std::lock_guard<std::mutex> lock(sharing_mutex);
  HostBlasThreads().set(std::min(share_, HostBlasThreads().get()));
}

#define JAXMG_INSTANTIATE(T) template Lapack<T>& HostLapack<T>();
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
