// Tile operations of one dtype on an NVIDIA GPU.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_BLAS_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_BLAS_H_

#include <cstdint>

#include "xla_ffi/device/cuda_library.h"
#include "xla_ffi/device/device.h"

namespace jaxmg {

class CudaDevice;

// What NVIDIA's interfaces call the dtype.
template <typename T>
struct CudaType;
template <>
struct CudaType<float> {
  static constexpr char kLetter = 's';
  static constexpr cudaDataType kValue = CUDA_R_32F;
};
template <>
struct CudaType<double> {
  static constexpr char kLetter = 'd';
  static constexpr cudaDataType kValue = CUDA_R_64F;
};
template <>
struct CudaType<std::complex<float>> {
  static constexpr char kLetter = 'c';
  static constexpr cudaDataType kValue = CUDA_C_32F;
};
template <>
struct CudaType<std::complex<double>> {
  static constexpr char kLetter = 'z';
  static constexpr cudaDataType kValue = CUDA_C_64F;
};

template <typename T>
class CudaBlas : public Blas<T> {
  using R = Real<T>;

 public:
  CudaBlas(CudaDevice& device, Precision precision) : device_(device), precision_(precision) {}

  Status Gemm(Stream stream, Op op_a, Op op_b, int64_t m, int64_t n, int64_t k, R alpha, const T* a,
              int64_t lda, const T* b, int64_t ldb, R beta, T* c, int64_t ldc) override;
  // As measured on H200: see docs/performance.md.
  Op StoredFactor() const override {
    return precision_ == Precision::kTf32 ? Op::kNone : Blas<T>::StoredFactor();
  }
  Status Herk(Stream stream, int64_t n, int64_t k, R alpha, const T* a, int64_t lda, R beta, T* c,
              int64_t ldc) override;
  Status Trsm(Stream stream, Side side, Op op, int64_t m, int64_t n, const T* l, int64_t ldl, T* b,
              int64_t ldb) override;
  Status Trmm(Stream stream, Side side, Op op, int64_t m, int64_t n, const T* l, int64_t ldl, T* b,
              int64_t ldb) override;
  Status Potrf(Stream stream, int64_t n, T* a, int64_t lda, int64_t offset, int32_t* info) override;
  Status Trtri(Stream stream, int64_t n, const T* l, int64_t ldl, T* inverse, int64_t ld) override;
  Status SolveRight(Stream stream, Op op, int64_t m, int64_t n, const T* l, int64_t ldl, const T* b,
                    int64_t ldb, T* x, int64_t ldx) override;
  Status ConjTranspose(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda, T* b,
                       int64_t ldb) override;
  Status MirrorLower(Stream stream, int64_t n, T* a, int64_t lda) override;
  Status Conjugate(Stream stream, int64_t m, int64_t n, T* a, int64_t lda) override;
  Status Add(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda, T* b,
             int64_t ldb) override;
  Status SetZero(Stream stream, int64_t m, int64_t n, T* a, int64_t lda) override;
  Status StoreInverse(Stream stream, int64_t n, const T* inverse, int64_t ld, T* a,
                      int64_t lda) override;
  Status LoadInverse(Stream stream, int64_t n, const T* a, int64_t lda, T* l, T* inverse) override;
  Status AddLogDet(Stream stream, int64_t n, const T* l, int64_t ldl, R* sum) override;
  Status PoisonIf(Stream stream, const int32_t* status, int64_t m, int64_t n, T* a,
                  int64_t lda) override;
  // Zeros are solved in place of a matrix that holds NaN or infinity, with which cuSOLVER need not
  // come to an end.
  Status Syevd(Stream stream, bool vectors, int64_t n, T* a, int64_t lda, R* w,
               int32_t* info) override;
  Status ReservePotrf(Stream stream, int64_t n, T* a, int64_t lda) override;
  Status ReserveSyevd(Stream stream, bool vectors, int64_t n, T* a, int64_t lda, R* w) override;

  // What Potrf does after cuSOLVER: a tile that has failed, or whose diagonal is not finite, counts
  // in *info. *failed, device memory, becomes the order of the leading minor in the tile, or 0.
  Status CheckFactor(Stream stream, int64_t n, const T* a, int64_t lda, int64_t offset,
                     const int32_t* solver_info, int32_t* failed, int32_t* info);
  // *first becomes the smallest of itself and offset + k, k the first column (from 1) where the
  // lower trapezoid of an m x n block is not finite.
  Status CheckFinite(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda, int64_t offset,
                     int32_t* first);

 private:
  // What a call of cuSOLVER needs beside its operands.
  struct SolverSpace {
    cusolverDnHandle_t handle;
    cusolverDnParams_t params;
    int32_t* info;  // the solver's, and one of ours after it
    void* device;
    size_t device_bytes = 0;
    void* host;
    size_t host_bytes = 0;
  };
  Status SpaceForPotrf(Stream stream, int64_t n, T* a, int64_t lda, SolverSpace* space);
  Status SpaceForSyevd(Stream stream, bool vectors, int64_t n, T* a, int64_t lda, R* w,
                       SolverSpace* space);
  Status Allocate(Stream stream, SolverSpace* space);

  CudaDevice& device_;
  const Precision precision_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_BLAS_H_
