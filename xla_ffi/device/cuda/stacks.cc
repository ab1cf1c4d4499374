#include "xla_ffi/device/cuda/stacks.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/device/cuda/device.h"

namespace jaxmg {

template <typename T>
Status CudaStacks<T>::SolveTridiagonal(Stream stream, int64_t count, int64_t n, const R* d,
                                       const R* e, R* w, R* v) {
  const int64_t blocks = (count * kMostQl + kStackThreads - 1) / kStackThreads;
  return device_.LaunchBlocks(Kernel::kSolveTridiagonal, CudaType<R>::kLetter, stream, blocks,
                              kStackThreads, count, static_cast<int>(n), d, e, w, v);
}

template <typename T>
Status CudaStacks<T>::Merge(Stream stream, const StackedMerges<R>& merges,
                            const MergedPairs<R>& pairs) {
  constexpr char kLetter = CudaType<R>::kLetter;
  const int64_t k = merges.k, poles = merges.count * k;
  if (poles == 0) return Status::Ok();
  void* space = nullptr;
  JAXMG_RETURN_IF_ERROR(device_.Scratch(stream, poles * (7 * sizeof(R) + sizeof(int32_t)), &space));
  R* const high = static_cast<R*>(space);
  R *const low = high + poles, *const z = low + poles;
  R *const origin_high = z + poles, *const origin_low = origin_high + poles;
  R *const tau = origin_low + poles, *const refined = tau + poles;
  auto* const places = reinterpret_cast<int32_t*>(refined + poles);
  JAXMG_RETURN_IF_ERROR(device_.LaunchElements(Kernel::kSortPoles, kLetter, stream, poles,
                                               merges.count, k, merges.gap, merges.high, merges.low,
                                               merges.z, places, high, low, z));
  JAXMG_RETURN_IF_ERROR(device_.LaunchBlocks(Kernel::kStackedRoots, kLetter, stream, poles,
                                             kStackThreads, k, high, low, z, merges.rho,
                                             origin_high, origin_low, tau));
  JAXMG_RETURN_IF_ERROR(device_.LaunchBlocks(Kernel::kRefineStackedZ, kLetter, stream, poles,
                                             kStackThreads, k, high, low, z, merges.rho,
                                             origin_high, origin_low, tau, refined));
  return device_.LaunchBlocks(Kernel::kStackedVectors, kLetter, stream, poles, kStackThreads, k,
                              places, high, low, refined, origin_high, origin_low, tau, pairs.high,
                              pairs.low, pairs.vectors);
}

template <typename T>
Status CudaStacks<T>::FactorLu(Stream stream, int64_t count, int64_t n, T* a, int32_t* pivots) {
  constexpr char kLetter = CudaType<T>::kLetter;
  if (count == 0 || n == 0) return Status::Ok();
  // The columns of a panel of all rows that shared memory has room for.
  int most = 0, width = kStackLuColumns;
  JAXMG_RETURN_IF_ERROR(device_.resources().SharedBytes(&most));
  auto bytes = [n](int columns) {
    return static_cast<int64_t>((n | 1) * columns * sizeof(T) + n * sizeof(int32_t));
  };
  constexpr int kOthers = 2048;  // bytes of shared memory
  while (width > 1 && bytes(width) > most - kOthers) width /= 2;
  if (bytes(width) > most - kOthers) {
    return Error(Code::kInvalidArgument, "LU of a stack: a column of ", n,
                 " rows doesn't fit the shared memory of GPU ", device_.ordinal());
  }
  void* moves = nullptr;
  JAXMG_RETURN_IF_ERROR(device_.Scratch(stream, count * 2 * width * sizeof(int32_t), &moves));
  const auto order = static_cast<int>(n);
  for (int first = 0; first < order; first += width) {
    const int columns = std::min(width, order - first), others = order - columns;
    const int rest = order - first - columns;
    JAXMG_RETURN_IF_ERROR(device_.LaunchShared(Kernel::kFactorStackedPanel, kLetter, stream, count,
                                               kStackLuThreads, static_cast<int>(bytes(width)),
                                               order, first, columns, a, pivots,
                                               static_cast<int32_t*>(moves)));
    JAXMG_RETURN_IF_ERROR(device_.LaunchBlocks(
        Kernel::kMoveStackedRows, kLetter, stream,
        count * ((others + kStackMoveThreads - 1) / kStackMoveThreads), kStackMoveThreads, order,
        first, columns, a, static_cast<const int32_t*>(moves)));
    if (rest == 0) break;
    T* const right = a + first * n + first + columns;
    T* const below = a + (first + columns) * n + first;
    JAXMG_RETURN_IF_ERROR(blas_.GemmBatched(stream, Op::kNone, Op::kNone, rest, rest, columns, -1,
                                            right, n, n * n, below, n, n * n, 1, below + columns, n,
                                            n * n, count));
  }
  return Status::Ok();
}

template <typename T>
Status CudaStacks<T>::Multiply(Stream stream, bool transposed, int64_t count, int64_t m, int64_t n,
                               int64_t k, const T* x, const T* y, T* product) {
  return blas_.GemmBatched(stream, transposed ? Op::kTrans : Op::kNone, Op::kNone, n, m, k, 1, y,
                           transposed ? k : n, n * k, x, k, m * k, 0, product, n, m * n, count);
}

#define JAXMG_INSTANTIATE(T) template class CudaStacks<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
