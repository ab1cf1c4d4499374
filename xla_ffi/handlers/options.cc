#include "xla_ffi/handlers/options.h"

#include <atomic>
#include <cstdlib>

namespace jaxmg {
namespace {

constexpr double kDefaultSeconds = 300;

double FromEnvironment() {
  const char* text = std::getenv("JAXMG_RENDEZVOUS_TIMEOUT");
  if (text == nullptr) return kDefaultSeconds;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  return end != text && seconds > 0 ? seconds : kDefaultSeconds;
}

std::atomic<double>& Seconds() {
  static std::atomic<double> seconds{FromEnvironment()};
  return seconds;
}

}  // namespace

std::chrono::duration<double> RendezvousTimeout() {
  return std::chrono::duration<double>(Seconds().load());
}

void SetRendezvousTimeout(std::chrono::duration<double> limit) { Seconds() = limit.count(); }

}  // namespace jaxmg
