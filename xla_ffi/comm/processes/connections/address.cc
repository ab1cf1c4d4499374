#include "xla_ffi/comm/processes/connections/address.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "xla_ffi/comm/processes/connections/frame.h"

namespace jaxmg {
namespace {

constexpr char kMagic[] = "jaxmg-process";

// The format has one line for each key, so a value must not contain line breaks.
std::string OneLine(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return text;
}

// Returns an identifier that is equal for all containers of one machine and changes with every
// boot.
std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string NetworkNamespace() {
  struct stat info = {};
  if (stat("/proc/self/ns/net", &info) != 0) return "?" + std::to_string(getpid());
  return std::to_string(info.st_dev) + "." + std::to_string(info.st_ino);
}

std::string Affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return "all";
  std::string mask;
  int digit = 0;
  for (int cpu = CPU_SETSIZE; cpu-- > 0;) {
    digit = 2 * digit + (CPU_ISSET(cpu, &set) ? 1 : 0);
    if (cpu % 4 != 0) continue;
    if (digit != 0 || !mask.empty()) mask += "0123456789abcdef"[digit];
    digit = 0;
  }
  return mask;
}

}  // namespace

const char* NameOf(Transport transport) {
  switch (transport) {
    case Transport::kUnix:
      return "unix";
    case Transport::kTcp:
      return "tcp";
    case Transport::kNccl:
      return "nccl";
    default:
      return "auto";
  }
}

std::string TcpBetween(const ProcessAddress& lower, const ProcessAddress& higher) {
  if (lower.transport == NameOf(Transport::kUnix)) return "";
  if (lower.local != higher.local) return "any";
  return lower.transport == NameOf(Transport::kTcp) ? "loopback" : "";
}

std::string TcpLines(const std::vector<std::string>& tcp) {
  std::string text;
  for (const std::string& address : tcp) text += "\ntcp=" + address;
  return text;
}

std::string ProcessAddress::Text() const { return Identity() + TcpLines(tcp); }

std::string ProcessAddress::Identity() const {
  std::ostringstream text;
  text << kMagic << "=" << kFrameFormat << "\nversion=" << OneLine(version)
       << "\nhost=" << OneLine(host) << "\npid=" << pid << "\nlocal=" << OneLine(local)
       << "\ncores=" << OneLine(cores) << "\ntransport=" << OneLine(transport)
       << "\nunix=" << unix_name;
  return text.str();
}

Status ParseAddress(const std::string& text, ProcessAddress* address) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line.rfind(std::string(kMagic) + "=", 0) != 0) {
    return Error(Code::kInvalidArgument, "not the address of a process: '", text, "'");
  }
  if (line != std::string(kMagic) + "=" + std::to_string(kFrameFormat)) {
    return Error(Code::kInvalidArgument, "a process has an address of another version of jaxmg ('",
                 line, "', this process has version ", kFrameFormat,
                 "): install the same version of jaxmg and its plugin for all processes");
  }
  *address = {};
  while (std::getline(lines, line)) {
    const size_t equals = line.find('=');
    const std::string key = line.substr(0, equals);
    const std::string value = equals == line.npos ? "" : line.substr(equals + 1);
    if (key == "version") address->version = value;
    if (key == "host") address->host = value;
    if (key == "pid") address->pid = std::strtoll(value.c_str(), nullptr, 10);
    if (key == "local") address->local = value;
    if (key == "cores") address->cores = value;
    if (key == "transport") address->transport = value;
    if (key == "unix") address->unix_name = value;
    if (key == "tcp") address->tcp.push_back(value);
  }
  if (address->unix_name.empty() && address->tcp.empty()) {
    return Error(Code::kInvalidArgument, "the address of a process contains no socket: '", text,
                 "'");
  }
  return Status::Ok();
}

ProcessAddress LocalAddress() {
  ProcessAddress address;
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  const std::string boot = BootId();
  address.host = host;
  address.pid = getpid();
  address.local = boot + "/" + NetworkNamespace() + "/" + std::to_string(geteuid());
  address.cores = boot + "/" + Affinity();
  return address;
}

}  // namespace jaxmg
