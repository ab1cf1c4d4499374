// Substitution with the factor, for right-hand sides in row form (right_hand_sides.h): X is nrhs x
// n, and with A = conj(M), M = L L^H, A x = b is X M = B. So Y = B L^-H goes forward and X = Y L^-1
// back.
//
// One tile after the other is solved for, so the time of each step counts, not its operations: a
// TRSV of 1024 columns takes a GPU 80 us, in which it could read the tile 60 times. Where the
// tuning says so (`inverse_order`), diagonal blocks are inverted beforehand, all at the same time,
// and a block is solved for by products:
//
//   x := c V,  r := c - x L,  x := x + r V,      V L = I to rounding
//
// The second product with V is one step of iterative refinement in working precision. Without it
// the residual grows with the condition of the block; with it the result is as good as that of
// substitution as long as the condition is below eps^-1/2 (R. D. Skeel, "Iterative refinement
// implies numerical stability for Gaussian elimination", Math. Comp. 35, 1980; N. J. Higham,
// "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 12.1), and that of a block of
// a Cholesky factor is: it is at most the root of A's, which is below 1/eps where the factorization
// succeeds.
//
// V is kept where nothing else is: its part below the diagonal, conjugated and transposed, above
// the diagonal of the block itself, and its diagonal is that of L inverted.
#ifndef JAXMG_XLA_FFI_ENGINE_CHOLESKY_SUBSTITUTION_H_
#define JAXMG_XLA_FFI_ENGINE_CHOLESKY_SUBSTITUTION_H_

#include <array>
#include <cstdint>
#include <vector>

#include "xla_ffi/engine/cholesky/diagonal.h"
#include "xla_ffi/engine/core/sweep.h"

namespace jaxmg {

// Elements of workspace for InvertDiagonals and DiagonalSolver with blocks of this order.
inline int64_t DiagonalSolverWorkspace(int64_t order) { return 4 * order * order; }

// How diagonal tiles are solved with: by the inverses of blocks of this order, or 0: by
// substitution.
template <typename T>
struct Inverses {
  int64_t order;
  T* workspace;  // DiagonalSolverWorkspace(order)
};

// Puts the inverses of the diagonal blocks of this rank's tiles above their diagonals. Enqueued on
// all streams, kMain last.
template <typename T>
Status InvertDiagonals(const RankContext& context, const Matrix<T>& matrix,
                       const Inverses<T>& inverses);

enum class Sweep { kForward, kBackward };

// Solves with the diagonal tiles of one rank in the order of a sweep. What it needs of a block is
// brought into place while others are solved for.
template <typename T>
class DiagonalSolver : public TileSolver<T> {
 public:
  // `workspace` as for InvertDiagonals.
  DiagonalSolver(Flow& flow, const Matrix<T>& matrix, Sweep sweep, const Inverses<T>& inverses);

  // solved := x op(L)^-1 with tile k, L^H where the sweep is forward. x is count x width, used up;
  // both have leading dimension `count`. Tiles come in the order of the sweep.
  void Solve(Step<T>& on, int64_t k, int64_t count, T* x, T* solved) override;
  // Brings the next blocks into place: once what others wait for is on its way.
  void Refill() override;

 private:
  bool inverts() const { return order_ > 0; }
  // L and its inverse of the next block in the order of the sweep, on kSide.
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
  size_t next_ = 0, ready_ = 0;          // solved for next; so many are in place
  std::array<Data, 2> prepared_;         // by the parity of the block: L and its inverse
};

// Y = X L^-H. x.data holds X on every rank and is used up; x.local becomes this rank's columns of
// Y. `sums`, nrhs x n, is workspace. SweepByColumns.
template <typename T>
Status ForwardSubstitution(const RankContext& context, const Matrix<T>& matrix,
                           const RightHandSides<T>& x, T* sums, const Inverses<T>& inverses);

// X = Y L^-1: x.local holds this rank's columns of Y and is used up, x.data becomes X on every
// rank. SweepByRows; of a single tile in place without inverses.
template <typename T>
Status BackSubstitution(const RankContext& context, const Matrix<T>& matrix,
                        const RightHandSides<T>& x, const Inverses<T>& inverses);

// x.data := x.data L^H, or x.data L, on every rank. `sums`, nrhs x n, is workspace, as is x.local.
template <typename T>
Status Multiply(const RankContext& context, const Matrix<T>& matrix, Op op,
                const RightHandSides<T>& x, T* sums);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CHOLESKY_SUBSTITUTION_H_
