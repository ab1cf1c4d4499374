#include "xla_ffi/engine/products/product.h"

#include <complex>

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/core/workspace.h"

namespace jaxmg {

template <typename T>
int64_t ProductSpace(const Ranks& ranks, const Product<T>& product) {
  const Product<T>& p = product;
  switch (p.kind) {
    case ProductKind::kRowsTimesRows:
      return RowsTimesRowsSpace(ranks, p.y);
    case ProductKind::kRowsTimesAdjoint:
      return RowsTimesAdjointSpace(ranks, p.y);
    case ProductKind::kAdjointTimesRows:
      return AdjointTimesRowsSpace(ranks, p.x, p.y, p.c);
    case ProductKind::kGram:
      return GramSpace(ranks, p.x, p.c);
    default:
      return AdjointOfSpace(ranks, p.x, p.c);
  }
}

template <typename T>
Status ProductRoutine(const RankContext& context, const Product<T>& product) {
  Workspace space;
  const Piece<T> piece = space.Reserve<T>(ProductSpace(RanksOf(context), product));
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(context.device.ReserveHandles());
    return space.Allocate(context.device);
  };
  auto work = [&, &p = product] {
    T* workspace = space.Get(piece);
    switch (p.kind) {
      case ProductKind::kRowsTimesRows:
        return RowsTimesRows(context, p.terms, p.x, p.y, p.c, workspace, p.factor);
      case ProductKind::kRowsTimesAdjoint:
        return RowsTimesAdjoint(context, p.terms, p.x, p.y, p.c, workspace);
      case ProductKind::kAdjointTimesRows:
        return AdjointTimesRows(context, p.terms, p.x, p.y, p.c, workspace);
      case ProductKind::kGram:
        return Gram(context, p.terms, p.x, p.c, workspace);
      default:
        return AdjointOf(context, p.terms.adjoint, p.x, p.c, workspace);
    }
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T)                                      \
  template int64_t ProductSpace(const Ranks&, const Product<T>&); \
  template Status ProductRoutine(const RankContext&, const Product<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
