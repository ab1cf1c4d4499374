// Sockets: those of a process's hub. All are closed by exec, and none blocks.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_SOCKET_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_SOCKET_H_

#include <string>
#include <utility>
#include <vector>

#include "xla_ffi/base/status.h"

namespace jaxmg {

// A file descriptor that is closed with its owner.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

// Under a random name of the abstract namespace, which other network namespaces don't see.
Status ListenUnix(Fd* listener, std::string* name);
// At a random port of the loopback interface, or of all interfaces.
enum class TcpScope { kLoopback, kAny };
// `*addresses` are those at which other processes reach it: the loopback interface's for kLoopback,
// all others' for kAny.
Status ListenTcp(TcpScope scope, Fd* listener, std::vector<std::string>* addresses);
bool IsLoopback(const std::string& address);

// The next connection that waits. Where there is none the result is -1 and `errno` says why.
Fd Accept(const Fd& listener);
// Whether the process at the other end of a Unix connection runs as this process's user.
bool IsSameUser(const Fd& connection);

// Begins a connection; poll says when it is there, and ConnectError whether. Those over Unix are
// there at once or not at all; Code::kResourceExhausted: too many wait there to be accepted.
Status ConnectUnix(const std::string& name, Fd* connecting);
Status ConnectTcp(const std::string& address, Fd* connecting);
int ConnectError(int connecting);

// From the system's generator for keys.
Status RandomBytes(size_t size, std::string* bytes);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_SOCKET_H_
