#include "xla_ffi/device/cuda/eigen/chase.h"

#include <algorithm>
#include <complex>
#include <type_traits>

#include "xla_ffi/device/cuda/device.h"
#include "xla_ffi/device/eigen/chase_groups.h"

namespace jaxmg {
namespace {

int64_t Steps(int64_t n, int64_t b, int64_t sweep) { return (n - 1 - sweep + b - 1) / b; }

}  // namespace

template <typename T>
Status CudaChase<T>::Chase(Stream stream, int64_t n, int64_t b, T* band, int64_t ldb, int64_t first,
                           int64_t sweeps, T* v, int64_t ldv, T* tau, int64_t ldtau) {
  if (sweeps == 0) return Status::Ok();
  constexpr int64_t kMost = sizeof(T) == 16 ? kMostBandComplex128 : kMostBand;
  if (b > kMost) {
    return Error(Code::kInternal, "the band must have at most ", kMost, " subdiagonals; got ", b);
  }
  void* progress = nullptr;
  JAXMG_RETURN_IF_ERROR(device_.Scratch(stream, (sweeps + 1) * sizeof(int32_t), &progress));
  JAXMG_RETURN_IF_ERROR(device_.FillInt32(stream, static_cast<int32_t*>(progress), sweeps + 1, 0));
  // The maximum number of concurrent sweeps, because each is two steps behind the previous one.
  const int64_t blocks = std::min(sweeps, Steps(n, b, first) / 2 + 1);
  return device_.LaunchBlocks(Kernel::chase, CudaType<T>::kLetter, stream, blocks,
                              static_cast<int>(kMost) * kChaseGroups, n, b, band, ldb, first,
                              sweeps, v, ldv, tau, ldtau, progress);
}

template <typename T>
Status CudaChase<T>::TakeTridiagonal(Stream stream, int64_t n, const T* band, int64_t ldb, R* d,
                                     R* e) {
  return device_.LaunchElements(Kernel::take_tridiagonal, CudaType<T>::kLetter, stream, n, n, band,
                                ldb, d, e);
}

template <typename T>
Status CudaChase<T>::ExpandReflectors(Stream stream, int64_t n, int64_t b, int64_t first,
                                      int64_t sweeps, const T* v, int64_t ldv, const T* tau,
                                      int64_t ldtau, T* blocks, T* weighted) {
  if (sweeps > kGroupSweeps) {
    return Error(Code::kInternal, "a group must have at most ", kGroupSweeps, " sweeps; got ",
                 sweeps);
  }
  return device_.LaunchBlocks(Kernel::expand_reflectors, CudaType<T>::kLetter, stream,
                              Steps(n, b, first), kExpandThreads, n, b, first,
                              static_cast<int>(sweeps), v, ldv, tau, ldtau, blocks, weighted);
}

template <typename T>
Status CudaChase<T>::ApplyByTensorCores(Stream stream, const SweepGroups& groups, int64_t columns,
                                        const T* blocks, const T* weighted, T* z, int64_t ldz,
                                        bool* done) {
  using Shape = GroupShape<sizeof(T) == 16>;
  if (groups.height() > Shape::kRows || groups.width > Shape::kSweeps) return Status::Ok();
  int most = 0, multiprocessors = 0;
  JAXMG_RETURN_IF_ERROR(device_.resources().SharedBytes(&most));
  JAXMG_RETURN_IF_ERROR(device_.resources().Multiprocessors(&multiprocessors));
  const auto shared = static_cast<int>(Shape::kShared * sizeof(T));
  if (shared > most) return Status::Ok();
  *done = true;
  const int64_t strips = (columns + Shape::kColumns - 1) / Shape::kColumns;
  const int64_t pieces = strips * (groups.end - groups.begin);
  void* progress = nullptr;
  JAXMG_RETURN_IF_ERROR(device_.Scratch(stream, (1 + pieces) * sizeof(int32_t), &progress));
  JAXMG_RETURN_IF_ERROR(device_.FillInt32(stream, static_cast<int32_t*>(progress), 1 + pieces, 0));
  return device_.LaunchShared(Kernel::apply_groups, CudaType<T>::kLetter, stream,
                              std::min<int64_t>(pieces, multiprocessors), Shape::kThreads, shared,
                              groups, columns, blocks, weighted, z, ldz, progress);
}

template <typename T>
Status CudaChase<T>::ApplyGroups(Stream stream, const SweepGroups& groups, int64_t columns,
                                 int64_t at_once, const T* blocks, const T* weighted, T* z,
                                 int64_t ldz, T* products) {
  if constexpr (std::is_same_v<R, double>) {
    bool done = false;
    JAXMG_RETURN_IF_ERROR(
        ApplyByTensorCores(stream, groups, columns, blocks, weighted, z, ldz, &done));
    if (done) return Status::Ok();
  }
  const int64_t height = groups.height(), width = groups.width;
  return ForBlocksAtOnce(groups, columns, at_once, [&](const BlocksAtOnce& some) -> Status {
    const int64_t block = groups.block(some.g, some.j), taken = width * some.wide;
    const int64_t stride = groups.block(1, 1);
    T* piece = z + groups.row(some.g, some.j) * ldz + some.column;
    const int64_t z_stride = (groups.group + groups.b) * ldz;
    JAXMG_RETURN_IF_ERROR(blas_.GemmBatched(
        stream, Op::kNone, Op::kNone, some.wide, width, some.rows, 1, piece, ldz, z_stride,
        blocks + block, height, stride, 0, products, some.wide, taken, some.count));
    return blas_.GemmBatched(stream, Op::kNone, Op::kConjTrans, some.wide, some.rows, width, -1,
                             products, some.wide, taken, weighted + block, height, stride, 1, piece,
                             ldz, z_stride, some.count);
  });
}

#define JAXMG_INSTANTIATE(T) template class CudaChase<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
