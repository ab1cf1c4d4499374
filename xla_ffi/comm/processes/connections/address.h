// ProcessAddress: how other processes reach the hub of a process. Processes exchange its text form
// through the key-value store of the job.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_ADDRESS_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_ADDRESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "xla_ffi/base/status.h"

namespace jaxmg {

// The value of JAXMG_TRANSPORT: the best path for each pair of processes, sockets only (Unix or
// TCP), or NCCL only.
enum class Transport { kAuto, kUnix, kTcp, kNccl };

struct ProcessAddress {
  std::string version;  // of the plugin
  std::string host;     // host name
  int64_t pid = 0;
  std::string local;      // boot, network namespace and user; equal if the Unix socket is reachable
  std::string cores;      // boot and affinity mask; equal if processes share processors
  std::string unix_name;  // an abstract Unix socket name, without a file; unique to the process
  std::string transport;  // the process's JAXMG_TRANSPORT
  std::vector<std::string> tcp;  // numeric, "10.0.0.1:4711" or "[fe80::1]:4711"

  std::string Text() const;
  // Returns the text without the TCP addresses, which other processes may learn later.
  std::string Identity() const;
};

// Returns "auto", "unix", "tcp" or "nccl".
const char* NameOf(Transport transport);

// Returns the interfaces on which the process with the higher index must listen over TCP so that
// the lower one can connect: "loopback", "any", or "" if TCP is not needed. Both processes compute
// the same result.
std::string TcpBetween(const ProcessAddress& lower, const ProcessAddress& higher);
// Returns the lines that a process appends to its text when it listens over TCP.
std::string TcpLines(const std::vector<std::string>& tcp);

// Parses a text. The error says what is wrong with it.
Status ParseAddress(const std::string& text, ProcessAddress* address);

// Returns this process's address, without the version and without the sockets.
ProcessAddress LocalAddress();

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_ADDRESS_H_
