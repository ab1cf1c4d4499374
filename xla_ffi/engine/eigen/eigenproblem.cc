#include "xla_ffi/engine/eigen/eigenproblem.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/eigen/eigen.h"
#include "xla_ffi/engine/eigen/syevd.h"

namespace jaxmg {
namespace {

template <typename T>
bool Spreads(const Sizes& sizes, bool vectors, const Ranks& ranks) {
  const Tuning& tuning = ranks.tuning;
  const int64_t alone = vectors ? tuning.eigen.stages_alone : tuning.eigen.stages_alone_values;
  const int64_t from = ranks.size == 1 ? alone
                       : kIsComplex<T> ? tuning.eigen.spread_complex
                       : vectors       ? tuning.eigen.spread
                                       : tuning.eigen.spread_values;
  return from > 0 && sizes.n >= from;
}

template <typename T>
Tiles TilesToDiagonalize(const Sizes& sizes, bool vectors, const Ranks& ranks) {
  if (!Spreads<T>(sizes, vectors, ranks)) return TilesOf(sizes, ranks.size, ranks.tuning);
  return Tiles(sizes.m, sizes.block, ranks.size,
               BandWidth<T>(sizes.block, sizes.tile, ranks.tuning));
}

}  // namespace

template <typename T>
EigenproblemSpace<T>::EigenproblemSpace(const Sizes& sizes, bool vectors, const Subset& subset,
                                        const Ranks& ranks, int64_t least)
    : RoutineSpace<T>(sizes, ranks, TilesToDiagonalize<T>(sizes, vectors, ranks)),
      spreads(Spreads<T>(sizes, vectors, ranks)) {
  const int64_t n = sizes.n;
  this->ReservePanels();
  this->ReserveOverflow();
  if (spreads) {
    const EigenSpace<T> space(this->tiles, ranks.rank, vectors, subset, ranks.tuning);
    least = std::max<int64_t>(least, space.elements);
    this->host_bytes = space.host_bytes;
  } else if (ranks.rank == kRoot) {
    const Tuning& tuning = ranks.tuning;
    const double matrices =
        vectors ? tuning.eigen.syevd_matrices : tuning.eigen.syevd_value_matrices;
    this->solver = static_cast<int64_t>(matrices * static_cast<double>(n) * n);
    this->gathered = this->Reserve(std::max(n * n, least));
  }
  // The two can share memory: the matrix is gathered when the routine no longer needs its memory.
  eigen = this->gathered.elements > 0 ? this->gathered : this->Reserve(least);
}

template <typename T>
Status TakeSubset(Device& device, const Operand<T>& operand, const Subset& subset, T* v) {
  if (v == nullptr || v == operand.a) return Status::Ok();
  return device.Copy(Stream::kMain, Block(v, subset.count(), subset.count(), operand.block),
                     Block(operand.a + subset.first, operand.n, subset.count(), operand.block));
}

template <typename T>
Status Eigenproblem<T>::Prepare() {
  JAXMG_RETURN_IF_ERROR(frame_.Prepare());
  if (space_.spreads) return context_.device.ReserveHandles();
  if (context_.comm.rank() != kRoot) return Status::Ok();
  const int64_t n = operand_.n;
  return context_.device.solver<T>().ReserveSyevd(Stream::kMain, v_ != nullptr, n,
                                                  frame_.gathered(), n, w_);
}

template <typename T>
Status Eigenproblem<T>::Solve() {
  const Outcome<T>& outcome = frame_.outcome();
  if (space_.spreads) {
    return SpreadEigen(context_, frame_.matrix(), subset_, w_, v_, frame_.panels(), workspace(),
                       frame_.host(), outcome);
  }
  const int64_t columns = v_ != nullptr ? subset_.count() : 0;
  Device& device = context_.device;
  Stage stage(
      device, "diagonalize", 1,
      EigenWork(operand_.n, device.tuning().eigen.band_width, context_.comm.size(), columns));
  JAXMG_RETURN_IF_ERROR(Syevd(context_, frame_.matrix(), v_ != nullptr, frame_.gathered(),
                              frame_.panels(), w_, outcome.info()));
  stage.Done(Stream::kMain, 1);
  JAXMG_RETURN_IF_ERROR(outcome.Set());
  return TakeSubset(device, operand_, subset_, v_);
}

template <typename T>
Status Eigenproblem<T>::PoisonIfFailed() const {
  const Outcome<T>& outcome = frame_.outcome();
  JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(operand_.n, 1, w_));
  if (v_ == nullptr) return Status::Ok();
  return outcome.PoisonIfFailed(subset_.count(), operand_.block, v_);
}

namespace {

template <typename T>
Status Eigen(const RankContext& context, const Operand<T>& operand, const Subset& subset,
             Real<T>* w, T* v) {
  Eigenproblem<T> problem(context, operand, subset, w, v);
  auto work = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(problem.Solve());
    return problem.PoisonIfFailed();
  };
  return RunOnAllRanks(context.comm, [&] { return problem.Prepare(); }, work);
}

}  // namespace

template <typename T>
Status SyevdRoutine(const RankContext& context, const Operand<T>& operand, bool vectors,
                    Real<T>* w) {
  return Eigen(context, operand, {0, operand.n}, w, vectors ? operand.a : nullptr);
}

template <typename T>
Status SyevxRoutine(const RankContext& context, const Operand<T>& operand, const Subset& subset,
                    Real<T>* w, T* v) {
  return Eigen(context, operand, subset, w, v);
}

#define JAXMG_INSTANTIATE(T)                                                           \
  template Status TakeSubset(Device&, const Operand<T>&, const Subset&, T*);           \
  template struct EigenproblemSpace<T>;                                                \
  template class Eigenproblem<T>;                                                      \
  template Status SyevdRoutine(const RankContext&, const Operand<T>&, bool, Real<T>*); \
  template Status SyevxRoutine(const RankContext&, const Operand<T>&, const Subset&, Real<T>*, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
