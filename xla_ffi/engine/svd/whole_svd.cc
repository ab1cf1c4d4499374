#include "xla_ffi/engine/svd/whole_svd.h"

#include <complex>

namespace jaxmg {

template <typename T>
WholeSvdSpace<T>::WholeSvdSpace(const Sizes& sizes, bool vectors, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, Tiles(sizes.m, sizes.m, 1, sizes.m), /*gathers=*/true) {
  const int64_t matrix = this->works && vectors ? sizes.n * sizes.n : 0;
  w = this->Reserve(matrix);
  zh = this->Reserve(matrix);
  s = this->pieces.template Reserve<Real<T>>(this->works ? sizes.n : 0);
}

namespace {

// Scatters columns of `whole` (rows x blocks.columns, on the root).
template <typename T>
Status ScatterColumns(const RankContext& context, const T* whole, const Blocks<T>& blocks) {
  return blocks.rows == 0 ? Status::Ok() : Scatter(context, whole, blocks);
}

}  // namespace

template <typename T>
Status WholeSvdRoutine(const RankContext& context, const Operand<T>& operand, bool vectors,
                       const SingularVectors<T>& wanted) {
  const WholeSvdSpace<T> space(operand.sizes(), vectors, RanksOf(context));
  Frame<T> frame(context, operand, space);
  Device& device = context.device;
  const int64_t n = operand.n, first = wanted.subset.first, count = wanted.subset.count();
  auto work = [&]() -> Status {
    const Outcome<T>& outcome = frame.outcome();
    T *const w = frame.at(space.w), *const zh = frame.at(space.zh);
    Real<T>* const s = frame.at(space.s);
    JAXMG_RETURN_IF_ERROR(frame.Take(Region::kFull));
    if (frame.works()) {
      const WorksAlone alone(device, true);
      const Range range(device, Stream::kMain, "gesvd", 0);
      JAXMG_RETURN_IF_ERROR(device.solver<T>().Gesvd(Stream::kMain, vectors, n, n, frame.gathered(),
                                                     n, s, w, n, zh, n, outcome.info()));
      JAXMG_RETURN_IF_ERROR(device.Copy(Stream::kMain, Block(wanted.s, count, count, 1),
                                        Block(s + first, count, count, 1)));
    }
    JAXMG_RETURN_IF_ERROR(outcome.Set());
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(count, 1, wanted.s));
    JAXMG_RETURN_IF_ERROR(outcome.Spread(wanted.s, count));
    if (!vectors) return WaitAllSent(context.comm, Stream::kMain);
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(n, n, w));
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(n, n, zh));
    T* rows_of_u = zh;
    if (frame.works() && count < n) {  // the gathered matrix has been used up
      rows_of_u = frame.gathered();
      JAXMG_RETURN_IF_ERROR(device.Copy(Stream::kMain, Block(rows_of_u, count, count, n),
                                        Block(zh + first, n, count, n)));
    }
    T* const u = wanted.u == nullptr ? operand.a : wanted.u;
    JAXMG_RETURN_IF_ERROR(ScatterColumns<T>(context, rows_of_u, {count, n, operand.block, u}));
    JAXMG_RETURN_IF_ERROR(
        ScatterColumns<T>(context, w + first * n, {n, count, wanted.vh_block, wanted.vh}));
    return WaitAllSent(context.comm, Stream::kMain);
  };
  return RunOnAllRanks(context.comm, [&] { return frame.Prepare(); }, work);
}

#define JAXMG_INSTANTIATE(T)                                                   \
  template struct WholeSvdSpace<T>;                                            \
  template Status WholeSvdRoutine(const RankContext&, const Operand<T>&, bool, \
                                  const SingularVectors<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
