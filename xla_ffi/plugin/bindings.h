// What every plugin's extension module offers Python, whatever its platform.
#ifndef JAXMG_XLA_FFI_PLUGIN_BINDINGS_H_
#define JAXMG_XLA_FFI_PLUGIN_BINDINGS_H_

#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>

#include "xla_ffi/handlers/handlers.h"
#include "xla_ffi/handlers/options.h"

namespace jaxmg {

inline pybind11::dict Registrations() {
  pybind11::dict registrations;
  for (const Registration& entry : kRegistrations) {
    registrations[entry.name] = pybind11::capsule(reinterpret_cast<void*>(entry.handler));
  }
  return registrations;
}

inline void DefineCommon(pybind11::module_& module) {
  ReadOptions();
  module.def("registrations", &Registrations,
             "XLA FFI handlers by the name under which to register them.");
  module.def(
      "rendezvous_timeout", [] { return RendezvousTimeout().count(); },
      "Seconds that a rank waits for the other ranks of its call.");
  module.def(
      "set_rendezvous_timeout",
      [](double seconds) {
        if (!(seconds > 0)) throw std::invalid_argument("the time limit must be positive");
        SetRendezvousTimeout(Seconds(seconds));
      },
      pybind11::arg("seconds"));
  module.def("compiler", [] { return std::string(__VERSION__); });
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_PLUGIN_BINDINGS_H_
