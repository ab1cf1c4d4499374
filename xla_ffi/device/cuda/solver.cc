#include "xla_ffi/device/cuda/solver.h"

#include <complex>

#include "xla_ffi/device/cuda/device.h"

namespace jaxmg {
namespace {

cusolverEigMode_t EigMode(bool vectors) {
  return vectors ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
}

}  // namespace

Status SolverSpace::Open(CudaDevice& device, Stream stream) {
  return device.resources().SolverHandle(stream, &handle, &params);
}

Status SolverSpace::Size(CudaDevice& device, const SolverCall& call,
                         const std::function<Status()>& query) {
  if (const SolverBytes* known = device.resources().KnownBytes(call)) {
    device_bytes = known->device;
    host_bytes = known->host;
    return Status::Ok();
  }
  JAXMG_RETURN_IF_ERROR(query());
  device.resources().KeepBytes(call, {device_bytes, host_bytes});
  return Status::Ok();
}

Status SolverSpace::Allocate(CudaDevice& device, Stream stream) {
  constexpr size_t kInfos = 256;  // also the alignment of the workspace after them
  char* scratch = nullptr;
  JAXMG_RETURN_IF_ERROR(
      device.Scratch(stream, kInfos + device_bytes, reinterpret_cast<void**>(&scratch)));
  info = reinterpret_cast<int32_t*>(scratch);
  this->device = scratch + kInfos;
  host = device.resources().HostWorkspace(host_bytes);
  return Status::Ok();
}

template <typename T>
Status CudaSolver<T>::SpaceForSyevd(Stream stream, bool vectors, int64_t n, T* a, int64_t lda, R* w,
                                    SolverSpace* space) {
  constexpr cudaDataType kType = CudaType<T>::kValue, kRealType = CudaType<R>::kValue;
  JAXMG_RETURN_IF_ERROR(space->Open(device_, stream));
  JAXMG_CHECK_CUDA(
      Get<Cusolver>().cusolverDnXsyevd_bufferSize(
          space->handle, space->params, EigMode(vectors), CUBLAS_FILL_MODE_LOWER, n, kType, a, lda,
          kRealType, w, kType, &space->device_bytes, &space->host_bytes),
      "syevd: matrix of order ", n);
  return space->Allocate(device_, stream);
}

template <typename T>
Status CudaSolver<T>::ReserveSyevd(Stream stream, bool vectors, int64_t n, T* a, int64_t lda,
                                   R* w) {
  SolverSpace space;
  return n == 0 ? Status::Ok() : SpaceForSyevd(stream, vectors, n, a, lda, w, &space);
}

template <typename T>
Status CudaSolver<T>::Syevd(Stream stream, bool vectors, int64_t n, T* a, int64_t lda, R* w,
                            int32_t* info) {
  if (n == 0) return device_.FillInt32(stream, info, 1, 0);
  constexpr cudaDataType kType = CudaType<T>::kValue, kRealType = CudaType<R>::kValue;
  SolverSpace space;
  JAXMG_RETURN_IF_ERROR(SpaceForSyevd(stream, vectors, n, a, lda, w, &space));
  int32_t* first = space.info + 1;
  JAXMG_RETURN_IF_ERROR(device_.FillInt32(stream, first, 1, kNoInfo));
  JAXMG_RETURN_IF_ERROR(device_.cuda_status().CheckFinite(stream, n, n, a, lda, 0, first));
  JAXMG_RETURN_IF_ERROR(device_.LaunchElements(Kernel::clear_if, CudaType<T>::kLetter, stream,
                                               n * n, first, n, a, lda));
  JAXMG_CHECK_CUDA(Get<Cusolver>().cusolverDnXsyevd(
                       space.handle, space.params, EigMode(vectors), CUBLAS_FILL_MODE_LOWER, n,
                       kType, a, lda, kRealType, w, kType, space.device, space.device_bytes,
                       space.host, space.host_bytes, space.info),
                   "syevd: matrix of order ", n);
  // cuSOLVER may return eigenvalues that are equal up to rounding out of order.
  JAXMG_RETURN_IF_ERROR(device_.LaunchOne(Kernel::ascend, CudaType<R>::kLetter, stream, n, w));
  return device_.LaunchOne(Kernel::set_syevd_info, 's', stream, first, space.info, info);
}

#define JAXMG_INSTANTIATE(T) template class CudaSolver<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
