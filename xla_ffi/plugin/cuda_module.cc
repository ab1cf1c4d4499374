// The CUDA plugins' extension module: the handlers, and where to look for NVIDIA's libraries.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "xla_ffi/device/cuda_resources.h"
#include "xla_ffi/handlers/handlers.h"
#include "xla_ffi/handlers/options.h"

namespace jaxmg {
namespace {

namespace py = pybind11;

py::dict Registrations() {
  py::dict registrations;
  for (const Registration& entry : kRegistrations) {
    registrations[entry.name] = py::capsule(reinterpret_cast<void*>(entry.handler));
  }
  return registrations;
}

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
  module.attr("CUDA") = JAXMG_CUDA;
  module.def("registrations", &jaxmg::Registrations,
             "XLA FFI handlers by the name under which to register them.");
  module.def("set_library_folders", &jaxmg::SetCudaFolders, pybind11::arg("folders"),
             "Where to look for NVIDIA's libraries that are not in the process yet.");
  module.def("libraries", &jaxmg::OpenedCudaLibraries,
             "(soname, path) of each library; the path is empty where it has not been opened.");
  module.def("symbols", &jaxmg::CudaSymbols, "(soname, functions) that the plugin asks for.");
  module.def("peer_access", &jaxmg::PeerAccess, "Which device can reach the memory of which.");
  module.def(
      "rendezvous_timeout", [] { return jaxmg::RendezvousTimeout().count(); },
      "Seconds that a rank waits for the other ranks of its call.");
  module.def(
      "set_rendezvous_timeout",
      [](double seconds) {
        if (!(seconds > 0)) throw std::invalid_argument("the time limit must be positive");
        jaxmg::SetRendezvousTimeout(std::chrono::duration<double>(seconds));
      },
      pybind11::arg("seconds"));
  module.def("compiler", [] { return std::string(__VERSION__); });
}
