// Closer: closes connections of strangers on threads of its own.
//
// A Unix connection holds the descriptors that its other end has sent, received or not. When it is
// closed the system closes these, and waits as long as their sender has made them wait: a TCP
// socket with unsent data and SO_LINGER for as many seconds as that says. Whoever may connect could
// stop the thread that closes.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_CLOSER_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_CLOSER_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>

namespace jaxmg {

class Closer {
 public:
  // The process's only one.
  static Closer& The();

  // Whether fewer wait to be closed than may. Who accepts connections stops where there is no room.
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

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_CLOSER_H_
