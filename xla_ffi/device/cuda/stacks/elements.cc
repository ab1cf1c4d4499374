#include "xla_ffi/device/cuda/stacks/elements.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/device/cuda/device.h"

namespace jaxmg {
namespace {

int PiecesOf(int64_t size) {
  return static_cast<int>(
      std::clamp<int64_t>((size + kStackPiece - 1) / kStackPiece, 1, kMostStackPieces));
}

}  // namespace

template <typename T>
template <typename... Arguments>
Status CudaElements<T>::Launch(Kernel kernel, Stream stream, int64_t count, int64_t size,
                               Arguments... arguments) {
  return device_.LaunchBlocks(kernel, CudaType<T>::kLetter, stream, count * PiecesOf(size),
                              kStackElementThreads, arguments...);
}

template <typename T>
Status CudaElements<T>::Scale(Stream stream, int64_t count, int64_t size, int64_t step, const T* a,
                              T* scaled, int32_t* exponents) {
  const int pieces = PiecesOf(size);
  void* space = nullptr;
  JAXMG_RETURN_IF_ERROR(device_.Scratch(stream, count * pieces * sizeof(uint64_t), &space));
  JAXMG_RETURN_IF_ERROR(Launch(Kernel::largest_of_stack, stream, count, size, size, pieces, a,
                               static_cast<uint64_t*>(space)));
  return Launch(Kernel::scale_stack, stream, count, size, size, pieces, static_cast<int>(step),
                static_cast<const uint64_t*>(space), a, scaled, exponents);
}

template <typename T>
Status CudaElements<T>::Sum(Stream stream, StackedSum what, int64_t count, int64_t size, int64_t n,
                            const T* x, const T* y, double* sums) {
  const int pieces = PiecesOf(size);
  void* space = sums;
  if (pieces > 1) {
    JAXMG_RETURN_IF_ERROR(device_.Scratch(stream, count * pieces * sizeof(double), &space));
  }
  JAXMG_RETURN_IF_ERROR(Launch(Kernel::sum_stack, stream, count, size, static_cast<int>(what), size,
                               pieces, n, x, y, static_cast<double*>(space)));
  if (pieces == 1) return Status::Ok();
  return device_.LaunchElements(Kernel::add_stack_parts, 's', stream, count, count, pieces,
                                static_cast<const double*>(space), sums);
}

template <typename T>
Status CudaElements<T>::DivideByRoots(Stream stream, int64_t count, int64_t size,
                                      const double* sums, const T* a, T* x) {
  return Launch(Kernel::divide_stack, stream, count, size, size, PiecesOf(size), sums, a, x);
}

template <typename T>
Status CudaElements<T>::Combine(Stream stream, int64_t count, int64_t size, int64_t n,
                                const StackedTerms<T>& terms, T* out) {
  return Launch(Kernel::combine_stack, stream, count, size, size, PiecesOf(size), n, terms.x,
                terms.y, terms.of_x, terms.of_y, terms.of_identity, terms.divisor, out);
}

template <typename T>
Status CudaElements<T>::MakeHermitian(Stream stream, int64_t count, int64_t n, T* a) {
  return Launch(Kernel::make_stack_hermitian, stream, count, n * n, PiecesOf(n * n), n, a);
}

#define JAXMG_INSTANTIATE(T) template class CudaElements<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
