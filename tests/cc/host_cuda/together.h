// Kernels whose blocks wait for each other, on the host: what a block's threads share is one place
// in a process there, so that each block has a process of its own.
#ifndef JAXMG_TESTS_CC_HOST_CUDA_TOGETHER_H_
#define JAXMG_TESTS_CC_HOST_CUDA_TOGETHER_H_

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <vector>

#include "tests/cc/host_cuda/host_cuda.h"
#include "tests/cc/testing.h"

namespace host_cuda {

// Memory that all blocks see.
template <typename T>
class Together {
 public:
  Together(size_t size, const T& value) : bytes_(std::max<size_t>(size, 1) * sizeof(T)) {
    void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(data != MAP_FAILED);
    data_ = static_cast<T*>(data);
    std::fill_n(data_, size, value);
  }
  explicit Together(const std::vector<T>& values) : Together(values.size(), T()) {
    std::copy(values.begin(), values.end(), data_);
  }
  ~Together() { munmap(data_, bytes_); }
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;
  T* data() const { return data_; }

 private:
  const size_t bytes_;
  T* data_;
};

// Runs blocks of so many threads at the same time. This process has to have no other threads.
inline void LaunchTogether(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  if (blocks == 1) return Launch(1, threads, 1, kernel);
  std::fflush(nullptr);  // or each of them would print it again
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

#endif  // JAXMG_TESTS_CC_HOST_CUDA_TOGETHER_H_
