// ProcessAddress: where the hub of a process can be reached, as a text that passes through the
// key-value store of the job.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_ADDRESS_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_ADDRESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "xla_ffi/base/status.h"

namespace jaxmg {

// How blocks pass between processes: as is best for each pair, or by sockets alone, or by wires
// alone.
enum class Transport { kAuto, kUnix, kTcp, kWires };

struct ProcessAddress {
  std::string version;  // of the plugin
  std::string host;     // its name
  int64_t pid = 0;
  std::string local;      // boot, network namespace and user: equal where the Unix name is reached
  std::string cores;      // boot and affinity mask: equal where processes share processors
  std::string unix_name;  // abstract; nothing in the file system. No other process has it
  std::string transport;  // what JAXMG_TRANSPORT asks for there
  std::vector<std::string> tcp;  // numeric, "10.0.0.1:4711" or "[fe80::1]:4711"

  std::string Text() const;
  // The same without where it listens over TCP, of which others hear later.
  std::string Identity() const;
};

// "auto", "unix", "tcp" or "nccl".
const char* NameOf(Transport transport);

// By what interfaces the process of the lower index reaches the other over TCP, which then has to
// listen there: "loopback", "any", or "" where it doesn't need TCP. Both sides come to the same.
std::string TcpBetween(const ProcessAddress& lower, const ProcessAddress& higher);
// What a process adds to its text when it listens over TCP.
std::string TcpLines(const std::vector<std::string>& tcp);

// The address of a text; an error that says what is wrong with it.
Status ParseAddress(const std::string& text, ProcessAddress* address);

// This process's, but for the version and what is listened at.
ProcessAddress LocalAddress();

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_ADDRESS_H_
