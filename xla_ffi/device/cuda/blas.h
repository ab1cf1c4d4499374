// Tile operations of one dtype on an NVIDIA GPU.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_BLAS_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_BLAS_H_

#include <array>
#include <cstdint>
#include <memory>

#include "xla_ffi/device/blas.h"
#include "xla_ffi/device/cuda/solver.h"
#include "xla_ffi/device/device.h"
#include "xla_ffi/device/triangular_system.h"

namespace jaxmg {

class CudaDevice;

template <typename T>
class CudaBlas : public Blas<T> {
  using R = Real<T>;

 public:
  CudaBlas(CudaDevice& device, Precision precision) : device_(device), precision_(precision) {}

  Status Gemm(Stream stream, Op op_a, Op op_b, int64_t m, int64_t n, int64_t k, R alpha, const T* a,
              int64_t lda, const T* b, int64_t ldb, R beta, T* c, int64_t ldc) override;
  // Measured on an H200 (docs/laboratory.md).
  Op StoredFactor() const override {
    return precision_ == Precision::kTf32 ? Op::kNone : Blas<T>::StoredFactor();
  }
  PartsShape parts() const override { return PartsOf<T>(precision_); }
  Status PartScales(Stream stream, bool turned, int64_t m, int64_t n, const T* a, int64_t lda,
                    R* scales) override;
  Status Scale(Stream stream, bool lower, bool divide, int64_t m, int64_t n, const R* left,
               const R* right, T* a, int64_t lda) override;
  Status RowLargest(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda,
                    R* largest) override;
  Status PowersOfTwo(Stream stream, bool root, int64_t n, R* x) override;
  Status GemmBatched(Stream stream, Op op_a, Op op_b, int64_t m, int64_t n, int64_t k, R alpha,
                     const T* a, int64_t lda, int64_t a_stride, const T* b, int64_t ldb,
                     int64_t b_stride, R beta, T* c, int64_t ldc, int64_t c_stride,
                     int64_t count) override;
  Status Herk(Stream stream, int64_t n, int64_t k, R alpha, const T* a, int64_t lda, R beta, T* c,
              int64_t ldc) override;
  Status Potrf(Stream stream, int64_t n, T* a, int64_t lda, int64_t offset, int32_t* info) override;
  Status PotrfOfWhole(Stream stream, int64_t n, T* a, int64_t lda, int32_t* info, R* sum) override;
  Status SolveRight(Stream stream, Op op, int64_t m, int64_t n, const T* l, int64_t ldl, const T* b,
                    int64_t ldb, T* x, int64_t ldx) override;
  Status ConjTranspose(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda, T* b,
                       int64_t ldb) override;
  Status MirrorLower(Stream stream, int64_t n, T* a, int64_t lda) override;
  Status Conjugate(Stream stream, int64_t m, int64_t n, T* a, int64_t lda) override;
  Status Add(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda, T* b,
             int64_t ldb) override;
  Status SetZero(Stream stream, int64_t m, int64_t n, T* a, int64_t lda) override;
  Status SetIdentity(Stream stream, int64_t n, T* a, int64_t lda) override;
  Status StoreInverse(Stream stream, int64_t n, const T* inverse, int64_t ld, T* a,
                      int64_t lda) override;
  Status LoadInverse(Stream stream, int64_t n, bool transposed, const T* a, int64_t lda, T* l,
                     T* inverse) override;
  Status AddLogDet(Stream stream, int64_t n, const T* l, int64_t ldl, R* sum) override;
  Status ReservePotrf(Stream stream, int64_t n, T* a, int64_t lda) override;

 protected:
  Status DoTrsm(Stream stream, Side side, Op op, Triangle triangle, int64_t m, int64_t n,
                const T* a, int64_t lda, T* b, int64_t ldb) override;
  Status DoTrmm(Stream stream, Side side, Op op, Triangle triangle, int64_t m, int64_t n,
                const T* a, int64_t lda, T* b, int64_t ldb) override;
  Status DoTrtri(Stream stream, Triangle triangle, int64_t n, const T* a, int64_t lda, T* inverse,
                 int64_t ld) override;
  Status DoSplit(Stream stream, Side side, bool turned, int64_t m, int64_t n, const T* a,
                 int64_t lda, const R* scales, Part* parts, int64_t ld) override;
  Status DoGemmOfParts(Stream stream, int64_t m, int64_t n, int64_t depth, R alpha, const Part* a,
                       int64_t lda, const Part* b, int64_t ldb, const ProductScales<R>& scales,
                       R beta, T* c, int64_t ldc) override;

 private:
  Status MultiplyParts(Stream stream, int64_t m, int64_t n, int64_t depth, float alpha,
                       const Part* a, int64_t lda, const Part* b, int64_t ldb,
                       const ProductScales<float>& scales, float beta, float* c, int64_t ldc);
  Status MultiplyPartsInPieces(Stream stream, int64_t m, int64_t n, int64_t depth, float alpha,
                               const Part* a, int64_t lda, const Part* b, int64_t ldb, float beta,
                               float* c, int64_t ldc);
  Status ScratchForParts(Stream stream, int64_t count, Part** parts);
  // Uses our own kernel (triangular.cuh). X is stored in x with the strides `to`; x may be b.
  Status SolveTriangle(Stream stream, const TriangularSystem& of, const T* a, const T* b,
                       const TriangularSystem::Strides& to, T* x);
  bool SolvesByKernel(int64_t nrhs) const;
  // B := L^-1 B with L unit lower triangular of order m, with products and our own kernel for
  // diagonal triangles (column_solver.cuh). cuBLAS's TRSM with a tile of 1024 reaches a sixth of
  // the speed of products (docs/laboratory.md).
  Status SolveUnitLower(Stream stream, int64_t m, int64_t n, const T* l, int64_t ldl, T* b,
                        int64_t ldb);
  Status SpaceForPotrf(Stream stream, int64_t n, T* a, int64_t lda, SolverSpace* space);
  // Potrf that doesn't fill a failed tile with NaN; **failed is then not 0
  // (CudaStatus::CheckFactor).
  Status Factor(Stream stream, int64_t n, T* a, int64_t lda, int64_t offset, int32_t** failed,
                int32_t* info, R* sum);

  // The exchange between the blocks that solve with a triangle: the words that they send to each
  // other, after a first word that counts the blocks that have begun. Tags differ during the
  // lifetime of the memory, so that it is cleared only once.
  struct TriangleExchange {
    std::unique_ptr<Buffer> words;
    int64_t count = 0;
    uint32_t tag = 1, ticket = 0;  // the next values
  };
  Status ReserveWords(Stream stream, int64_t count);

  CudaDevice& device_;
  const Precision precision_;
  std::array<TriangleExchange, kNumStreams> exchanges_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_BLAS_H_
