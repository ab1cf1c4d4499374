// LuKernels: the operations on one device, other than products, that an LU factorization consists
// of: panels, row interchanges, and the determinant.
//
// Pivots are numbers in device memory, as in LAPACK's getrf but counted from 0: row i of the matrix
// was interchanged with row pivots[i] >= i, one after the other.
#ifndef JAXMG_XLA_FFI_DEVICE_LU_KERNELS_H_
#define JAXMG_XLA_FFI_DEVICE_LU_KERNELS_H_

#include <cstdint>
#include <vector>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/stream.h"

namespace jaxmg {

enum class Order { kForward, kBackward };

// n columns of a matrix, from its first row on. The interchanges from `first` on move their rows.
template <typename T>
struct MovedColumns {
  T* a;
  int64_t n, first;
};

template <typename T>
class LuKernels {
 public:
  virtual ~LuKernels() = default;

  // P A = L U with partial pivoting of a panel A, m x n, whose first row and column have number
  // `offset` in the matrix. L and U replace A, as in LAPACK's getrf. Writes min(m, n) pivots. *info
  // becomes the minimum of *info and offset + k for the first pivot k (from 1) that is zero, or
  // kNotFinite. The factorization continues after a zero pivot.
  virtual Status FactorPanel(Stream stream, int64_t m, int64_t n, T* a, int64_t lda, int64_t offset,
                             int32_t* pivots, int32_t* info) = 0;

  // Interchanges rows i and pivots[i] - offset of A, for i = 0 .. count - 1 or in reverse order. A
  // has n columns, and its first row is number `offset` of the matrix.
  virtual Status SwapRows(Stream stream, Order order, int64_t n, T* a, int64_t lda, int64_t offset,
                          int64_t count, const int32_t* pivots) = 0;

  // Interchanges rows i and pivots[i] of each element of `all`, for i = first .. count - 1 with the
  // element's `first`. The elements are columns of a matrix of `rows` rows, and their `first` must
  // not increase from one to the next. `buffer` has space for `room` elements, at least `rows`; it
  // is null if Tuning::Lu::swap_bytes is 0.
  virtual Status SwapAllRows(Stream stream, const std::vector<MovedColumns<T>>& all, int64_t rows,
                             int64_t lda, int64_t count, const int32_t* pivots, T* buffer,
                             int64_t room) = 0;

  // Interchanges columns i and pivots[i] of A, which has m rows, in the same way.
  virtual Status SwapColumns(Stream stream, Order order, int64_t m, T* a, int64_t lda,
                             int64_t count, const int32_t* pivots) = 0;

  // For the determinant of the n columns of P^T L U from number `offset` on, with the diagonal tile
  // U, n x n: adds log |det U| to *log_abs and multiplies *sign by the sign of det U (complex: its
  // phase) and of the interchanges. A zero on the diagonal makes the results -infinity and 0.
  virtual Status AddDeterminant(Stream stream, int64_t n, const T* u, int64_t ldu, int64_t offset,
                                const int32_t* pivots, Real<T>* log_abs, T* sign) = 0;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_LU_KERNELS_H_
