// Products of general matrices that are distributed by rows. Nothing is redistributed: operands and
// the result keep their rows, and operands are unchanged.
//
//   RowsTimesRows      C := alpha X Y + beta C      all ranks receive the rows of Y
//   RowsTimesAdjoint   C := alpha X Y^H + beta C    likewise; each row of Y gives a column of C
//   AdjointTimesRows   C := alpha X^H Y + beta C    C's owners sum up the products of all ranks
//   Gram               C := alpha X^H X + beta C    likewise, with half of the operations
//   AdjointOf          C := X^H                     each rank sends a rectangle to each rank
//
// clang-format off
//                       Y0 │ Y1 │ Y2
//        X0 │ X1 │ X2        ▼            rank r multiplies its columns X_p with rank p's rows of
//   r    ━━━━━━━━━━━━  ×  ━━━━━━━━━━      Y, its own first, then those of r + 1, r + 2, ...: at
//                                         each time every rank reads from a different one
// clang-format on
//
// Ranks of a host read each other's blocks in place (Tuning::borrow_panels). Others send them in
// pieces; a piece is received while the previous one is multiplied (DoubleBuffer).
//
// AdjointTimesRows sums in an order that depends only on the sizes, so all runs give the same bits.
// Beyond its rows, a rank needs memory for at most two pieces to send and two received pieces.
//
// Padding rows are not read, and are zero in C. C must not overlap X or Y. Every rank calls each
// function with the same sizes. Work is enqueued on all streams, kMain last. Work that follows on
// kMain starts after the last read of this rank's blocks by another rank.
#ifndef JAXMG_XLA_FFI_ENGINE_PRODUCTS_PRODUCTS_H_
#define JAXMG_XLA_FFI_ENGINE_PRODUCTS_PRODUCTS_H_

#include "xla_ffi/engine/core/plan.h"
#include "xla_ffi/engine/products/row_blocks.h"

namespace jaxmg {

template <typename T>
struct ProductTerms {
  Real<T> alpha = 1;
  Real<T> beta = 0;  // 0: C is not read
  Precision precision = Precision::kHighest;
  // kTrans: X^T and Y^T in place of X^H and Y^H.
  Op adjoint = Op::kConjTrans;
};

// The nonzero elements of Y. A product with a triangle takes half of the operations.
enum class Factor { kGeneral, kUpper, kLower };

// X (m, k), Y (k, n), C (m, n). 2 m n k operations over all ranks.
template <typename T>
Status RowsTimesRows(const RankContext& context, const ProductTerms<T>& terms,
                     const RowBlocks<T>& x, const RowBlocks<T>& y, const RowBlocks<T>& c,
                     T* workspace, Factor factor = Factor::kGeneral);
// Returns the number of elements of workspace. All of these functions return it equally on all
// ranks.
template <typename T>
int64_t RowsTimesRowsSpace(const Ranks& ranks, const RowBlocks<T>& y);

// X (m, k), Y (n, k), C (m, n).
template <typename T>
Status RowsTimesAdjoint(const RankContext& context, const ProductTerms<T>& terms,
                        const RowBlocks<T>& x, const RowBlocks<T>& y, const RowBlocks<T>& c,
                        T* workspace);
template <typename T>
int64_t RowsTimesAdjointSpace(const Ranks& ranks, const RowBlocks<T>& y);

// X (k, m), Y (k, n), C (m, n).
template <typename T>
Status AdjointTimesRows(const RankContext& context, const ProductTerms<T>& terms,
                        const RowBlocks<T>& x, const RowBlocks<T>& y, const RowBlocks<T>& c,
                        T* workspace);
template <typename T>
int64_t AdjointTimesRowsSpace(const Ranks& ranks, const RowBlocks<T>& x, const RowBlocks<T>& y,
                              const RowBlocks<T>& c);

// X (k, n), C (n, n). C is Hermitian on entry (unless beta is 0) and on exit; symmetric if
// terms.adjoint is kTrans. Up to order Tuning::usual_tile, computed as by AdjointTimesRows, because
// one product of tall matrices is faster than half of one. Above that order, blocks of at most that
// order on the diagonal are computed as a whole.
template <typename T>
Status Gram(const RankContext& context, const ProductTerms<T>& terms, const RowBlocks<T>& x,
            const RowBlocks<T>& c, T* workspace);
template <typename T>
int64_t GramSpace(const Ranks& ranks, const RowBlocks<T>& x, const RowBlocks<T>& c);

// X (m, n), C (n, m): C := X^H, or X^T if `op` is kTrans.
template <typename T>
Status AdjointOf(const RankContext& context, Op op, const RowBlocks<T>& x, const RowBlocks<T>& c,
                 T* workspace);
template <typename T>
int64_t AdjointOfSpace(const Ranks& ranks, const RowBlocks<T>& x, const RowBlocks<T>& c);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_PRODUCTS_PRODUCTS_H_
