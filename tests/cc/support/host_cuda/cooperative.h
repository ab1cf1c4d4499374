// Runs cooperative kernels, whose blocks wait for each other, on the host. Each block runs in its
// own process, because the shared memory of its threads is a static variable.
#ifndef JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_COOPERATIVE_H_
#define JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_COOPERATIVE_H_

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <vector>

#include "tests/cc/support/host_cuda/host_cuda.h"
#include "tests/cc/support/testing.h"

namespace host_cuda {

// Memory that all blocks share.
template <typename T>
class GlobalMemory {
 public:
  GlobalMemory(size_t size, const T& value) : bytes_(std::max<size_t>(size, 1) * sizeof(T)) {
    void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(data != MAP_FAILED);
    data_ = static_cast<T*>(data);
    std::fill_n(data_, size, value);
  }
  explicit GlobalMemory(const std::vector<T>& values) : GlobalMemory(values.size(), T()) {
    std::copy(values.begin(), values.end(), data_);
  }
  ~GlobalMemory() { munmap(data_, bytes_); }
  GlobalMemory(const GlobalMemory&) = delete;
  GlobalMemory& operator=(const GlobalMemory&) = delete;
  T* data() const { return data_; }

 private:
  const size_t bytes_;
  T* data_;
};

// Runs all blocks at the same time. The calling process must have no other threads.
inline void LaunchCooperative(unsigned blocks, unsigned threads,
                              const std::function<void()>& kernel) {
  if (blocks == 1) return Launch(1, threads, 1, kernel);
  std::fflush(nullptr);  // otherwise each process would print the buffered text again
  std::vector<pid_t> processes;
  for (unsigned block = 0; block < blocks; ++block) {
    const pid_t process = fork();
    if (process == 0) {
      RunBlock(block, blocks, threads, 1, kernel);
      _exit(0);
    }
    EXPECT(process > 0);
    processes.push_back(process);
  }
  for (pid_t process : processes) {
    int status = -1;
    EXPECT(waitpid(process, &status, 0) == process && status == 0) << "a block has failed";
  }
}

}  // namespace host_cuda

#endif  // JAXMG_TESTS_CC_SUPPORT_HOST_CUDA_COOPERATIVE_H_
