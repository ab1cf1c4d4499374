// Products of general matrices that the ranks have by rows. Nothing is dealt out: operands and the
// result keep their rows, and operands stay as they are.
//
//   RowsTimesRows      C := alpha X Y + beta C      rows of Y pass from their owners to all
//   RowsTimesAdjoint   C := alpha X Y^H + beta C    likewise; each gives columns of C
//   AdjointTimesRows   C := alpha X^H Y + beta C    each rank's products are summed by C's owners
//   Gram               C := alpha X^H X + beta C    likewise, by half of the operations
//   AdjointOf          C := X^H                     each rank sends to each a rectangle
//
// clang-format off
//                       Y0 │ Y1 │ Y2
//        X0 │ X1 │ X2        ▼            rank r multiplies its columns X_p with rank p's rows of Y,
//   r    ━━━━━━━━━━━━  ×  ━━━━━━━━━━      its own first, then those of r + 1, r + 2, ...: at a time
//                                         every rank reads from another one
// clang-format on
//
// Ranks of a host read each other's blocks in place (Tuning::borrow_panels). Others send them in
// pieces, which are received beside the product of the piece before (DoubleBuffer).
//
// AdjointTimesRows sums in an order that depends on the sizes alone: all runs give the same bits.
// What a rank has at a time beside its rows are two pieces of what it sends, and two of what it
// receives.
//
// Rows of padding are not read, and are zeros in C. C may not overlap X and Y. Every rank calls
// each function with the same sizes; work is enqueued on all streams, kMain last, and when kMain
// gets there no other rank reads this one's blocks.
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
  // kTrans: X^T and Y^T for X^H and Y^H.
  Op adjoint = Op::kConjTrans;
};

// The elements of Y that are not zero. Products with a triangle take half of the operations.
enum class Factor { kGeneral, kUpper, kLower };

// X (m, k), Y (k, n), C (m, n): 2 m n k operations by all ranks.
template <typename T>
Status RowsTimesRows(const RankContext& context, const ProductTerms<T>& terms,
                     const RowBlocks<T>& x, const RowBlocks<T>& y, const RowBlocks<T>& c,
                     T* workspace, Factor factor = Factor::kGeneral);
// Elements of workspace; as all of these functions, the same on all ranks.
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

// X (k, n), C (n, n), Hermitian before (unless beta is 0) and after; symmetric where terms.adjoint
// is kTrans. Up to order Tuning::usual_tile as AdjointTimesRows, because a product of tall matrices
// is faster than half of one. Blocks on the diagonal of that order are computed as a whole.
template <typename T>
Status Gram(const RankContext& context, const ProductTerms<T>& terms, const RowBlocks<T>& x,
            const RowBlocks<T>& c, T* workspace);
template <typename T>
int64_t GramSpace(const Ranks& ranks, const RowBlocks<T>& x, const RowBlocks<T>& c);

// X (m, n), C (n, m): C := X^H, or X^T where `op` is kTrans.
template <typename T>
Status AdjointOf(const RankContext& context, Op op, const RowBlocks<T>& x, const RowBlocks<T>& c,
                 T* workspace);
template <typename T>
int64_t AdjointOfSpace(const Ranks& ranks, const RowBlocks<T>& x, const RowBlocks<T>& c);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_PRODUCTS_PRODUCTS_H_
