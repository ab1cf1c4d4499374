// NVIDIA's libraries, loaded at the first CUDA call, so that the plugin can be imported on machines
// without them. The lists below name every function that is called. The tables take their types
// from NVIDIA's headers. //tests/wheels:symbols_cuda_test checks every name in the libraries of
// both CUDA versions.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_LIBRARY_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_LIBRARY_H_

#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cusolverDn.h>

#include <string>
#include <utility>
#include <vector>

// Deprecated, but without a replacement.
#define DISABLE_CUSOLVERMG_DEPRECATED
#include <cusolverMg.h>

#include "xla_ffi/base/status.h"

#define JAXMG_CUDA_DRIVER_FUNCTIONS(F) \
  F(cuFuncSetAttribute)                \
  F(cuGetErrorString)                  \
  F(cuLaunchCooperativeKernel)         \
  F(cuLaunchKernel)                    \
  F(cuLaunchKernelEx)                  \
  F(cuMemAddressFree)                  \
  F(cuMemAddressReserve)               \
  F(cuMemCreate)                       \
  F(cuMemExportToShareableHandle)      \
  F(cuMemGetAllocationGranularity)     \
  F(cuMemHostGetDevicePointer)         \
  F(cuMemHostRegister)                 \
  F(cuMemImportFromShareableHandle)    \
  F(cuMemMap)                          \
  F(cuMemRelease)                      \
  F(cuMemSetAccess)                    \
  F(cuMemUnmap)                        \
  F(cuModuleGetFunction)               \
  F(cuModuleLoadData)                  \
  F(cuOccupancyMaxActiveClusters)      \
  F(cuPointerGetAttributes)            \
  F(cuStreamWaitValue32)               \
  F(cuStreamWriteValue32)              \
  F(cuTensorMapEncodeTiled)

#define JAXMG_CUDA_RUNTIME_FUNCTIONS(F) \
  F(cudaDeviceCanAccessPeer)            \
  F(cudaDeviceEnablePeerAccess)         \
  F(cudaDeviceGetAttribute)             \
  F(cudaDeviceGetStreamPriorityRange)   \
  F(cudaDeviceSynchronize)              \
  F(cudaEventCreateWithFlags)           \
  F(cudaEventDestroy)                   \
  F(cudaEventElapsedTime)               \
  F(cudaEventQuery)                     \
  F(cudaEventRecord)                    \
  F(cudaEventSynchronize)               \
  F(cudaFree)                           \
  F(cudaGetDevice)                      \
  F(cudaGetDeviceCount)                 \
  F(cudaGetErrorString)                 \
  F(cudaGetLastError)                   \
  F(cudaHostAlloc)                      \
  F(cudaHostRegister)                   \
  F(cudaHostUnregister)                 \
  F(cudaMalloc)                         \
  F(cudaMemcpy2DAsync)                  \
  F(cudaMemcpyAsync)                    \
  F(cudaMemset2DAsync)                  \
  F(cudaSetDevice)                      \
  F(cudaStreamCreateWithFlags)          \
  F(cudaStreamCreateWithPriority)       \
  F(cudaStreamQuery)                    \
  F(cudaStreamSynchronize)              \
  F(cudaStreamWaitEvent)

