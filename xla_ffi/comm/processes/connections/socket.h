// The sockets of a process's hub. All are non-blocking and closed on exec.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_SOCKET_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_SOCKET_H_

#include <string>
#include <utility>
#include <vector>

#include "xla_ffi/base/status.h"

namespace jaxmg {

// Owns a file descriptor and closes it.
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

// Listens under a random abstract name, which other network namespaces don't see.
Status ListenUnix(Fd* listener, std::string* name);
// Listens on a random port of the loopback interface or of all interfaces.
enum class TcpScope { kLoopback, kAny };
// `*addresses` are the addresses at which other processes reach the port: the loopback address for
// kLoopback, all other addresses for kAny.
Status ListenTcp(TcpScope scope, Fd* listener, std::vector<std::string>* addresses);
bool IsLoopback(const std::string& address);

// Accepts the next pending connection. Returns -1 and sets `errno` if there is none.
Fd Accept(const Fd& listener);
// Returns whether the process at the other end of a Unix connection runs as this process's user.
bool IsSameUser(const Fd& connection);

// Start to connect. Poll reports when the attempt is over; ConnectError returns its result. A Unix
// connection is established or fails at once; Code::kResourceExhausted means that the listener's
// backlog is full.
Status ConnectUnix(const std::string& name, Fd* connecting);
Status ConnectTcp(const std::string& address, Fd* connecting);
int ConnectError(int connecting);

// Returns random bytes from the system's cryptographic generator.
Status RandomBytes(size_t size, std::string* bytes);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_SOCKET_H_
