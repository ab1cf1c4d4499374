// The CPU plugin's extension module: gives SciPy's BLAS and LAPACK to the host device, and the
// handlers to Python.
#include <dlfcn.h>
#include <link.h>
#include <pybind11/pybind11.h>

#include <complex>
#include <stdexcept>
#include <string>

#include "xla_ffi/device/lapack.h"
#include "xla_ffi/plugin/bindings.h"

namespace jaxmg {
namespace {

namespace py = pybind11;

// The functions that scipy.linalg.cython_blas and cython_lapack export to other extension modules.
class Capsules {
 public:
  explicit Capsules(const char* module)
      : module_(module), table_(py::module_::import(module).attr("__pyx_capi__")) {}

  template <typename Function>
  void Load(const std::string& name, Function*& function) const {
    if (!table_.contains(name)) {
      throw std::runtime_error(std::string(module_) + " has no " + name);
    }
    const py::capsule capsule = table_[name.c_str()];
    function = reinterpret_cast<Function*>(capsule.get_pointer<void>());
  }

 private:
  const char* module_;
  py::dict table_;
};

template <typename T>
void LoadLapack(const std::string& letter) {
  const Capsules blas("scipy.linalg.cython_blas"), lapack("scipy.linalg.cython_lapack");
  Lapack<T>& table = HostLapack<T>();
  blas.Load(letter + "gemm", table.gemm);
  blas.Load(letter + "gemv", table.gemv);
  blas.Load(letter + (kIsComplex<T> ? "herk" : "syrk"), table.herk);
  blas.Load(letter + "trsm", table.trsm);
  blas.Load(letter + "trmm", table.trmm);
  lapack.Load(letter + "potrf", table.potrf);
  lapack.Load(letter + "trtri", table.trtri);
  if constexpr (kIsComplex<T>) {
    lapack.Load(letter + "heevd", table.heevd);
  } else {
    lapack.Load(letter + "syevd", table.syevd);
  }
}

// The library that SciPy's BLAS is, among those that the process has loaded; NumPy's own copy,
// which has the same name, lies elsewhere.
std::string FindOpenBlas() {
  std::string found;
  auto visit = [](dl_phdr_info* info, size_t, void* data) {
    const std::string path = info->dlpi_name;
    const bool blas = path.find("openblas") != std::string::npos;
    const bool of_numpy = path.find("numpy.libs") != std::string::npos;
    if (!blas || of_numpy) return 0;
    *static_cast<std::string*>(data) = path;
    return 1;
  };
  dl_iterate_phdr(visit, &found);
  return found;
}

void LoadBlasThreads() {
  const std::string path = FindOpenBlas();
  if (path.empty()) return;
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return;
  for (const std::string prefix : {"scipy_openblas_", "openblas_"}) {
    void* get = dlsym(library, (prefix + "get_num_threads").c_str());
    void* set = dlsym(library, (prefix + "set_num_threads").c_str());
    if (get == nullptr || set == nullptr) continue;
    HostBlasThreads() = {reinterpret_cast<int (*)()>(get), reinterpret_cast<void (*)(int)>(set)};
    return;
  }
}

void LoadScipy() {
  LoadLapack<float>("s");
  LoadLapack<double>("d");
  LoadLapack<std::complex<float>>("c");
  LoadLapack<std::complex<double>>("z");
  LoadBlasThreads();
}

}  // namespace
}  // namespace jaxmg

PYBIND11_MODULE(_native, module) {
  module.doc() = "Native code of jaxmg for XLA's CPU devices.";
  jaxmg::DefineCommon(module);
  module.def("load_scipy", &jaxmg::LoadScipy,
             "Takes BLAS and LAPACK from SciPy. Call once, before the first handler runs.");
  module.def("blas_library", &jaxmg::FindOpenBlas,
             "Path of the OpenBLAS that SciPy has loaded; empty if it uses another BLAS.");
  module.def(
      "blas_threads",
      [] {
        const jaxmg::BlasThreads& threads = jaxmg::HostBlasThreads();
        return threads.get == nullptr ? 0 : threads.get();
      },
      "Threads that one BLAS call may use; 0 if the library does not say.");
}