#define JAXMG_CUBLAS_TYPED_FUNCTIONS(F, letter, herk) \
  F(cublas##letter##gemm_64)                          \
  F(cublas##letter##gemmStridedBatched_64)            \
  F(cublas##letter##gemv_64)                          \
  F(cublas##herk##_64)                                \
  F(cublas##letter##trsm_64)                          \
  F(cublas##letter##trsv_64)                          \
  F(cublas##letter##trmm_64)

#define JAXMG_CUBLAS_FUNCTIONS(F)           \
  F(cublasCreate)                           \
  F(cublasGemmEx_64)                        \
  F(cublasGemmStridedBatchedEx_64)          \
  F(cublasGetStatusString)                  \
  F(cublasSetMathMode)                      \
  F(cublasSetStream)                        \
  JAXMG_CUBLAS_TYPED_FUNCTIONS(F, S, Ssyrk) \
  JAXMG_CUBLAS_TYPED_FUNCTIONS(F, D, Dsyrk) \
  JAXMG_CUBLAS_TYPED_FUNCTIONS(F, C, Cherk) \
  JAXMG_CUBLAS_TYPED_FUNCTIONS(F, Z, Zherk)

#define JAXMG_CUSOLVER_FUNCTIONS(F) \
  F(cusolverDnCreate)               \
  F(cusolverDnCreateParams)         \
  F(cusolverDnSetStream)            \
  F(cusolverDnXgetrf)               \
  F(cusolverDnXgetrf_bufferSize)    \
  F(cusolverDnXpotrf)               \
  F(cusolverDnXpotrf_bufferSize)    \
  F(cusolverDnXsyevd)               \
  F(cusolverDnXsyevd_bufferSize)

#define JAXMG_CUSOLVER_MG_FUNCTIONS(F) \
  F(cusolverMgCreate)                  \
  F(cusolverMgCreateDeviceGrid)        \
  F(cusolverMgCreateMatrixDesc)        \
  F(cusolverMgDestroyMatrixDesc)       \
  F(cusolverMgDeviceSelect)            \
  F(cusolverMgPotrf)                   \
  F(cusolverMgPotrf_bufferSize)        \
  F(cusolverMgPotri)                   \
  F(cusolverMgPotri_bufferSize)        \
  F(cusolverMgPotrs)                   \
  F(cusolverMgPotrs_bufferSize)        \
  F(cusolverMgSyevd)                   \
  F(cusolverMgSyevd_bufferSize)

// All of these are in NCCL 2.18.1, the oldest version that JAX supports.
#define JAXMG_NCCL_FUNCTIONS(F) \
  F(ncclCommAbort)              \
  F(ncclCommGetAsyncError)      \
  F(ncclCommInitRankConfig)     \
  F(ncclGetErrorString)         \
  F(ncclGetLastError)           \
  F(ncclGetUniqueId)            \
  F(ncclGetVersion)             \
  F(ncclRecv)                   \
  F(ncclSend)

#define JAXMG_CUSOLVER_MP_FUNCTIONS(F) \
  F(cusolverMpCreate)                  \
  F(cusolverMpCreateDeviceGrid)        \
  F(cusolverMpCreateMatrixDesc)        \
  F(cusolverMpDestroyMatrixDesc)       \
  F(cusolverMpGesvd)                   \
  F(cusolverMpGesvd_bufferSize)        \
  F(cusolverMpGesvdDescriptorCreate)   \
  F(cusolverMpGesvdDescriptorDestroy)  \
  F(cusolverMpGetVersion)              \
  F(cusolverMpGetrf)                   \
  F(cusolverMpGetrf_bufferSize)        \
  F(cusolverMpGetrs)                   \
  F(cusolverMpGetrs_bufferSize)        \
  F(cusolverMpPolar)                   \
  F(cusolverMpPolar_bufferSize)        \
  F(cusolverMpPolarDescriptorCreate)   \
  F(cusolverMpPolarDescriptorDestroy)  \
  F(cusolverMpPotrf)                   \
  F(cusolverMpPotrf_bufferSize)        \
  F(cusolverMpPotrs)                   \
  F(cusolverMpPotrs_bufferSize)        \
  F(cusolverMpSyevd)                   \
  F(cusolverMpSyevd_bufferSize)

namespace jaxmg {

#define JAXMG_DECLARE_FUNCTION(function) decltype(&::function) function = nullptr;
struct CudaDriver {
  JAXMG_CUDA_DRIVER_FUNCTIONS(JAXMG_DECLARE_FUNCTION)
};
struct CudaRuntime {
  JAXMG_CUDA_RUNTIME_FUNCTIONS(JAXMG_DECLARE_FUNCTION)
};
struct Cublas {
  JAXMG_CUBLAS_FUNCTIONS(JAXMG_DECLARE_FUNCTION)
};
struct Cusolver {
  JAXMG_CUSOLVER_FUNCTIONS(JAXMG_DECLARE_FUNCTION)
};
struct CusolverMg {
  JAXMG_CUSOLVER_MG_FUNCTIONS(JAXMG_DECLARE_FUNCTION)
};
}  // namespace jaxmg

// Included after the declarations above: these headers overload functions of the runtime, so that
// the types of these functions would be ambiguous there.
#include <cusolverMp.h>
#include <nccl.h>

namespace jaxmg {

struct Nccl {
  JAXMG_NCCL_FUNCTIONS(JAXMG_DECLARE_FUNCTION)
};
struct CusolverMp {
  JAXMG_CUSOLVER_MP_FUNCTIONS(JAXMG_DECLARE_FUNCTION)
};
#undef JAXMG_DECLARE_FUNCTION

// Loads the library and fills its table, once. After a failure the next call tries again. The error
// names the soname, the folders searched and the package to install.
template <typename Table>
Status Open();

// Returns the table. Requires that Open has succeeded.
template <typename Table>
const Table& Get();

// Sets the folders of NVIDIA's libraries that Python finds on sys.path. They are searched after the
// libraries that are already loaded and before the system's folders.
void SetCudaFolders(std::vector<std::string> folders);

// Returns, for every library, its soname and its path ("" if it is not loaded).
std::vector<std::pair<std::string, std::string>> OpenedCudaLibraries();

// Returns, for every library, its soname and the functions that are called.
std::vector<std::pair<std::string, std::vector<std::string>>> CudaSymbols();

// These functions return the text of a vendor's result, and its Code.
inline bool IsSuccess(CUresult result) { return result == CUDA_SUCCESS; }
inline bool IsSuccess(cudaError_t result) { return result == cudaSuccess; }
inline bool IsSuccess(cublasStatus_t result) { return result == CUBLAS_STATUS_SUCCESS; }
inline bool IsSuccess(cusolverStatus_t result) { return result == CUSOLVER_STATUS_SUCCESS; }
inline bool IsSuccess(ncclResult_t result) { return result == ncclSuccess; }
Code CodeOf(CUresult result);
Code CodeOf(cudaError_t result);
Code CodeOf(cublasStatus_t result);
Code CodeOf(cusolverStatus_t result);
Code CodeOf(ncclResult_t result);
std::string Describe(CUresult result);
std::string Describe(cudaError_t result);
std::string Describe(cublasStatus_t result);
std::string Describe(cusolverStatus_t result);
std::string Describe(ncclResult_t result);

}  // namespace jaxmg

// Returns an error from the enclosing function unless the vendor's call succeeds:
// JAXMG_CHECK_CUDA(call, "potrf: tile of order ", n).
#define JAXMG_CHECK_CUDA(expression, ...)                                                   \
  do {                                                                                      \
    const auto jaxmg_result_ = (expression);                                                \
    if (!::jaxmg::IsSuccess(jaxmg_result_)) {                                               \
      return ::jaxmg::Error(::jaxmg::CodeOf(jaxmg_result_), __VA_ARGS__, ": ", #expression, \
                            " failed: ", ::jaxmg::Describe(jaxmg_result_));                 \
    }                                                                                       \
  } while (false)

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_RUNTIME_LIBRARY_H_
