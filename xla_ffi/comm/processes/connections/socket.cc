#include "xla_ffi/comm/processes/connections/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

namespace jaxmg {
namespace {

// The requested buffer size of a connection; the system may grant less. With a large buffer, large
// messages need fewer wake-ups on both sides.
constexpr int kBufferBytes = 4 << 20;

Status SystemError(const std::string& what) {
  return Error(Code::kUnavailable, what, ": ", std::strerror(errno));
}

Status NewSocket(int family, Fd* fd) {
  *fd = Fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return fd->get() >= 0 ? Status::Ok() : SystemError("can't create a socket");
}

void Tune(const Fd& fd, int family) {
  if (family == AF_UNIX) {  // TCP adapts its buffers itself
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof(kBufferBytes));
    return;
  }
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

socklen_t UnixAddress(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const size_t size = std::min(name.size(), sizeof(address->sun_path) - 1);
  std::memcpy(address->sun_path + 1, name.data(), size);  // a leading 0 marks an abstract name
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
}

std::string NumericHost(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST] = {};
  if (getnameinfo(address, size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return host;
}

// Returns the addresses at which other hosts may reach this one: the addresses of interfaces that
// are up, IPv4 first. Omits link-local IPv6 addresses, because they have no meaning on other hosts.
std::vector<std::string> HostAddresses(bool ipv6) {
  std::vector<std::string> groups[2];
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return {};
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || !(one->ifa_flags & IFF_UP)) continue;
    if (one->ifa_flags & IFF_LOOPBACK) continue;
    if (one->ifa_addr->sa_family == AF_INET) {
      groups[0].push_back(NumericHost(one->ifa_addr, sizeof(sockaddr_in)));
    } else if (ipv6 && one->ifa_addr->sa_family == AF_INET6) {
      const auto* address = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr);
      if (IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr)) continue;
      groups[1].push_back("[" + NumericHost(one->ifa_addr, sizeof(sockaddr_in6)) + "]");
    }
  }
  freeifaddrs(all);
  std::vector<std::string> found;
  for (const auto& group : groups) found.insert(found.end(), group.begin(), group.end());
  return found;
}

// Binds to any port of the loopback interface or of all interfaces. An IPv6 socket also accepts
// IPv4.
Status Bind(TcpScope scope, int family, Fd* listener, int* port) {
  JAXMG_RETURN_IF_ERROR(NewSocket(family, listener));
  sockaddr_in6 any6 = {};
  sockaddr_in any4 = {};
  any6.sin6_family = AF_INET6;
  any4.sin_family = AF_INET;
  if (scope == TcpScope::kLoopback) {
    any6.sin6_addr = in6addr_loopback;
    any4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  const bool six = family == AF_INET6;
  auto* address = six ? reinterpret_cast<sockaddr*>(&any6) : reinterpret_cast<sockaddr*>(&any4);
  socklen_t size = six ? sizeof(any6) : sizeof(any4);
  const int off = 0;
  if (six) setsockopt(listener->get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(listener->get(), address, size) != 0 || listen(listener->get(), SOMAXCONN) != 0 ||
      getsockname(listener->get(), address, &size) != 0) {
    return SystemError("can't listen on a TCP port");
  }
  *port = ntohs(six ? any6.sin6_port : any4.sin_port);
  return Status::Ok();
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

Status RandomBytes(size_t size, std::string* bytes) {
  bytes->assign(size, '\0');
  for (size_t done = 0; done < size;) {
    const ssize_t count = getrandom(bytes->data() + done, size - done, 0);
    if (count < 0 && errno != EINTR) return SystemError("can't get random numbers");
    if (count > 0) done += static_cast<size_t>(count);
  }
  return Status::Ok();
}

Status ListenUnix(Fd* listener, std::string* name) {
  static constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyz234567";
  std::string random;
  JAXMG_RETURN_IF_ERROR(NewSocket(AF_UNIX, listener));
  JAXMG_RETURN_IF_ERROR(RandomBytes(24, &random));
  *name = "jaxmg-";
  for (const char c : random) *name += kLetters[static_cast<unsigned char>(c) % 32];
  sockaddr_un address;
  const socklen_t size = UnixAddress(*name, &address);
  if (bind(listener->get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener->get(), SOMAXCONN) != 0) {
    return SystemError("can't listen on a Unix socket");
  }
  return Status::Ok();
}

Status ListenTcp(TcpScope scope, Fd* listener, std::vector<std::string>* addresses) {
  int port = 0;
  std::vector<std::string> hosts = {"127.0.0.1"};
  if (scope == TcpScope::kLoopback) {
    if (!Bind(scope, AF_INET, listener, &port).ok()) {
      JAXMG_RETURN_IF_ERROR(Bind(scope, AF_INET6, listener, &port));
      hosts = {"[::1]"};
    }
  } else {
    const bool ipv6 = Bind(scope, AF_INET6, listener, &port).ok();
    if (!ipv6) JAXMG_RETURN_IF_ERROR(Bind(scope, AF_INET, listener, &port));
    hosts = HostAddresses(ipv6);
  }
  addresses->clear();
  for (const std::string& host : hosts) addresses->push_back(host + ":" + std::to_string(port));
  return Status::Ok();
}

bool IsLoopback(const std::string& address) {
  return address.rfind("127.", 0) == 0 || address.rfind("[::1]", 0) == 0 ||
         address.rfind("[::ffff:127.", 0) == 0;
}

bool IsSameUser(const Fd& connection) {
  ucred other = {};
  socklen_t size = sizeof(other);
  return getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 &&
         other.uid == geteuid();
}

Fd Accept(const Fd& listener) {
  Fd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (fd.get() >= 0 && getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    Tune(fd, address.ss_family);
  }
  return fd;
}

Status ConnectUnix(const std::string& name, Fd* connected) {
  JAXMG_RETURN_IF_ERROR(NewSocket(AF_UNIX, connected));
  Tune(*connected, AF_UNIX);
  sockaddr_un address;
  const socklen_t size = UnixAddress(name, &address);
  if (connect(connected->get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    const Code code = errno == EAGAIN ? Code::kResourceExhausted : Code::kUnavailable;
    return Error(code, "the Unix socket @", name, ": ", std::strerror(errno));
  }
  // Checks the user of the listener, because another user may own the name by now.
  if (IsSameUser(*connected)) return Status::Ok();
  return Error(Code::kUnavailable, "the Unix socket @", name, " belongs to another user");
}

Status ConnectTcp(const std::string& address, Fd* connected) {
  const size_t colon = address.rfind(':');
  if (colon == address.npos) return Error(Code::kUnavailable, address, " has no port");
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int wrong = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found);
  if (wrong != 0) return Error(Code::kUnavailable, address, ": ", gai_strerror(wrong));
  const Status made = NewSocket(found->ai_family, connected);
  int outcome = -1;
  if (made.ok()) {
    Tune(*connected, found->ai_family);
    outcome = connect(connected->get(), found->ai_addr, found->ai_addrlen);
  }
  freeaddrinfo(found);
  JAXMG_RETURN_IF_ERROR(made);
  return outcome == 0 || errno == EINPROGRESS ? Status::Ok() : SystemError(address);
}

int ConnectError(int connecting) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(connecting, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

}  // namespace jaxmg
