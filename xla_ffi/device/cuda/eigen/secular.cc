#include "xla_ffi/device/cuda/eigen/secular.h"

#include <complex>

#include "xla_ffi/device/cuda/device.h"

namespace jaxmg {

template <typename T>
Status CudaSecular<T>::Roots(Stream stream, int64_t k, int64_t begin, int64_t end, const R* d,
                             const R* z, R rho, int limit, R* origin, R* tau, R* roots,
                             int32_t* info) {
  return device_.LaunchBlocks(Kernel::secular_roots, CudaType<R>::kLetter, stream, end - begin,
                              kSecularThreads, k, begin, d, z, rho, limit, origin, tau, roots,
                              info);
}

template <typename T>
Status CudaSecular<T>::RefineZ(Stream stream, int64_t k, int64_t begin, int64_t end,
                               const int32_t* order, const R* d, const R* z, R rho, const R* origin,
                               const R* tau, R* refined) {
  return device_.LaunchBlocks(Kernel::refine_z, CudaType<R>::kLetter, stream, end - begin,
                              kSecularThreads, k, begin, order, d, z, rho, origin, tau, refined);
}

template <typename T>
Status CudaSecular<T>::Vectors(Stream stream, int64_t k, int64_t begin, int64_t end, const R* d,
                               const R* z, const R* origin, const R* tau, R* u, int64_t ldu) {
  return device_.LaunchBlocks(Kernel::secular_vectors, CudaType<R>::kLetter, stream, end - begin,
                              kSecularThreads, k, begin, d, z, origin, tau, u, ldu);
}

template <typename T>
Status CudaSecular<T>::RotateColumns(Stream stream, int64_t rows, int64_t chains,
                                     const int32_t* starts, const int32_t* first,
                                     const int32_t* second, const R* c, const R* s, R* q,
                                     int64_t ldq) {
  const int64_t of_chain = (rows + kThreads - 1) / kThreads;
  return device_.LaunchBlocks(Kernel::rotate_columns, CudaType<R>::kLetter, stream,
                              of_chain * chains, kThreads, rows, starts, first, second, c, s, q,
                              ldq);
}

template <typename T>
Status CudaSecular<T>::CopyColumns(Stream stream, int64_t rows, int64_t columns,
                                   const int32_t* from, const R* source, int64_t lds,
                                   const int32_t* to, R* target, int64_t ldt) {
  return device_.LaunchTiles(Kernel::arrange_columns, CudaType<R>::kLetter, stream, rows, columns,
                             rows, columns, from, source, lds, to, target, ldt);
}

#define JAXMG_INSTANTIATE(T) template class CudaSecular<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
