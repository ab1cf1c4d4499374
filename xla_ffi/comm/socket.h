// Sockets: those of a process's hub. All are closed by exec, and none blocks.
#ifndef JAXMG_XLA_FFI_COMM_SOCKET_H_
#define JAXMG_XLA_FFI_COMM_SOCKET_H_

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
// On all interfaces, at a random port; the addresses at which other hosts may reach it, those of
// the loopback interface last.
Status ListenTcp(Fd* listener, std::vector<std::string>* addresses);

// The next connection that waits, if any.
Fd Accept(const Fd& listener);

// Begins a connection; poll says when it is there, and ConnectError whether. Those over Unix are
// there at once or not at all.
Status ConnectUnix(const std::string& name, Fd* connecting);
Status ConnectTcp(const std::string& address, Fd* connecting);
int ConnectError(int connecting);

// Random letters and digits.
std::string RandomName(size_t length);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_SOCKET_H_
