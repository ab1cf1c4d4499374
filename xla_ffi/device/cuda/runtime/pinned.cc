#include "xla_ffi/device/cuda/runtime/pinned.h"

#include <cstdint>

#include "xla_ffi/device/cuda/runtime/library.h"

namespace jaxmg {
namespace {

Status OpenBoth() {
  JAXMG_RETURN_IF_ERROR(Open<CudaDriver>());
  return Open<CudaRuntime>();
}

// Clears the runtime's last error, which would appear in another library's next call.
cudaError_t Forgotten(cudaError_t result) {
  if (result != cudaSuccess) Get<CudaRuntime>().cudaGetLastError();
  return result;
}

}  // namespace

Status RegisterOnCuda(void* address, size_t bytes) {
  JAXMG_RETURN_IF_ERROR(OpenBoth());
  const cudaError_t result =
      Forgotten(Get<CudaRuntime>().cudaHostRegister(address, bytes, cudaHostRegisterPortable));
  if (result == cudaSuccess) return Status::Ok();
  return Error(CodeOf(result), "can't pin ", bytes, " bytes of host memory: ", Describe(result));
}

Status UnregisterOnCuda(void* address) {
  JAXMG_RETURN_IF_ERROR(OpenBoth());
  const cudaError_t result = Forgotten(Get<CudaRuntime>().cudaHostUnregister(address));
  if (result == cudaSuccess) return Status::Ok();
  return Error(CodeOf(result), "can't unpin host memory: ", Describe(result));
}

Status IsRegisteredOnCuda(const void* address, bool* registered) {
  JAXMG_RETURN_IF_ERROR(OpenBoth());
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  unsigned type = 0;
  void* value = &type;
  // Fails before CUDA is initialized, when no memory is registered.
  const CUresult result = Get<CudaDriver>().cuPointerGetAttributes(
      1, &attribute, &value, reinterpret_cast<CUdeviceptr>(address));
  *registered = result == CUDA_SUCCESS && type == CU_MEMORYTYPE_HOST;
  return Status::Ok();
}

}  // namespace jaxmg
