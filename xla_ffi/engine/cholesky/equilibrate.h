// Equilibration: a Hermitian matrix M, or its factor, scaled by powers of two such that the rows
// are of about the size 1, which is what products of float16 parts need (parts.h).
//
// With S = diag(s), s_i a power of two with 1 <= s_i^2 m_ii < 4, S M S has a factor S L whose
// rows have norms from 1 to 2: no element of it is larger, and none of its inverse is larger than
// the root of the condition of S M S, which is within a factor of n of the best that scaling gives
// (A. van der Sluis, "Condition numbers and equilibration of matrices", Numer. Math. 14, 1969).
// Nothing is rounded. (LAPACK's xPOEQUB does the same.)
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
  // Elements of workspace, in which R's are kept.
  static int64_t Workspace(const Tiles& tiles, Precision precision) {
    if (!Needed(precision)) return 0;
    return tiles.columns() + std::max(tiles.count() * tiles.width(), 2 * tiles.columns());
  }

  // `matrix` is block-cyclic, its lower triangle valid. All that follows is enqueued on kMain.
  Equilibration(const RankContext& context, const Matrix<T>& matrix, T* workspace)
      : context_(context),
        matrix_(matrix),
        tiles_(matrix.tiles),
        roots_(reinterpret_cast<R*>(workspace)),
        scratch_(roots_ + tiles_.columns()) {}

  // 1 / S, of M by its diagonal or of L by the largest elements of its rows: the same on all ranks.
  Status FindForMatrix();
  Status FindForFactor();

  // The lower triangle of M to that of S M S, or the other way with `back`; of L to that of S L.
  Status ScaleMatrix(bool back) const;
  Status ScaleFactor(bool back) const;
  // x (count x n) to x S.
  Status ScaleRightHandSides(int64_t count, T* x) const;
  // *sum, on one rank, grows by the logarithm of det M / det S M S.
  Status AddLogDet(R* sum) const;

 private:
  Status Scale(bool divide, bool left, bool right) const;

  const RankContext& context_;
  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  R* const roots_;    // the diagonal of 1 / S
  R* const scratch_;  // what ranks have of it
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CHOLESKY_EQUILIBRATE_H_
