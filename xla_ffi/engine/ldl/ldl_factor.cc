#include "xla_ffi/engine/ldl/ldl_factor.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/lu/gesv.h"
#include "xla_ffi/engine/lu/getrs.h"

namespace jaxmg {
namespace {

Tiles TilesOfLdl(const Sizes& sizes, const Ranks& ranks) {
  return LdlTiles(sizes.n, ranks.size, sizes.tile > 0 ? sizes.tile : ranks.tuning.ldl.tile);
}

template <typename T>
BlockBand<T> BandOf(const Tiles& tiles, const LdlParts<T>& parts) {
  return {tiles, 1, parts.band};
}
template <typename T>
BlockBand<T> BandLuOf(const Tiles& tiles, const LdlParts<T>& parts) {
  return {tiles, 2, parts.band_lu};
}

// y := x^T, x m x n; or x^H if that serves as well: for a Hermitian matrix, whose transpose is its
// conjugate.
template <typename T>
Status Turn(const RankContext& context, bool hermitian, int64_t m, int64_t n, const T* x, T* y) {
  Blas<T>& blas = context.device.template blas<T>();
  JAXMG_RETURN_IF_ERROR(blas.ConjTranspose(Stream::kMain, m, n, x, m, y, n));
  if (hermitian || !kIsComplex<T>) return Status::Ok();
  return blas.Conjugate(Stream::kMain, n, m, y, n);
}

}  // namespace

template <typename T>
LdlFactorSpace<T>::LdlFactorSpace(const Sizes& sizes, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesOfLdl(sizes, ranks)),
      precision(LuPrecision<T>(sizes.precision, sizes.n, ranks.tuning)),
      order(this->pieces.template Reserve<int32_t>(sizes.n)),
      panel_info(this->pieces.template Reserve<int32_t>(1)) {
  this->panels = this->Reserve(AasenWorkspace(this->tiles).elements());
  this->split_bytes = SplitBytes<T>(this->tiles, sizes.n, precision);
}

template <typename T>
LdlSolveSpace<T>::LdlSolveSpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesOfLdl(sizes, ranks)),
      local(this->Reserve(LocalInPlace(this->tiles, nrhs))),
      sums(this->Reserve(nrhs * sizes.n)),
      turned(this->Reserve(nrhs * sizes.n)) {}

template <typename T>
LdlInertiaSpace<T>::LdlInertiaSpace(const Sizes& sizes, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesOfLdl(sizes, ranks)) {
  constexpr int64_t kNumbers = 4;  // the results, in the bytes of at least three int32
  if (ranks.rank == kRoot) {
    this->host_bytes =
        (3 * this->tiles.width() * sizes.n + kNumbers) * static_cast<int64_t>(sizeof(T));
  }
}

