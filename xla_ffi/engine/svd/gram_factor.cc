#include "xla_ffi/engine/svd/gram_factor.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/cholesky/factor.h"
#include "xla_ffi/engine/cholesky/potrf.h"
#include "xla_ffi/engine/cholesky/solve_rows.h"
#include "xla_ffi/engine/core/redistribute.h"

namespace jaxmg {

template <typename T>
GramFactorSpace<T>::GramFactorSpace(Pieces& pieces, const Sizes& sizes, const Ranks& ranks)
    : tiles(TilesOf(sizes, ranks.size, ranks.tuning)),
      factored(PotrfSpace<T>(sizes, ranks).factored) {
  const int64_t n = sizes.n;
  order = std::min(tiles.width(), ranks.tuning.cholesky.inverse_order);
  int64_t elements = PotrfWorkspace<T>(factored, n, Precision::kHighest, ranks.tuning);
  if (ranks.size > 1) {
    elements = std::max({elements, SolveRowsWorkspace(tiles), tiles.width() * n});
  }
  panels = pieces.Reserve<T>(elements);
  overflow = pieces.Reserve<T>(tiles.has_overflow() ? tiles.width() * n : 0);
  inverses = pieces.Reserve<T>(DiagonalSolverWorkspace(order));
  local = pieces.Reserve<T>(LocalRightHandSides(tiles, 1));
  sums = pieces.Reserve<T>(n);
}

template <typename T>
GramFactor<T>::GramFactor(const RankContext& context, const GramFactorSpace<T>& space,
                          const Workspace& workspace, int32_t* info)
    : context_(context), space_(space), workspace_(workspace), info_(info) {}

template <typename T>
Matrix<T> GramFactor<T>::matrix(const Tiles& tiles) const {
  return {tiles, context_.comm.rank(), n(), factor_, workspace_.Get(space_.overflow)};
}

template <typename T>
Status GramFactor<T>::Prepare(T* memory) {
  factor_ = memory;
  return ReservePotrf(context_.device, matrix(space_.factored));
}

template <typename T>
Status GramFactor<T>::Factor(T* gram, bool for_vectors) {
  factor_ = gram;
  T* panels = workspace_.Get(space_.panels);
  if (!alone()) {
    JAXMG_RETURN_IF_ERROR(ToBlockCyclic(context_, matrix(space_.tiles), Region::kLower, panels));
  }
  JAXMG_RETURN_IF_ERROR(Potrf(context_, Precision::kHighest, matrix(space_.factored),
                              RightHandSides<T>{}, panels, info_, static_cast<Real<T>*>(nullptr)));
  if (!for_vectors) return Status::Ok();
  return InvertDiagonals<T>(context_, matrix(space_.tiles),
                            {space_.order, workspace_.Get(space_.inverses)});
}

template <typename T>
Status GramFactor<T>::Solve(int64_t columns, T* x, T* turned) {
  Blas<T>& blas = context_.device.template blas<T>();
  if (alone()) {
    for (const Op op : {Op::kNone, Op::kConjTrans}) {
      JAXMG_RETURN_IF_ERROR(
          blas.Trsm(Stream::kMain, Side::kLeft, op, n(), columns, factor_, n(), x, n()));
    }
    return Status::Ok();
  }
  const int64_t ld = std::max<int64_t>(columns, 1);
  JAXMG_RETURN_IF_ERROR(blas.ConjTranspose(Stream::kMain, n(), columns, x, n(), turned, ld));
  for (const Op op : {Op::kConjTrans, Op::kNone}) {
    JAXMG_RETURN_IF_ERROR(SolveRows(context_, matrix(space_.tiles), op, columns, turned,
                                    workspace_.Get(space_.panels)));
  }
  return blas.ConjTranspose(Stream::kMain, columns, n(), turned, ld, x, n());
}

template <typename T>
Status GramFactor<T>::Invert(int64_t columns, T* inverse, T* turned) {
  Blas<T>& blas = context_.device.template blas<T>();
  if (alone()) return blas.Trtri(Stream::kMain, n(), factor_, n(), inverse, n());
  // The rows of I that are this rank's, times L^-H, are this rank's rows of L^-H.
  const int64_t ld = std::max<int64_t>(columns, 1);
  const int64_t begin = std::min(context_.comm.rank() * space_.tiles.block(), n());
  JAXMG_RETURN_IF_ERROR(blas.SetZero(Stream::kMain, columns, n(), turned, ld));
  JAXMG_RETURN_IF_ERROR(blas.SetIdentity(Stream::kMain, columns, turned + begin * ld, ld));
  JAXMG_RETURN_IF_ERROR(SolveRows(context_, matrix(space_.tiles), Op::kConjTrans, columns, turned,
                                  workspace_.Get(space_.panels)));
  return blas.ConjTranspose(Stream::kMain, columns, n(), turned, ld, inverse, n());
}

template <typename T>
Status GramFactor<T>::SolveVector(T* v) {
  const RightHandSides<T> b = {1, v, workspace_.Get(space_.local)};
  const Inverses<T> inverses = {space_.order, workspace_.Get(space_.inverses)};
  const Matrix<T> factor = matrix(space_.tiles);
  JAXMG_RETURN_IF_ERROR(
      ForwardSubstitution(context_, factor, b, workspace_.Get(space_.sums), inverses));
  return BackSubstitution(context_, factor, b, inverses);
}

#define JAXMG_INSTANTIATE(T)          \
  template struct GramFactorSpace<T>; \
  template class GramFactor<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
