#include "xla_ffi/device/cuda/runtime/memory.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "xla_ffi/device/cuda/runtime/library.h"

namespace jaxmg {
namespace {

class CudaMemory : public MemorySource {
 public:
  Status Serve(int ordinal) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const int served : served_) {
      if (served == ordinal) return Status::Ok();
    }
    for (const auto& [begin, bytes] : segments_) {
      JAXMG_RETURN_IF_ERROR(Allow(begin, bytes, ordinal));
    }
    served_.push_back(ordinal);
    return Status::Ok();
  }

  Status Make(int ordinal, size_t* bytes, void** data, int* file) override {
    const CudaDriver& driver = Get<CudaDriver>();
    CUmemAllocationProp kind = {};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    kind.location.id = ordinal;
    kind.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    size_t step = 0;
    JAXMG_CHECK_CUDA(
        driver.cuMemGetAllocationGranularity(&step, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        "memory that processes share on GPU ", ordinal);
    *bytes = (*bytes + step - 1) / step * step;
    CUmemGenericAllocationHandle handle = {};
    const CUresult made = driver.cuMemCreate(&handle, *bytes, &kind, 0);
    if (made != CUDA_SUCCESS) {
      return Error(CodeOf(made), "can't allocate ", *bytes, " bytes on GPU ", ordinal,
                   " for messages between processes: ", Describe(made),
                   ". This memory is outside of JAX's; a lower XLA_PYTHON_CLIENT_MEM_FRACTION "
                   "leaves more for it");
    }
    const CUresult exported = driver.cuMemExportToShareableHandle(
        file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (exported != CUDA_SUCCESS) {
      driver.cuMemRelease(handle);
      return Error(Code::kUnavailable, "GPU ", ordinal,
                   " can't share memory between processes: ", Describe(exported));
    }
    return Place(handle, *bytes, data);
  }

  Status Map(int file, size_t bytes, void** data) override {
    CUmemGenericAllocationHandle handle = {};
    JAXMG_CHECK_CUDA(Get<CudaDriver>().cuMemImportFromShareableHandle(
                         &handle, reinterpret_cast<void*>(static_cast<intptr_t>(file)),
                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                     bytes, " bytes of another process's GPU");
    return Place(handle, bytes, data);
  }

  void Unmap(void* data, size_t bytes) noexcept override {
    const CudaDriver& driver = Get<CudaDriver>();
    const auto begin = reinterpret_cast<CUdeviceptr>(data);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      segments_.erase(begin);
    }
    driver.cuMemUnmap(begin, bytes);
    driver.cuMemAddressFree(begin, bytes);
  }

  bool IsHost() const override { return false; }

  Status Register(void* words, size_t bytes) override {
    const unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    JAXMG_CHECK_CUDA(Get<CudaDriver>().cuMemHostRegister(words, bytes, flags), bytes,
                     " bytes by which processes signal each other");
    return Status::Ok();
  }

  bool Has(const void* data) {
    const auto address = reinterpret_cast<CUdeviceptr>(data);
    std::lock_guard<std::mutex> lock(mutex_);
    const auto after = segments_.upper_bound(address);
    if (after == segments_.begin()) return false;
    const auto& [begin, bytes] = *std::prev(after);
    return address - begin < bytes;
  }

 private:
  // Maps the memory and gives all served devices access. Releases the handle; the mapping keeps the
  // memory alive.
  Status Place(CUmemGenericAllocationHandle handle, size_t bytes, void** data) {
    const CudaDriver& driver = Get<CudaDriver>();
    CUdeviceptr begin = 0;
    CUresult result = driver.cuMemAddressReserve(&begin, bytes, 0, 0, 0);
    if (result == CUDA_SUCCESS) {
      result = driver.cuMemMap(begin, bytes, 0, handle, 0);
      if (result != CUDA_SUCCESS) driver.cuMemAddressFree(begin, bytes);
    }
    driver.cuMemRelease(handle);
    JAXMG_CHECK_CUDA(result, "addresses for ", bytes, " bytes that processes share");
    *data = reinterpret_cast<void*>(begin);
    Status allowed;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      segments_[begin] = bytes;
      for (const int ordinal : served_) {
        if (allowed.ok()) allowed = Allow(begin, bytes, ordinal);
      }
    }
    if (!allowed.ok()) Unmap(*data, bytes);
    return allowed;
  }

  static Status Allow(CUdeviceptr begin, size_t bytes, int ordinal) {
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = ordinal;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    const CUresult result = Get<CudaDriver>().cuMemSetAccess(begin, bytes, &access, 1);
    if (result == CUDA_SUCCESS) return Status::Ok();
    return Error(
        Code::kUnavailable, "GPU ", ordinal,
        " can't access the memory that another process shares with it: ", Describe(result));
  }

  std::mutex mutex_;
  std::vector<int> served_;
  std::map<CUdeviceptr, size_t> segments_;  // size in bytes, by address
};

CudaMemory& ProcessMemory() {
  static CudaMemory* memory = new CudaMemory;
  return *memory;
}

}  // namespace

MemorySource& CudaMemorySource() { return ProcessMemory(); }

bool IsSharedSegment(const void* data) { return ProcessMemory().Has(data); }

}  // namespace jaxmg
