// The CPU plugin's extension module: provides SciPy's BLAS and LAPACK to the host device, and the
// handlers to Python.
#include <dlfcn.h>
#include <link.h>
#include <pybind11/pybind11.h>

#include <complex>
#include <stdexcept>
#include <string>
#include <vector>

#include "xla_ffi/device/host/lapack.h"
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
  lapack.Load(letter + "getrf", table.getrf);
  lapack.Load(letter + "sytrf", table.sytrf);
  lapack.Load(letter + "sysv", table.sysv);
  lapack.Load(letter + "trtri", table.trtri);
  lapack.Load(letter + "geqrf", table.geqrf);
  lapack.Load(letter + (kIsComplex<T> ? "ungqr" : "orgqr"), table.orgqr);
  if constexpr (kIsComplex<T>) {
    lapack.Load(letter + "gesdd", table.complex_gesdd);
    lapack.Load(letter + "heevd", table.heevd);
    lapack.Load(letter + "hetrf", table.hetrf);
    lapack.Load(letter + "hesv", table.hesv);
  } else {
    lapack.Load(letter + "gesdd", table.gesdd);
    lapack.Load(letter + "syevd", table.syevd);
  }
}

// Returns the functions of a loaded library if it is an OpenBLAS; empty otherwise.
BlasThreads ThreadsOf(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return {};
  BlasThreads threads;
  for (const std::string prefix : {"scipy_openblas_", "openblas_"}) {
    void* get = dlsym(library, (prefix + "get_num_threads").c_str());
    void* set = dlsym(library, (prefix + "set_num_threads").c_str());
    if (get == nullptr || set == nullptr) continue;
    threads = {reinterpret_cast<int (*)()>(get), reinterpret_cast<void (*)(int)>(set)};
    break;
  }
  dlclose(library);  // the process keeps the library, which was loaded before
  return threads;
}

struct OpenBlas {
  std::string path;
  BlasThreads threads;
};

// Finds the library of SciPy's BLAS among the libraries that the process has loaded. Recognizes it
// by its name and its functions, because folders may have any name. Skips NumPy's own copy, which
// has the same name but is in NumPy's own folder.
OpenBlas FindOpenBlas() {
  std::vector<std::string> candidates;
  auto visit = [](dl_phdr_info* info, size_t, void* data) {
    const std::string path = info->dlpi_name;
    const size_t slash = path.rfind('/');
    const bool named = path.find("openblas", slash == path.npos ? 0 : slash) != path.npos;
    if (named) static_cast<std::vector<std::string>*>(data)->push_back(path);
    return 0;
  };
  dl_iterate_phdr(visit, &candidates);
  for (const std::string& path : candidates) {
    if (path.find("/numpy.libs/libscipy_openblas") != path.npos ||
        path.find("/numpy.libs/libopenblas") != path.npos) {
      continue;
    }
    const BlasThreads threads = ThreadsOf(path);
    if (threads.get != nullptr) return {path, threads};
  }
  return {};
}

void LoadScipy() {
  LoadLapack<float>("s");
  LoadLapack<double>("d");
  LoadLapack<std::complex<float>>("c");
  LoadLapack<std::complex<double>>("z");
  HostBlasThreads() = FindOpenBlas().threads;
}

}  // namespace
}  // namespace jaxmg

PYBIND11_MODULE(_native, module) {
  module.doc() = "Native code of jaxmg for XLA's CPU devices.";
  jaxmg::DefineCommon(module);
  module.def("load_scipy", &jaxmg::LoadScipy,
             "Takes BLAS and LAPACK from SciPy. Call once, before the first handler runs.");
  module.def(
      "blas_library", [] { return jaxmg::FindOpenBlas().path; },
      "Path of the OpenBLAS that SciPy has loaded; empty if it uses another BLAS.");
  module.def(
      "blas_threads",
      [] {
        const jaxmg::BlasThreads& threads = jaxmg::HostBlasThreads();
        return threads.get == nullptr ? 0 : threads.get();
      },
      "Threads that one BLAS call may use; 0 if the library does not say.");
}
