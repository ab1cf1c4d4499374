// MatrixSolver on an NVIDIA GPU, and the workspace of any call of cuSOLVER.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_SOLVER_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_SOLVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "xla_ffi/device/cuda/runtime/library.h"
#include "xla_ffi/device/cuda/runtime/resources.h"
#include "xla_ffi/device/matrix_solver.h"

namespace jaxmg {

class CudaDevice;

// The arguments of a call of cuSOLVER other than its operands: the handle and parameters, with
// which the workspace size is queried, and the workspace.
struct SolverSpace {
  cusolverDnHandle_t handle;
  cusolverDnParams_t params;
  int32_t* info;  // the solver's info, followed by one of ours
  void* device;
  size_t device_bytes = 0;
  void* host;
  size_t host_bytes = 0;

  Status Open(CudaDevice& device, Stream stream);
  // Sets the sizes of the workspace of a call; calls `query` if no such call was made before.
  Status Size(CudaDevice& device, const SolverCall& call, const std::function<Status()>& query);
  Status Allocate(CudaDevice& device, Stream stream);
};

template <typename T>
class CudaSolver : public MatrixSolver<T> {
  using R = Real<T>;

 public:
  explicit CudaSolver(CudaDevice& device) : device_(device) {}

  // Replaces a matrix with NaN or infinity by zeros, because cuSOLVER may not terminate for it.
  Status Syevd(Stream stream, bool vectors, int64_t n, T* a, int64_t lda, R* w,
               int32_t* info) override;
  Status ReserveSyevd(Stream stream, bool vectors, int64_t n, T* a, int64_t lda, R* w) override;

 private:
  Status SpaceForSyevd(Stream stream, bool vectors, int64_t n, T* a, int64_t lda, R* w,
                       SolverSpace* space);

  CudaDevice& device_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_SOLVER_H_
