// Closer: closes the connections of strangers on its own threads.
//
// Closing a Unix connection also closes the file descriptors that its peer has sent over it,
// whether received or not. This can block for as long as the peer chooses: closing a TCP socket
// with unsent data blocks for up to the number of seconds in SO_LINGER. If the hub's thread closed
// connections, any process that can connect could block the hub.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_CLOSER_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_CLOSER_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>

namespace jaxmg {

class Closer {
 public:
  // Returns the process's single instance.
  static Closer& Instance();

  // Returns whether another connection can be queued. The hub accepts no connections while the
  // queue is full.
  bool HasRoom();
  // Destroys `connection` (a Connection or an Fd) on another thread; doesn't wait.
  void Close(std::shared_ptr<const void> connection);

 private:
  template <typename T>
  friend T& Forever();
  Closer() = default;
  void Run() noexcept;

  std::mutex mutex_;
  std::deque<std::shared_ptr<const void>> waiting_;
  int threads_ = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_CLOSER_H_
