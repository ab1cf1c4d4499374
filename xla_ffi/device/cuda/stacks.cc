#include "xla_ffi/device/cuda/stacks.h"

#include <complex>

#include "xla_ffi/device/cuda/device.h"

namespace jaxmg {

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
Status CudaStacks<T>::Multiply(Stream stream, bool transposed, int64_t count, int64_t m, int64_t n,
                               int64_t k, const T* x, const T* y, T* product) {
  return blas_.GemmBatched(stream, transposed ? Op::kTrans : Op::kNone, Op::kNone, n, m, k, 1, y,
                           transposed ? k : n, n * k, x, k, m * k, 0, product, n, m * n, count);
}

#define JAXMG_INSTANTIATE(T) template class CudaStacks<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