template <typename T>
Status LdlFactorRoutine(const RankContext& context, const Operand<T>& operand, bool hermitian,
                        const Columns<T>& columns, const int32_t* order, const LdlParts<T>& parts,
                        Real<T>* log_abs, T* sign) {
  const LdlFactorSpace<T> space(operand.sizes(), RanksOf(context));
  Frame<T> frame(context, operand, space);
  const int64_t n = operand.n;
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    return context.device.ReserveHandles();
  };
  auto work = [&]() -> Status {
    const Outcome<T>& outcome = frame.outcome();
    const Tiles& tiles = frame.tiles();
    int32_t* const own_order = frame.at(space.order);
    JAXMG_RETURN_IF_ERROR(CopyIfApart(context.device, order, own_order, n));
    const BlockBand<T> band = BandOf(tiles, parts), lu = BandLuOf(tiles, parts);
    // Every rank has T, so each factors it; one of them counts the determinant.
    Determinant<T> determinant;
    if (context.comm.rank() == kRoot) determinant = {outcome.log_det(), outcome.sign()};
    const BandLu<T> factors(band, lu, parts.band_pivots, outcome.info(), determinant);
    JAXMG_RETURN_IF_ERROR(Aasen(context, space.precision, hermitian, columns, frame.matrix(), band,
                                factors, parts.pivots, own_order, frame.at(space.panel_info),
                                frame.panels()));
    JAXMG_RETURN_IF_ERROR(outcome.ConcludeDeterminant(log_abs, sign, nullptr, 0));
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfNegative(n, operand.block, operand.a));
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfNegative(band.ld(), n, band.data));
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfNegative(lu.ld(), n, lu.data));
    return WaitAllSent(context.comm, Stream::kMain);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status LdlSolveRoutine(const RankContext& context, const Operand<T>& factor, bool hermitian,
                       const LdlParts<T>& parts, Op op, int64_t nrhs, T* x, const T* source) {
  const LdlSolveSpace<T> space(factor.sizes(), nrhs, RanksOf(context));
  Frame<T> frame(context, factor, space);
  const int64_t n = factor.n;
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    JAXMG_RETURN_IF_ERROR(context.device.ReserveHandles());
    return CopyIfApart(context.device, source, x, nrhs * n);
  };
  // In row form X M = B, so X = B P^T L^-* T^-1 L^-1 P. The adjoint of a symmetric matrix is its
  // conjugate.
  auto work = [&]() -> Status {
    if (nrhs == 0 || n == 0) return Status::Ok();
    AnnounceWork(context.device, 2 * SolveWork(n, nrhs));
    const Matrix<T> matrix = frame.matrix();
    const Tiles& tiles = matrix.tiles;
    const RightHandSides<T> b = {nrhs, x, frame.AtOr(space.local, x)};
    auto swap = [&](Order order) {
      return context.device.template lu<T>().SwapColumns(Stream::kMain, order, nrhs, x, nrhs, n,
                                                         parts.pivots);
    };
    auto conjugate = [&]() -> Status {
      if (hermitian || !kIsComplex<T> || op != Op::kConjTrans) return Status::Ok();
      return context.device.template blas<T>().Conjugate(Stream::kMain, nrhs, n, x, nrhs);
    };
    const Op adjoint = hermitian ? Op::kConjTrans : Op::kTrans;
    T* const turned = frame.at(space.turned);
    JAXMG_RETURN_IF_ERROR(conjugate());
    JAXMG_RETURN_IF_ERROR(swap(Order::kForward));
    JAXMG_RETURN_IF_ERROR(
        SolveWithTransposed(context, matrix, kUnitLower, adjoint, b, frame.at(space.sums)));
    JAXMG_RETURN_IF_ERROR(Turn(context, hermitian, nrhs, n, x, turned));
    JAXMG_RETURN_IF_ERROR(
        SolveBand(context, BandLuOf(tiles, parts), parts.band_pivots, nrhs, turned));
    JAXMG_RETURN_IF_ERROR(Turn(context, hermitian, n, nrhs, turned, x));
    JAXMG_RETURN_IF_ERROR(TakeLocal(context, matrix, b));
    JAXMG_RETURN_IF_ERROR(SolveWith(context, matrix, kUnitLower, b));
    JAXMG_RETURN_IF_ERROR(swap(Order::kBackward));
    JAXMG_RETURN_IF_ERROR(conjugate());
    JAXMG_RETURN_IF_ERROR(frame.outcome().SetAndKeepNegative());
    JAXMG_RETURN_IF_ERROR(frame.outcome().PoisonIfNegative(nrhs, n, x));
    return WaitAllSent(context.comm, Stream::kMain);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

template <typename T>
Status LdlInertiaRoutine(const RankContext& context, const Operand<T>& factor,
                         const LdlParts<T>& parts, int32_t* inertia) {
  const LdlInertiaSpace<T> space(factor.sizes(), RanksOf(context));
  Frame<T> frame(context, factor, space);
  Device& device = context.device;
  auto work = [&]() -> Status {
    const Bytes2D result = Block(inertia, 3, 3, 1);
    if (context.comm.rank() == kRoot) {
      const BlockBand<T> there = BandOf(frame.tiles(), parts);
      T* const numbers = static_cast<T*>(frame.host());
      const BlockBand<T> here = {there.tiles, there.above, numbers};
      const int64_t count = here.ld() * factor.n;
      if (count > 0) {
        JAXMG_RETURN_IF_ERROR(device.Copy(Stream::kMain, Block(numbers, count, count, 1),
                                          Block(there.data, count, count, 1)));
        JAXMG_RETURN_IF_ERROR(device.Synchronize());
      }
      Inertia found = {};
      JAXMG_RETURN_IF_ERROR(Guarded([&] {
        found = InertiaOf(here);
        return Status::Ok();
      }));
      auto* const words = reinterpret_cast<int32_t*>(numbers + count);
      words[0] = static_cast<int32_t>(found.positive);
      words[1] = static_cast<int32_t>(found.negative);
      words[2] = static_cast<int32_t>(found.zero);
      JAXMG_RETURN_IF_ERROR(device.Copy(Stream::kMain, result, Block(words, 3, 3, 1)));
    }
    JAXMG_RETURN_IF_ERROR(Broadcast(context.comm, Stream::kMain, kRoot, result));
    JAXMG_RETURN_IF_ERROR(WaitAllSent(context.comm, Stream::kMain));
    // Waits for the copy from host memory, which is released afterwards.
    return device.Synchronize();
  };
  return RunOnAllRanks(context.comm, [&] { return frame.Prepare(); }, work);
}

#define JAXMG_INSTANTIATE(T)                                                                       \
  template struct LdlFactorSpace<T>;                                                               \
  template struct LdlSolveSpace<T>;                                                                \
  template struct LdlInertiaSpace<T>;                                                              \
  template Status LdlFactorRoutine(const RankContext&, const Operand<T>&, bool, const Columns<T>&, \
                                   const int32_t*, const LdlParts<T>&, Real<T>*, T*);              \
  template Status LdlSolveRoutine(const RankContext&, const Operand<T>&, bool, const LdlParts<T>&, \
                                  Op, int64_t, T*, const T*);                                      \
  template Status LdlInertiaRoutine(const RankContext&, const Operand<T>&, const LdlParts<T>&,     \
                                    int32_t*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
