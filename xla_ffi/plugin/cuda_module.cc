// The CUDA plugins' extension module: the handlers, and the locations of NVIDIA's libraries.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "xla_ffi/device/cuda/runtime/resources.h"
#include "xla_ffi/plugin/bindings.h"

namespace jaxmg {
namespace {

namespace py = pybind11;

std::vector<std::vector<bool>> PeerAccess() {
  std::vector<std::vector<bool>> matrix;
  const Status status = PeerMatrix(&matrix);
  if (!status.ok()) throw std::runtime_error(status.message());
  return matrix;
}

}  // namespace
}  // namespace jaxmg

PYBIND11_MODULE(_native, module) {
  module.doc() = "Native code of jaxmg for NVIDIA GPUs.";
  jaxmg::DefineCommon(module);
  module.attr("CUDA") = JAXMG_CUDA;
  module.def("set_library_folders", &jaxmg::SetCudaFolders, pybind11::arg("folders"),
             "Where to look for NVIDIA's libraries that are not in the process yet.");
  module.def("libraries", &jaxmg::OpenedCudaLibraries,
             "(soname, path) of each library; the path is empty where it has not been opened.");
  module.def("symbols", &jaxmg::CudaSymbols, "(soname, functions) that the plugin asks for.");
  module.def("peer_access", &jaxmg::PeerAccess, "Which device can reach the memory of which.");
}
