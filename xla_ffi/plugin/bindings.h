// What every plugin's extension module offers Python, whatever its platform.
#ifndef JAXMG_XLA_FFI_PLUGIN_BINDINGS_H_
#define JAXMG_XLA_FFI_PLUGIN_BINDINGS_H_

#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>

#include "xla_ffi/handlers/backends.h"
#include "xla_ffi/handlers/handlers.h"
#include "xla_ffi/handlers/options.h"
#include "xla_ffi/handlers/plan.h"

namespace jaxmg {

inline pybind11::dict Registrations() {
  pybind11::dict registrations;
  for (const Registration& entry : kRegistrations) {
    registrations[entry.name] = pybind11::capsule(reinterpret_cast<void*>(entry.handler));
  }
  return registrations;
}

inline pybind11::dict PlanOf(const std::string& routine, const std::string& backend,
                             const std::string& dtype, int64_t n, int64_t rows, int ranks,
                             int64_t tile, int64_t nrhs, bool vectors,
                             const std::string& platform) {
  PlanAnswer answer;
  const Status status =
      AnswerPlan({routine, backend, dtype, n, rows, ranks, tile, nrhs, vectors, platform}, &answer);
  if (!status.ok()) throw std::invalid_argument(status.message());
  pybind11::list bytes;
  for (int64_t value : answer.bytes) bytes.append(value);
  pybind11::dict plan;
  plan["tile"] = answer.tile;
  plan["overflow_rows"] = answer.overflow_rows;
  plan["gathered"] = answer.gathered;
  plan["bytes"] = bytes;
  plan["solver"] = answer.solver;
  return plan;
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
  module.def(
      "backends",
      [](const std::string& routine) {
        pybind11::list names;
        for (const std::string& name : BackendsOf(routine)) names.append(name);
        return names;
      },
      pybind11::arg("routine"), "The backends that serve a routine, the preferred one first.");
  module.def("plan", &PlanOf, pybind11::arg("routine"), pybind11::arg("backend"),
             pybind11::arg("dtype"), pybind11::arg("n"), pybind11::arg("rows"),
             pybind11::arg("ranks"), pybind11::arg("tile") = 0, pybind11::arg("nrhs") = 1,
             pybind11::arg("vectors") = true, pybind11::arg("platform") = "",
             "How a call would be laid out: tile width, rows of a factor's overflow tile, whether "
             "one rank does it all, and by rank the bytes of workspace and results beside A.");
  module.def("compiler", [] { return std::string(__VERSION__); });
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_PLUGIN_BINDINGS_H_
