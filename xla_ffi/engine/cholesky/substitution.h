// Substitution with the Cholesky factor, for right-hand sides in row form (right_hand_sides.h). X
// is nrhs x n. With A = conj(M) and M = L L^H, A x = b is X M = B. Forward substitution computes Y
// = B L^-H, back substitution X = Y L^-1.
//
// The tiles are solved one after the other, so latency matters, not the number of operations: a
// TRSV of 1024 columns takes 80 us on a GPU, which could read the tile 60 times in this time. If
// the tuning has an `inverse_order`, the diagonal blocks of this order are inverted beforehand, all
// at the same time. Then products solve with a block L, whose inverse is V:
//
//   x := c V,  r := c - x L,  x := x + r V,      V L = I to rounding
//
// The second product with V is one step of iterative refinement in working precision. Without it
// the residual grows with the condition of the block. With it the result is as accurate as that of
// substitution if the condition of the block is below eps^-1/2 (R. D. Skeel, "Iterative refinement
// implies numerical stability for Gaussian elimination", Math. Comp. 35, 1980; N. J. Higham,
// "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 12.1). This holds for a
// Cholesky factor: the condition of a block is at most the square root of the condition of A, which
// is below 1/eps if the factorization succeeds.
//
// V is stored in unused elements: above the diagonal of the block, conjugated and transposed. The
// diagonal of V is not stored; it is the inverse of L's diagonal.
#ifndef JAXMG_XLA_FFI_ENGINE_CHOLESKY_SUBSTITUTION_H_
#define JAXMG_XLA_FFI_ENGINE_CHOLESKY_SUBSTITUTION_H_

#include <array>
#include <cstdint>
#include <vector>

#include "xla_ffi/engine/cholesky/diagonal.h"
#include "xla_ffi/engine/core/sweep.h"

namespace jaxmg {

// Returns the number of elements of workspace of InvertDiagonals and DiagonalSolver with blocks of
// this order.
inline int64_t DiagonalSolverWorkspace(int64_t order) { return 4 * order * order; }

// How to solve with diagonal tiles: with the inverses of their blocks of this order; 0: by
// substitution.
template <typename T>
struct Inverses {
  int64_t order;
  T* workspace;  // DiagonalSolverWorkspace(order)
};

// Inverts the diagonal blocks of this rank's tiles, and stores the inverses above their diagonals.
// Enqueued on all streams, kMain last.
template <typename T>
Status InvertDiagonals(const RankContext& context, const Matrix<T>& matrix,
                       const Inverses<T>& inverses);

enum class Sweep { kForward, kBackward };

// Solves with the diagonal tiles of one rank in the order of a sweep. Loads a block and its inverse
// into workspace while other blocks are solved.
template <typename T>
class DiagonalSolver : public TileSolver<T> {
 public:
  // `workspace` as for InvertDiagonals.
  DiagonalSolver(Flow& flow, const Matrix<T>& matrix, Sweep sweep, const Inverses<T>& inverses);

  // solved := x L^-H (forward) or x L^-1 (backward), where L is diagonal tile k. x is count x width
  // and is overwritten; both have leading dimension `count`. Must be called for the tiles in the
  // order of the sweep.
  void Solve(Step<T>& on, int64_t k, int64_t count, T* x, T* solved) override;
  // Loads the next blocks. Called after the sends that other ranks wait for.
  void Refill() override;

 private:
  bool inverts() const { return order_ > 0; }
  // Loads the next block and its inverse, on kSide.
  void Prepare();
  void SolveBlock(Step<T>& on, int64_t n, int64_t count, T* x, T* solved);
  T* Space(size_t j) const {
    return workspace_ + static_cast<int64_t>(j % 2) * 2 * order_ * order_;
  }

  Flow& flow_;
  const Matrix<T>& matrix_;
  const Sweep sweep_;
  const int64_t order_;
  T* const workspace_;
  std::vector<DiagonalTile<T>> blocks_;  // in the order of the sweep
  size_t next_ = 0, ready_ = 0;          // the next block to solve; the number of loaded blocks
  std::array<Data, 2> prepared_;         // by the parity of a block: the loaded L and inverse
};

// Computes Y = X L^-H by SweepByColumns. x.data holds X on every rank and is overwritten; x.local
// becomes this rank's columns of Y. `sums`, nrhs x n, is workspace.
template <typename T>
Status ForwardSubstitution(const RankContext& context, const Matrix<T>& matrix,
                           const RightHandSides<T>& x, T* sums, const Inverses<T>& inverses);

// Computes X = Y L^-1 by SweepByRows. x.local holds this rank's columns of Y and is overwritten;
// x.data becomes X on every rank. For a single tile in place, one TRSM replaces the sweep, and
// `inverses` is not used.
template <typename T>
Status BackSubstitution(const RankContext& context, const Matrix<T>& matrix,
                        const RightHandSides<T>& x, const Inverses<T>& inverses);

// x.data := x.data L^H (kConjTrans) or x.data L (kNone) on every rank. `sums` (nrhs x n) and
// x.local are workspace.
template <typename T>
Status Multiply(const RankContext& context, const Matrix<T>& matrix, Op op,
                const RightHandSides<T>& x, T* sums);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CHOLESKY_SUBSTITUTION_H_
