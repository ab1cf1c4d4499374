#include "xla_ffi/engine/qr/whole_qr.h"

#include <complex>

#include "xla_ffi/engine/core/for_all.h"

namespace jaxmg {
namespace {

constexpr Stream kMain = Stream::kMain;

int64_t RowsOf(const TallSizes& sizes, int ranks) { return sizes.block * ranks; }

}  // namespace

template <typename T>
WholeQrSpace<T>::WholeQrSpace(const TallSizes& s, const Ranks& ranks)
    : RoutineSpace<T>({RowsOf(s, ranks.size), s.n, s.block}, ranks,
                      Tiles(RowsOf(s, ranks.size), RowsOf(s, ranks.size), 1, s.n),
                      /*gathers=*/true) {
  turned = this->Reserve(this->works ? RowsOf(s, ranks.size) * s.n : 0);
  r = this->Reserve(this->works ? s.n * s.n : 0);
  signs = this->pieces.template Reserve<Real<T>>(this->works ? s.n : 0);
}

template <typename T>
Status WholeQrRoutine(const RankContext& context, const TallQrProblem<T>& problem) {
  const TallSizes& sizes = problem.sizes;
  const int ranks = context.comm.size();
  const int64_t n = sizes.n, m = RowsOf(sizes, ranks);
  const WholeQrSpace<T> space(sizes, RanksOf(context));
  // The rows are only read.
  const Operand<T> operand = {m, n, sizes.block, 0, const_cast<T*>(problem.a), nullptr};
  Frame<T> frame(context, operand, space);
  Device& device = context.device;
  const bool with_q = problem.q != nullptr;
  // Computes R with a nonnegative diagonal, and the matching Q. BLAS reads A's rows as columns, so
  // the factored matrix is conj(A) = conj(Q) conj(R).
  auto factor = [&]() -> Status {
    const WorksAlone alone(device, true);
    const Range range(device, kMain, "qr", 0);
    Blas<T>& blas = device.blas<T>();
    MatrixKernels<T>& kernels = device.matrix<T>();
    T *const turned = frame.at(space.turned), *const r = frame.at(space.r);
    Real<T>* const signs = frame.at(space.signs);
    JAXMG_RETURN_IF_ERROR(blas.ConjTranspose(kMain, n, m, frame.gathered(), n, turned, m));
    JAXMG_RETURN_IF_ERROR(
        device.solver<T>().Qr(kMain, with_q, m, n, turned, m, r, n, frame.outcome().info()));
    JAXMG_RETURN_IF_ERROR(kernels.SignsOfDiagonal(kMain, n, r, n, signs));
    JAXMG_RETURN_IF_ERROR(
        kernels.ScaleRowsAndColumns(kMain, /*divide=*/false, n, n, signs, nullptr, r, n));
    JAXMG_RETURN_IF_ERROR(blas.ConjTranspose(kMain, n, n, r, n, problem.r, n));
    if (!with_q) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(
        kernels.ScaleRowsAndColumns(kMain, /*divide=*/false, m, n, nullptr, signs, turned, m));
    return blas.ConjTranspose(kMain, m, n, turned, m, frame.gathered(), n);
  };
  auto work = [&]() -> Status {
    const Outcome<T>& outcome = frame.outcome();
    JAXMG_RETURN_IF_ERROR(device.FillInt32(kMain, problem.power, 1, 0));
    JAXMG_RETURN_IF_ERROR(frame.Take(Region::kFull));
    if (frame.works()) JAXMG_RETURN_IF_ERROR(factor());
    JAXMG_RETURN_IF_ERROR(outcome.Set());
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(n, n, problem.r));
    if (frame.works()) {
      JAXMG_RETURN_IF_ERROR(
          device.matrix<T>().ClearTriangle(kMain, Uplo::kUpper, n, n, problem.r, n));
    }
    JAXMG_RETURN_IF_ERROR(outcome.Spread(problem.r, n * n));
    if (with_q) {
      JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(n, m, frame.gathered()));
      JAXMG_RETURN_IF_ERROR(Scatter<T>(context, frame.gathered(), {n, m, sizes.block, problem.q}));
    }
    return WaitAllSent(context.comm, kMain);
  };
  return RunOnAllRanks(context.comm, [&] { return frame.Prepare(); }, work);
}

template <typename T>
Status WholeQrForAll(const RankContext& alone, const std::vector<TallQrProblem<T>>& problems) {
  using Problem = TallQrProblem<T>;
  Device& device = alone.device;
  Problem whole = problems[0];
  const int64_t n = whole.sizes.n, m = RowsOf(whole.sizes, static_cast<int>(problems.size()));
  const BlocksOfAll<T> rows = {n, m, whole.sizes.block};
  std::unique_ptr<Buffer> memory;
  JAXMG_RETURN_IF_ERROR(device.Allocate(m * n * sizeof(T), &memory));
  // The rows of Q replace the rows of A, because the routine works on a copy of A.
  T* const a = memory->template as<T>();
  whole.sizes.block = m;
  whole.a = a;
  whole.q = whole.q != nullptr ? a : nullptr;
  JAXMG_RETURN_IF_ERROR(
      rows.Gather(device, OfAll(problems, [](const Problem& problem) { return problem.a; }), a));
  JAXMG_RETURN_IF_ERROR(WholeQrRoutine<T>(alone, whole));
  if (whole.q != nullptr) {
    JAXMG_RETURN_IF_ERROR(
        rows.Scatter(device, a, OfAll(problems, [](const Problem& problem) { return problem.q; })));
  }
  JAXMG_RETURN_IF_ERROR(CopyToAll<T>(
      device, n * n, OfAll(problems, [](const Problem& problem) { return problem.r; })));
  return CopyToAll<int32_t>(device, 1,
                            OfAll(problems, [](const Problem& problem) { return problem.power; }));
}

#define JAXMG_INSTANTIATE(T)                                                   \
  template struct WholeQrSpace<T>;                                             \
  template Status WholeQrRoutine(const RankContext&, const TallQrProblem<T>&); \
  template Status WholeQrForAll(const RankContext&, const std::vector<TallQrProblem<T>>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
