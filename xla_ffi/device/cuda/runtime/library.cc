#include "xla_ffi/device/cuda/runtime/library.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <mutex>

#define JAXMG_TEXT_OF(text) #text
#define JAXMG_TEXT(macro) JAXMG_TEXT_OF(macro)  // the macro's value
#define JAXMG_CUDA_MAJOR JAXMG_TEXT(JAXMG_CUDA)
#if JAXMG_CUDA == 12
#define JAXMG_CUSOLVER_MAJOR "11"  // cuSOLVER has its own version numbers
#else
#define JAXMG_CUSOLVER_MAJOR "12"
#endif

namespace jaxmg {
namespace {

struct Function {
  const char* name;
  void** pointer;
};

// A library: its name, the libraries that it depends on, and its table of functions.
struct Library {
  std::string soname;
  std::vector<std::string> needs;
  std::vector<Function> functions;
  bool from_driver = false;  // part of the driver, never in a wheel
  std::atomic<bool> opened{false};
  std::string path;
};

std::mutex& Mutex() {
  static std::mutex* mutex = new std::mutex;
  return *mutex;
}

std::vector<std::string>& Folders() {
  static auto* folders = new std::vector<std::string>;
  return *folders;
}

template <typename Table>
Table& TableOf() {
  static Table table;
  return table;
}

// The members of a table have the names of the functions, including version suffixes.
#define JAXMG_LIST_FUNCTION(function) \
  {JAXMG_TEXT(function), reinterpret_cast<void**>(&table.function)},

template <typename Table>
Library& LibraryOf();

#define JAXMG_DEFINE_LIBRARY(Table, name, FUNCTIONS, ...) \
  template <>                                             \
  Library& LibraryOf<Table>() {                           \
    static Library* library = [] {                        \
      Table& table = TableOf<Table>();                    \
      auto* made = new Library;                           \
      made->soname = name;                                \
      made->needs = {__VA_ARGS__};                        \
      made->functions = {FUNCTIONS(JAXMG_LIST_FUNCTION)}; \
      return made;                                        \
    }();                                                  \
    return *library;                                      \
  }
JAXMG_DEFINE_LIBRARY(CudaDriver, "libcuda.so.1", JAXMG_CUDA_DRIVER_FUNCTIONS, )
JAXMG_DEFINE_LIBRARY(CudaRuntime, "libcudart.so." JAXMG_CUDA_MAJOR, JAXMG_CUDA_RUNTIME_FUNCTIONS, )
JAXMG_DEFINE_LIBRARY(Cublas, "libcublas.so." JAXMG_CUDA_MAJOR, JAXMG_CUBLAS_FUNCTIONS,
                     "libcublasLt.so." JAXMG_CUDA_MAJOR)
JAXMG_DEFINE_LIBRARY(Cusolver, "libcusolver.so." JAXMG_CUSOLVER_MAJOR, JAXMG_CUSOLVER_FUNCTIONS,
                     "libcublasLt.so." JAXMG_CUDA_MAJOR, "libcublas.so." JAXMG_CUDA_MAJOR,
                     "libnvJitLink.so." JAXMG_CUDA_MAJOR, "libcusparse.so.12")
JAXMG_DEFINE_LIBRARY(CusolverMg, "libcusolverMg.so." JAXMG_CUSOLVER_MAJOR,
                     JAXMG_CUSOLVER_MG_FUNCTIONS, "libcublasLt.so." JAXMG_CUDA_MAJOR,
                     "libcublas.so." JAXMG_CUDA_MAJOR)
JAXMG_DEFINE_LIBRARY(Nccl, "libnccl.so.2", JAXMG_NCCL_FUNCTIONS, )
JAXMG_DEFINE_LIBRARY(CusolverMp, "libcusolverMp.so.0", JAXMG_CUSOLVER_MP_FUNCTIONS, "libnccl.so.2",
                     "libcublasLt.so." JAXMG_CUDA_MAJOR, "libcublas.so." JAXMG_CUDA_MAJOR,
                     "libnvJitLink.so." JAXMG_CUDA_MAJOR, "libcusparse.so.12",
                     "libcusolver.so." JAXMG_CUSOLVER_MAJOR, "libcublasmp.so.0")
#undef JAXMG_DEFINE_LIBRARY
#undef JAXMG_LIST_FUNCTION

// Searches the loaded libraries, then the folders of wheels, then the system's folders.
void* Find(const std::string& soname) {
  constexpr int kFlags = RTLD_NOW | RTLD_LOCAL;
  if (void* handle = dlopen(soname.c_str(), kFlags | RTLD_NOLOAD)) return handle;
  for (const std::string& folder : Folders()) {
    if (void* handle = dlopen((folder + "/" + soname).c_str(), kFlags)) return handle;
  }
  return dlopen(soname.c_str(), kFlags);
}

std::string PathOf(void* handle) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "?";
  return map->l_name;
}

Status NotFound(const Library& library) {
  const char* reason = dlerror();
  std::string text = library.soname + " can't be opened";
  if (reason != nullptr) text += std::string(" (") + reason + ")";
  text += ". Searched: what the process has loaded";
  for (const std::string& folder : Folders()) text += ", " + folder;
  text += ", and the system's library path.";
  if (library.soname == "libcuda.so.1") {
    text += " It comes with NVIDIA's driver";
  } else if (library.soname == LibraryOf<CusolverMp>().soname) {
    text += " Install it with `pip install 'jaxmg-plugin-cuda" JAXMG_CUDA_MAJOR "[mp]'`";
  } else {
    text += " Install it with `pip install 'jax[cuda" JAXMG_CUDA_MAJOR
            "]'`, or put the folder of a CUDA " JAXMG_CUDA_MAJOR " toolkit on LD_LIBRARY_PATH";
  }
  return Status(Code::kUnavailable, text);
}

template <typename Table>
void Append(std::vector<Library*>& all) {
  all.push_back(&LibraryOf<Table>());
}

std::vector<Library*> AllLibraries() {
  std::vector<Library*> all;
  Append<CudaDriver>(all);
  Append<CudaRuntime>(all);
  Append<Cublas>(all);
  Append<Cusolver>(all);
  Append<CusolverMg>(all);
  Append<Nccl>(all);
  Append<CusolverMp>(all);
  return all;
}

}  // namespace

