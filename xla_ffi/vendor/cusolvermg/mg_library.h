// cuSOLVERMg's handles and descriptors. A handle of a set of GPUs is used by one call at a time and
// reused by later calls: creating one takes longer than some solves.
#ifndef JAXMG_XLA_FFI_VENDOR_CUSOLVERMG_MG_LIBRARY_H_
#define JAXMG_XLA_FFI_VENDOR_CUSOLVERMG_MG_LIBRARY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "xla_ffi/base/status.h"
#include "xla_ffi/device/cuda/runtime/library.h"

namespace jaxmg::mg {

// Describes to the library a matrix in tile columns of `width`, distributed over the grid's GPUs in
// turn.
class Descriptor {
 public:
  ~Descriptor();
  Status Set(cudaLibMgGrid_t grid, int64_t rows, int64_t columns, int64_t width, cudaDataType type);
  cudaLibMgMatrixDesc_t get() const { return descriptor_; }

 private:
  cudaLibMgMatrixDesc_t descriptor_ = nullptr;
};

// The library on a set of GPUs, in the order of the ranks. Owned by one call during the lifetime of
// this object.
class Session {
 public:
  ~Session();
  static Status Start(const std::vector<int>& ordinals, std::unique_ptr<Session>* session);
  cusolverMgHandle_t handle() const { return handle_; }
  cudaLibMgGrid_t grid() const { return grid_; }

 private:
  std::vector<int> ordinals_;
  cusolverMgHandle_t handle_ = nullptr;
  cudaLibMgGrid_t grid_ = nullptr;
};

}  // namespace jaxmg::mg

#endif  // JAXMG_XLA_FFI_VENDOR_CUSOLVERMG_MG_LIBRARY_H_
