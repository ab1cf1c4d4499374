#include "xla_ffi/engine/svd/whole_svd.h"

#include <complex>

#include "xla_ffi/engine/core/for_all.h"

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
    if (frame.works() && count < n) {  // the decomposition has overwritten the gathered matrix
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

template <typename T>
Status WholeSvdForAll(const RankContext& alone, const std::vector<WholeSvdProblem<T>>& problems) {
  using Problem = WholeSvdProblem<T>;
  Device& device = alone.device;
  OperandOfAll<T> all(OfAll(problems, [](const Problem& problem) { return problem.operand; }));
  const SingularVectors<T>& first = problems[0].wanted;
  SingularVectors<T> whole = first;
  const int64_t n = all.operand().n, block = problems[0].operand.block;
  const int64_t count = first.subset.count();
  const bool part_of_u = problems[0].vectors && first.u != nullptr;
  std::unique_ptr<Buffer> memory;
  const int64_t elements = (problems[0].vectors ? n * count : 0) + (part_of_u ? n * count : 0);
  JAXMG_RETURN_IF_ERROR(device.Allocate(elements * sizeof(T), &memory));
  whole.vh = memory->template as<T>();
  whole.vh_block = count;
  whole.u = part_of_u ? whole.vh + n * count : nullptr;
  JAXMG_RETURN_IF_ERROR(all.Take(device));
  JAXMG_RETURN_IF_ERROR(WholeSvdRoutine<T>(alone, all.operand(), problems[0].vectors, whole));
  JAXMG_RETURN_IF_ERROR(all.ReturnStatus(device));
  JAXMG_RETURN_IF_ERROR(CopyToAll<Real<T>>(
      device, count, OfAll(problems, [](const Problem& problem) { return problem.wanted.s; })));
  if (!problems[0].vectors) return Status::Ok();
  const BlocksOfAll<T> rows_of_u = {count, n, block}, rows_of_vh = {n, count, first.vh_block};
  JAXMG_RETURN_IF_ERROR(
      part_of_u ? rows_of_u.Scatter(
                      device, whole.u,
                      OfAll(problems, [](const Problem& problem) { return problem.wanted.u; }))
                : all.Return(device));
  return rows_of_vh.Scatter(
      device, whole.vh, OfAll(problems, [](const Problem& problem) { return problem.wanted.vh; }));
}

#define JAXMG_INSTANTIATE(T)                                                   \
  template struct WholeSvdSpace<T>;                                            \
  template Status WholeSvdRoutine(const RankContext&, const Operand<T>&, bool, \
                                  const SingularVectors<T>&);                  \
  template Status WholeSvdForAll(const RankContext&, const std::vector<WholeSvdProblem<T>>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
