#include "xla_ffi/engine/svd/polar.h"

#include <algorithm>
#include <cmath>

#include "xla_ffi/engine/core/host_copy.h"

namespace jaxmg {

template <typename T>
PolarSteps<T>::PolarSteps(Pieces& pieces, const Sizes& sizes, bool hermitian, bool doubled,
                          const Ranks& ranks) {
  const int64_t n = sizes.n, elements = n * sizes.block;
  const RowBlocks<T> shape = {n, n, sizes.block, nullptr};
  doubled = doubled && !std::is_same_v<T, InDouble<T>>;
  if (doubled) {
    x_in_double = pieces.Reserve<InDouble<T>>(elements);
    in_double.emplace(pieces, sizes, ranks, true);
    host_bytes = in_double->host_bytes;
  } else {
    if (hermitian) x = pieces.Reserve<T>(elements);
    own.emplace(pieces, sizes, ranks, !hermitian);
    host_bytes = own->host_bytes;
  }
  if (hermitian) {
    stage = pieces.Reserve<T>(std::max(AdjointTimesRowsSpace(ranks, shape, shape, shape),
                                       AdjointOfSpace(ranks, shape, shape)));
  }
  // the largest entries of the rows, of this rank, and of each rank
  largest = pieces.Reserve<Real<T>>(n + 1 + ranks.size);
}

template <typename T>
Polar<T>::Polar(const RankContext& context, const Sizes& sizes, const PolarSteps<T>& space,
                const Workspace& workspace, T* a, T* h, void* host)
    : context_(context),
      sizes_(sizes),
      space_(space),
      workspace_(workspace),
      a_(a),
      h_(h),
      host_(host) {}

template <typename T>
int64_t Polar<T>::rows() const {
  const int64_t begin = std::min(context_.comm.rank() * sizes_.block, sizes_.n);
  return std::min(begin + sizes_.block, sizes_.n) - begin;
}

// If the dtypes are equal, the memory for H is also the iteration's memory for X^H X.
template <typename T>
template <typename W>
Qdwh<W> Polar<T>::IterationOf(const QdwhSpace<W>& space) const {
  W* gram = workspace_.Get(space.gram);
  if constexpr (std::is_same_v<T, W>) gram = h_ != nullptr ? h_ : gram;
  return {context_, sizes_, space, workspace_, gram, host_};
}

template <typename T>
Status Polar<T>::Prepare() const {
  return space_.own ? IterationOf(*space_.own).Prepare() : IterationOf(*space_.in_double).Prepare();
}

template <typename T>
Status Polar<T>::FindExponent(int* exponent, bool* finite) const {
  using R = Real<T>;
  const int64_t n = sizes_.n, ranks = context_.comm.size();
  R *of_rows = workspace_.Get(space_.largest), *mine = of_rows + n, *all = mine + 1;
  MatrixKernels<R>& reals = context_.device.template matrix<R>();
  constexpr int64_t kWords = sizeof(R) / sizeof(int32_t);
  JAXMG_RETURN_IF_ERROR(
      device().FillInt32(Stream::kMain, reinterpret_cast<int32_t*>(of_rows), (n + 1) * kWords, 0));
  JAXMG_RETURN_IF_ERROR(matrix().LargestOfRows(Stream::kMain, n, rows(), a_, n, of_rows));
  JAXMG_RETURN_IF_ERROR(reals.LargestOfRows(Stream::kMain, 1, n, of_rows, 1, mine));
  JAXMG_RETURN_IF_ERROR(AllGather(context_.comm, device(), Stream::kMain, mine, all, sizeof(R)));
  JAXMG_RETURN_IF_ERROR(CopyToHost(device(), Block(static_cast<R*>(host_), ranks, ranks, 1),
                                   Block(all, ranks, ranks, 1)));
  const R* terms = static_cast<const R*>(host_);
  *finite = std::all_of(terms, terms + ranks, [](R x) { return std::isfinite(x); });
  *exponent = 0;
  if (*finite) std::frexp(*std::max_element(terms, terms + ranks), exponent);
  return Status::Ok();
}

template <typename T>
Status Polar<T>::Compute(int* exponent, bool* finite) const {
  JAXMG_RETURN_IF_ERROR(FindExponent(exponent, finite));
  if (!*finite) return Status::Ok();
  if (*exponent != 0) {
    JAXMG_RETURN_IF_ERROR(
        matrix().TimesPowerOfTwo(Stream::kMain, sizes_.n, rows(), -*exponent, a_, sizes_.n));
  }
  return space_.own ? Iterate(finite) : IterateInDouble(finite);
}

template <typename T>
Status Polar<T>::Iterate(bool* finite) const {
  const int64_t n = sizes_.n;
  T* x = h_ != nullptr ? workspace_.Get(space_.x) : a_;
  if (x != a_) {
    JAXMG_RETURN_IF_ERROR(
        device().CopyWithin(Stream::kMain, Block(x, n, n, rows()), Block(a_, n, n, rows())));
  }
  Qdwh<T> iteration = IterationOf(*space_.own);
  JAXMG_RETURN_IF_ERROR(iteration.Run(&x, finite));
  if (!*finite) return Status::Ok();
  if (h_ != nullptr) JAXMG_RETURN_IF_ERROR(FormHermitian(x, iteration.free(0)));
  if (x == a_) return Status::Ok();
  return device().CopyWithin(Stream::kMain, Block(a_, n, n, rows()), Block(x, n, n, rows()));
}

template <typename T>
Status Polar<T>::IterateInDouble(bool* finite) const {
  if constexpr (std::is_same_v<T, InDouble<T>>) {
    return Error(Code::kInternal, "polar: there is no higher precision than double");
  } else {
    using W = InDouble<T>;
    const int64_t n = sizes_.n;
    W* x = workspace_.Get(space_.x_in_double);
    JAXMG_RETURN_IF_ERROR(matrix().Convert(Stream::kMain, n, rows(), a_, n, x, n));
    Qdwh<W> iteration = IterationOf(*space_.in_double);
    JAXMG_RETURN_IF_ERROR(iteration.Run(&x, finite));
    if (!*finite) return Status::Ok();
    auto round = [&](T* u) {
      return context_.device.template matrix<W>().Convert(Stream::kMain, n, rows(), x, n, u, n);
    };
    if (h_ == nullptr) return round(a_);
    T *u = reinterpret_cast<T*>(iteration.free(0)),
      *scratch = reinterpret_cast<T*>(iteration.free(1));
    JAXMG_RETURN_IF_ERROR(round(u));
    JAXMG_RETURN_IF_ERROR(FormHermitian(u, scratch));
    return device().CopyWithin(Stream::kMain, Block(a_, n, n, rows()), Block(u, n, n, rows()));
  }
}

template <typename T>
Status Polar<T>::FormHermitian(T* u, T* scratch) const {
  const int64_t n = sizes_.n;
  auto rows_of = [&](T* data) { return RowBlocks<T>{n, n, sizes_.block, data}; };
  T* space = workspace_.Get(space_.stage);
  JAXMG_RETURN_IF_ERROR(
      AdjointTimesRows<T>(context_, {}, rows_of(u), rows_of(a_), rows_of(h_), space));
  if (alone()) return matrix().MakeHermitian(Stream::kMain, n, h_, n);
  JAXMG_RETURN_IF_ERROR(
      AdjointOf<T>(context_, Op::kConjTrans, rows_of(h_), rows_of(scratch), space));
  return matrix().Combine(Stream::kMain, n, rows(), Real<T>(0.5), scratch, n, Real<T>(0.5), h_, n);
}

template <typename T>
PolarSpace<T>::PolarSpace(const Sizes& sizes, bool hermitian, bool in_double, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesOf(sizes, ranks.size, ranks.tuning)),
      steps(this->pieces, sizes, hermitian, in_double, ranks) {
  this->host_bytes = steps.host_bytes;
}

template <typename T>
Status PolarRoutine(const RankContext& context, const Operand<T>& operand, bool in_double, T* h) {
  const PolarSpace<T> space(operand.sizes(), h != nullptr, in_double, RanksOf(context));
  Frame<T> frame(context, operand, space);
  Device& device = context.device;
  const int64_t n = operand.n, block = operand.block;
  auto polar = [&] {
    return Polar<T>(context, operand.sizes(), space.steps, frame.workspace(), operand.a, h,
                    frame.host());
  };
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(frame.Prepare());
    JAXMG_RETURN_IF_ERROR(device.ReserveHandles());
    return polar().Prepare();
  };
  auto work = [&]() -> Status {
    const Outcome<T>& outcome = frame.outcome();
    int exponent = 0;
    bool finite = true;
    if (n > 0) JAXMG_RETURN_IF_ERROR(polar().Compute(&exponent, &finite));
    if (!finite) {
      JAXMG_RETURN_IF_ERROR(device.FillInt32(Stream::kMain, outcome.info(), 1, kNotFinite));
    } else if (h != nullptr && exponent != 0) {
      JAXMG_RETURN_IF_ERROR(
          device.template matrix<T>().TimesPowerOfTwo(Stream::kMain, n, block, exponent, h, n));
    }
    JAXMG_RETURN_IF_ERROR(outcome.Set());
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(n, block, operand.a));
    if (h != nullptr) JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(n, block, h));
    return WaitAllSent(context.comm, Stream::kMain);
  };
  return RunOnAllRanks(context.comm, prepare, work);
}

#define JAXMG_INSTANTIATE(T)     \
  template struct PolarSteps<T>; \
  template class Polar<T>;       \
  template struct PolarSpace<T>; \
  template Status PolarRoutine(const RankContext&, const Operand<T>&, bool, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
