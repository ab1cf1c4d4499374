// LU panels, row interchanges and determinants on one NVIDIA GPU.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_LU_LU_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_LU_LU_H_

#include <array>
#include <cstdint>
#include <memory>

#include "xla_ffi/device/blas.h"
#include "xla_ffi/device/device.h"
#include "xla_ffi/device/lu_kernels.h"

namespace jaxmg {

class CudaDevice;

template <typename T>
class CudaLu : public LuKernels<T> {
  using R = Real<T>;

 public:
  CudaLu(CudaDevice& device, Blas<T>& blas) : device_(device), blas_(blas) {}

  Status FactorPanel(Stream stream, int64_t m, int64_t n, T* a, int64_t lda, int64_t offset,
                     int32_t* pivots, int32_t* info) override;
  Status SwapRows(Stream stream, Order order, int64_t n, T* a, int64_t lda, int64_t offset,
                  int64_t count, const int32_t* pivots) override;
  Status SwapAllRows(Stream stream, const std::vector<MovedColumns<T>>& all, int64_t rows,
                     int64_t lda, int64_t count, const int32_t* pivots, T* buffer,
                     int64_t room) override;
  Status SwapColumns(Stream stream, Order order, int64_t m, T* a, int64_t lda, int64_t count,
                     const int32_t* pivots) override;
  Status AddDeterminant(Stream stream, int64_t n, const T* u, int64_t ldu, int64_t offset,
                        const int32_t* pivots, R* log_abs, T* sign) override;

 private:
  // Converts interchanges `begin` to `end`, at most kLuSwaps, to moves of rows.
  Status PlanMoves(Stream stream, Order order, int64_t begin, int64_t end, int64_t offset,
                   const int32_t* pivots, int32_t* from, int32_t* to);
  // Memory that a panel's kernels share: kernels whose blocks wait for each other exchange words,
  // and leaves write lists of moves for the steps between them.
  struct Exchange {
    std::unique_ptr<Buffer> slots, moves;
    int64_t columns = 0;  // `moves` has space for this number
    uint32_t tag = 1;     // the next tag
  };
  struct Panel {
    Stream stream;
    int64_t m, n;  // n is at most m, except for a panel of a single leaf
    T* a;
    int64_t lda, offset;
    int32_t *pivots, *info;
    int64_t width;  // columns of a leaf
    T* at(int64_t i, int64_t j) const { return a + i + j * lda; }
  };

  // FactorPanel with our own kernels.
  Status FactorByKernels(Stream stream, int64_t m, int64_t n, T* a, int64_t lda, int64_t offset,
                         int32_t* pivots, int32_t* info);
  // FactorPanel of a whole matrix with cuSOLVER.
  Status FactorByLibrary(Stream stream, int64_t n, T* a, int64_t lda, int64_t offset,
                         int32_t* pivots, int32_t* info);
  Status ReserveSlots(Stream stream);
  Status ReserveMoves(Stream stream, int64_t columns);
  // Factors leaves `first` to `last` of a panel, by halves.
  Status FactorHalves(const Panel& panel, int64_t first, int64_t last);
  // Factors the leaf of n columns that begins in column `begin` of the panel.
  Status FactorLeaf(const Panel& panel, int64_t begin, int64_t n);
  // Applies the factorization of leaves `first` to `last` to their own columns and to later ones.
  Status Step(const Panel& panel, int64_t first, int64_t last, int64_t right);
  // Sets *columns to the number of columns that a kernel can factor on the device's
  // multiprocessors.
  Status LeafColumns(int64_t m, int64_t* columns) const;
  // Interchanges lines i and pivots[i] - offset. Lines are `line` elements apart; each has n
  // elements, `element` elements apart.
  Status Swap(Stream stream, Order order, int64_t n, T* a, int64_t line, int64_t element,
              int64_t offset, int64_t count, const int32_t* pivots);

  CudaDevice& device_;
  Blas<T>& blas_;
  std::array<Exchange, kNumStreams> exchanges_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_LU_LU_H_
