// Equilibration: scales a Hermitian matrix M, or its factor, by powers of two so that its rows have
// norms of about 1, as products of float16 parts require (parts.h).
//
// With S = diag(s), where s_i is a power of two with 1 <= s_i^2 m_ii < 4, S M S has the factor S L,
// whose rows have norms from 1 to 2. So no element of S L is larger than 2, and no element of its
// inverse is larger than the square root of the condition of S M S. This condition is within a
// factor of n of the best that scaling achieves (A. van der Sluis, "Condition numbers and
// equilibration of matrices", Numer. Math. 14, 1969). Nothing is rounded. (LAPACK's xPOEQUB does
// the same.)
#ifndef JAXMG_XLA_FFI_ENGINE_CHOLESKY_EQUILIBRATE_H_
#define JAXMG_XLA_FFI_ENGINE_CHOLESKY_EQUILIBRATE_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

template <typename T>
class Equilibration {
  using R = Real<T>;

 public:
  static constexpr bool Needed(Precision precision) {
    return PartsOf<T>(precision).format == PartFormat::kFloat16;
  }
  // Returns the number of elements of workspace, which holds real numbers.
  static int64_t Workspace(const Tiles& tiles, Precision precision) {
    if (!Needed(precision)) return 0;
    return tiles.columns() + std::max(tiles.count() * tiles.width(), 2 * tiles.columns());
  }

  // `matrix` is block-cyclic; only its lower triangle is used. All functions enqueue on kMain.
  Equilibration(const RankContext& context, const Matrix<T>& matrix, T* workspace)
      : context_(context),
        matrix_(matrix),
        tiles_(matrix.tiles),
        roots_(reinterpret_cast<R*>(workspace)),
        scratch_(roots_ + tiles_.columns()) {}

  // Compute 1 / S, equal on all ranks: from the diagonal of M, or from the largest elements of L's
  // rows.
  Status FindForMatrix();
  Status FindForFactor();

  // M := S M S and L := S L, in the lower triangle; with `back`, the inverse operations.
  Status ScaleMatrix(bool back) const;
  Status ScaleFactor(bool back) const;
  // x := x S, where x is count x n.
  Status ScaleRightHandSides(int64_t count, T* x) const;
  // On one rank, adds log(det M / det S M S) to *sum unless it is null.
  Status AddLogDet(R* sum) const;

 private:
  Status Scale(bool divide, bool left, bool right) const;

  const RankContext& context_;
  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  R* const roots_;    // the diagonal of 1 / S
  R* const scratch_;  // the ranks' parts of it
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CHOLESKY_EQUILIBRATE_H_