template <typename Table>
Status Open() {
  Library& library = LibraryOf<Table>();
  if (library.opened) return Status::Ok();
  std::lock_guard<std::mutex> lock(Mutex());
  if (library.opened) return Status::Ok();
  // Libraries from wheels find their dependencies only if all are below one folder.
  for (const std::string& need : library.needs) Find(need);
  void* handle = Find(library.soname);
  if (handle == nullptr) return NotFound(library);
  for (const Function& function : library.functions) {
    *function.pointer = dlsym(handle, function.name);
    if (*function.pointer == nullptr) {
      return Error(Code::kUnavailable, PathOf(handle), " has no ", function.name,
                   "; a newer CUDA " JAXMG_CUDA_MAJOR " is needed");
    }
  }
  library.path = PathOf(handle);
  library.opened = true;
  return Status::Ok();
}

template <typename Table>
const Table& Get() {
  return TableOf<Table>();
}

#define JAXMG_INSTANTIATE(Table) \
  template Status Open<Table>(); \
  template const Table& Get<Table>();
JAXMG_INSTANTIATE(CudaDriver)
JAXMG_INSTANTIATE(CudaRuntime)
JAXMG_INSTANTIATE(Cublas)
JAXMG_INSTANTIATE(Cusolver)
JAXMG_INSTANTIATE(CusolverMg)
JAXMG_INSTANTIATE(Nccl)
JAXMG_INSTANTIATE(CusolverMp)
#undef JAXMG_INSTANTIATE

void SetCudaFolders(std::vector<std::string> folders) {
  std::lock_guard<std::mutex> lock(Mutex());
  Folders() = std::move(folders);
}

std::vector<std::pair<std::string, std::string>> OpenedCudaLibraries() {
  std::lock_guard<std::mutex> lock(Mutex());
  std::vector<std::pair<std::string, std::string>> result;
  for (Library* library : AllLibraries()) result.emplace_back(library->soname, library->path);
  return result;
}

std::vector<std::pair<std::string, std::vector<std::string>>> CudaSymbols() {
  std::vector<std::pair<std::string, std::vector<std::string>>> result;
  for (Library* library : AllLibraries()) {
    std::vector<std::string> names;
    for (const Function& function : library->functions) names.push_back(function.name);
    result.emplace_back(library->soname, std::move(names));
  }
  return result;
}

Code CodeOf(CUresult result) {
  return result == CUDA_ERROR_OUT_OF_MEMORY ? Code::kResourceExhausted : Code::kInternal;
}
Code CodeOf(cudaError_t result) {
  return result == cudaErrorMemoryAllocation ? Code::kResourceExhausted : Code::kInternal;
}
Code CodeOf(cublasStatus_t result) {
  return result == CUBLAS_STATUS_ALLOC_FAILED ? Code::kResourceExhausted : Code::kInternal;
}
Code CodeOf(cusolverStatus_t result) {
  return result == CUSOLVER_STATUS_ALLOC_FAILED ? Code::kResourceExhausted : Code::kInternal;
}
Code CodeOf(ncclResult_t result) {
  return result == ncclRemoteError || result == ncclSystemError ? Code::kUnavailable
                                                                : Code::kInternal;
}

std::string Describe(CUresult result) {
  const char* text = nullptr;
  Get<CudaDriver>().cuGetErrorString(result, &text);
  return text != nullptr ? text : "CUresult " + std::to_string(result);
}
std::string Describe(cudaError_t result) {
  // Clears the error, because an unrelated later call would otherwise report it.
  Get<CudaRuntime>().cudaGetLastError();
  return Get<CudaRuntime>().cudaGetErrorString(result);
}
std::string Describe(cublasStatus_t result) { return Get<Cublas>().cublasGetStatusString(result); }
std::string Describe(cusolverStatus_t result) {
  return "cusolverStatus_t " + std::to_string(result);
}
std::string Describe(ncclResult_t result) {
  std::string text = Get<Nccl>().ncclGetErrorString(result);
  const char* last = Get<Nccl>().ncclGetLastError(nullptr);
  if (last != nullptr && *last != '\0') text += std::string(" (") + last + ")";
  return text;
}

}  // namespace jaxmg
