// ProcessAddress: where the hub of a process can be reached, as a text that passes through the
// key-value store of the job.
#ifndef JAXMG_XLA_FFI_COMM_ADDRESS_H_
#define JAXMG_XLA_FFI_COMM_ADDRESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "xla_ffi/base/status.h"

namespace jaxmg {

struct ProcessAddress {
  std::string version;  // of the plugin
  std::string host;     // its name
  int64_t pid = 0;
  std::string local;             // boot and network namespace: equal where the Unix name is reached
  std::string cores;             // boot and affinity mask: equal where processes share processors
  std::string unix_name;         // abstract; nothing in the file system
  std::vector<std::string> tcp;  // numeric, "10.0.0.1:4711" or "[fe80::1]:4711"

  std::string Text() const;
};

// The address of a text; an error that says what is wrong with it.
Status ParseAddress(const std::string& text, ProcessAddress* address);

// This process's, but for the version and what is listened at.
ProcessAddress LocalAddress();

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_ADDRESS_H_
