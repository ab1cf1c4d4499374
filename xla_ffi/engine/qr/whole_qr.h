// QR of a matrix of more rows than columns that the first rank does for all, by its device's solver
// of a whole matrix: ranks of one process share its processors, and hold each other up.
#ifndef JAXMG_XLA_FFI_ENGINE_QR_WHOLE_QR_H_
#define JAXMG_XLA_FFI_ENGINE_QR_WHOLE_QR_H_

#include <vector>

#include "xla_ffi/engine/qr/tall_qr.h"

namespace jaxmg {

// On the root: the rows of all ranks, as they lie and transposed; on every rank: R and the outcome.
template <typename T>
struct WholeQrSpace : RoutineSpace<T> {
  WholeQrSpace(const TallSizes& sizes, const Ranks& ranks);

  Piece<T> turned, r;
  Piece<Real<T>> signs;
};

// Whether one rank factors the matrix: it has neither right-hand sides nor further rows, and is so
// small that only the steps count, or not so tall that the products of CholeskyQR2 are faster.
inline bool IsWholeQr(const TallSizes& sizes, int ranks, const Tuning& tuning) {
  constexpr int64_t kTall = 3;
  const int64_t rows = sizes.block * ranks;
  const bool square = sizes.n <= tuning.whole_qr_columns && rows <= kTall * sizes.n;
  return !sizes.with_b && sizes.further == 0 &&
         (square || rows * sizes.n <= tuning.whole_qr_elements);
}

// TallQrRoutine of such a matrix. Workspace: WholeQrSpace.
template <typename T>
Status WholeQrRoutine(const RankContext& context, const TallQrProblem<T>& problem);

// The same by one rank for all ranks of its process (for_all.h).
template <typename T>
Status WholeQrForAll(const RankContext& alone, const std::vector<TallQrProblem<T>>& problems);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_QR_WHOLE_QR_H_
