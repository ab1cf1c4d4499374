// TSQR: Householder's QR of each rank's rows, and of the stack of the ranks' R. Accurate for every
// matrix (tall_qr.h).
//
//   conj(A) of a rank = Q1 R1    block x n; Q1 overwrites a transposed copy of the rank's rows
//   R1 of all ranks, and `below`, stacked = Q2 R
//   Q = Q1 (this rank's rows of Q2)
//
// All steps work on conj(A). The conjugate transposes that convert results back to row form also
// undo the conjugation.
#ifndef JAXMG_XLA_FFI_ENGINE_QR_TALL_TSQR_H_
#define JAXMG_XLA_FFI_ENGINE_QR_TALL_TSQR_H_

#include <cstdint>

#include "xla_ffi/engine/core/workspace.h"
#include "xla_ffi/engine/qr/tall/tall_products.h"

namespace jaxmg {

// The operands and the results of TSQR. Matrices are column-major.
template <typename T>
struct TsqrProblem {
  int64_t n, rows;  // of this rank's M = A^T, n x rows
  const T* m;
  int64_t further;  // columns of `below`, n x further, the last columns of M
  const T* below;
  int64_t nrhs;
  const T* b;  // nrhs x rows
  T* q;        // n x rows: Q^T; null if Q is not requested
  T* l;        // n x n: R^T, on all ranks
  T* c;        // nrhs x n: (Q^H b)^T, on all ranks
};

template <typename T>
struct TsqrMemory {
  T* turned;       // rows x n
  T* stack;        // StackRows x n, on ranks that work
  T* triangle;     // first min(rows, n) x n, then n x n
  T* reflectors;   // kPanelColumns x n
  T* panels;       // PanelElements
  T* received;     // nrhs x n
  T* product;      // nrhs x min(rows, n)
  Real<T>* signs;  // n
};

// Returns the number of rows of the stacked R.
inline int64_t StackRows(int64_t n, int64_t rows, int64_t further, int ranks) {
  return ranks * std::min(rows, n) + further;
}
// Returns the number of elements of workspace of a Householder QR of up to `rows` rows and n
// columns.
int64_t PanelElements(int64_t n, int64_t rows);

// Computes q, l and c. Enqueued on all streams, kMain last.
template <typename T>
Status Tsqr(const RankContext& context, const TsqrProblem<T>& problem, const TsqrMemory<T>& memory);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_QR_TALL_TSQR_H_
