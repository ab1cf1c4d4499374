#include "xla_ffi/handlers/options.h"

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace jaxmg {
namespace {

constexpr char kVariable[] = "JAXMG_RENDEZVOUS_TIMEOUT";
constexpr double kDefaultSeconds = 300;

std::atomic<double>& Limit() {
  static std::atomic<double> limit{kDefaultSeconds};
  return limit;
}

}  // namespace

void ReadOptions() {
  const char* text = std::getenv(kVariable);
  if (text == nullptr) return;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(seconds > 0)) {
    throw std::invalid_argument(
        std::string("the environment variable ") + kVariable +
        " must be a positive number of seconds, or inf for no limit; got '" + text + "'");
  }
  Limit() = seconds;
}

Seconds RendezvousTimeout() { return Seconds(Limit().load()); }

void SetRendezvousTimeout(Seconds limit) { Limit() = limit.count(); }

}  // namespace jaxmg
