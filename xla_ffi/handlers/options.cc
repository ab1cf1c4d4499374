#include "xla_ffi/handlers/options.h"

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>

#include "xla_ffi/comm/processes/connections/hub.h"
#include "xla_ffi/device/tunings.h"

namespace jaxmg {
namespace {

constexpr double kDefaultSeconds = 300;

std::atomic<double>& Limit() {
  static std::atomic<double> limit{kDefaultSeconds};
  return limit;
}

std::atomic<double> brief_limit{1e-3}, brief_spin{kBriefSpin.count()};

// Reads a time limit from an environment variable, if it is set.
std::optional<double> ReadSeconds(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(seconds > 0)) {
    throw std::invalid_argument(
        std::string("the environment variable ") + variable +
        " must be a positive number of seconds, or inf for no limit; got '" + text + "'");
  }
  return seconds;
}

}  // namespace

void ReadOptions() {
  if (const auto limit = ReadSeconds("JAXMG_RENDEZVOUS_TIMEOUT")) Limit() = *limit;
  if (const auto limit = ReadSeconds("JAXMG_PEER_TIMEOUT")) {
    Hub::Instance().set_peer_timeout(Seconds(*limit));
  }
  if (const char* text = std::getenv("JAXMG_TRANSPORT")) {
    const std::string name = text;
    if (name != "auto" && name != "nccl" && name != "unix" && name != "tcp") {
      throw std::invalid_argument(
          "the environment variable JAXMG_TRANSPORT must be auto, nccl, unix or tcp; got '" + name +
          "'");
    }
    Hub::Instance().set_transport(name == "unix"   ? Transport::kUnix
                                  : name == "tcp"  ? Transport::kTcp
                                  : name == "nccl" ? Transport::kNccl
                                                   : Transport::kAuto);
  }
}

Seconds RendezvousTimeout() { return Seconds(Limit().load()); }

void SetRendezvousTimeout(Seconds limit) { Limit() = limit.count(); }

WaitPolicy BriefWait() {
  return {Seconds(brief_limit.load()), Seconds(brief_spin.load()), /*yields=*/true};
}

void SetBriefWait(Seconds limit, Seconds spin) {
  brief_limit = limit.count();
  brief_spin = spin.count();
}

bool SetEigensolver(const std::string& name) {
  if (name != "auto" && name != "one" && name != "all") return false;
  EigensolverSetting() = name == "auto"  ? Eigensolver::kAuto
                         : name == "all" ? Eigensolver::kAll
                                         : Eigensolver::kOne;
  return true;
}

}  // namespace jaxmg
