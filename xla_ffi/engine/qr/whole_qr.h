// QR of a matrix with more rows than columns on the first rank, by its device's solver for a whole
// matrix. Used because ranks of one process share its processors and slow each other down.
#ifndef JAXMG_XLA_FFI_ENGINE_QR_WHOLE_QR_H_
#define JAXMG_XLA_FFI_ENGINE_QR_WHOLE_QR_H_

#include <vector>

#include "xla_ffi/engine/qr/tall/tall_qr.h"

namespace jaxmg {

// On the root: the rows of all ranks, also transposed, and R. On every rank: the outcome.
template <typename T>
struct WholeQrSpace : RoutineSpace<T> {
  WholeQrSpace(const TallSizes& sizes, const Ranks& ranks);

  Piece<T> turned, r;
  Piece<Real<T>> signs;
};

// Returns whether one rank factors the matrix. The call must have neither right-hand sides nor
// further rows. The matrix must be so small that latency dominates, or so close to square that the
// products of CholeskyQR2 are not faster.
inline bool IsWholeQr(const TallSizes& sizes, int ranks, const Tuning& tuning) {
  constexpr int64_t kTall = 3;
  const int64_t rows = sizes.block * ranks;
  const bool square = sizes.n <= tuning.qr.whole_columns && rows <= kTall * sizes.n;
  return !sizes.with_b && sizes.further == 0 &&
         (square || rows * sizes.n <= tuning.qr.whole_elements);
}

// TallQrRoutine for such a matrix. Workspace: WholeQrSpace.
template <typename T>
Status WholeQrRoutine(const RankContext& context, const TallQrProblem<T>& problem);

// As WholeQrRoutine, by one rank for all ranks of its process (for_all.h).
template <typename T>
Status WholeQrForAll(const RankContext& alone, const std::vector<TallQrProblem<T>>& problems);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_QR_WHOLE_QR_H_
