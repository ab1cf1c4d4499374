// Routine: the row that describes a routine to a plugin. Each routine's file ends with its row, and
// handlers.h lists the rows.
#ifndef JAXMG_XLA_FFI_HANDLERS_ROUTINE_H_
#define JAXMG_XLA_FFI_HANDLERS_ROUTINE_H_

#include <array>
#include <cstddef>
#include <string_view>

#include "xla/ffi/api/ffi.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/handlers/plan.h"

namespace jaxmg {

// A solver of a routine: the engine's, or a vendor's with the same signature.
template <typename Function>
struct Solver {
  const char* backend;
  Function* solve;
};

// The backends that serve a routine, the preferred one first.
struct Backends {
  const char* const* names;
  size_t count;

  const char* const* begin() const { return names; }
  const char* const* end() const { return names + count; }
};

template <typename Function, size_t kCount>
constexpr std::array<const char*, kCount> NamesOf(const Solver<Function> (&solvers)[kCount]) {
  std::array<const char*, kCount> names = {};
  for (size_t i = 0; i < kCount; ++i) names[i] = solvers[i].backend;
  return names;
}

// The backends of a routine that only the engine provides.
inline constexpr Backends kNativeAlone = {&kNative, 1};

struct Routine {
  const char* name;              // XLA's target has the prefix jaxmg_
  XLA_FFI_Handler* instantiate;  // null if the routine needs no instantiate stage
  XLA_FFI_Handler* execute;
  Backends backends = kNativeAlone;
  // Computes the memory that a call needs; null if the routine has no plan.
  PlanFunction* plan = nullptr;
};

// Sets *index to the index of the backend. Returns an error if this plugin doesn't have the backend
// for the routine.
Status FindBackend(const char* routine, const Backends& backends, std::string_view name,
                   size_t* index);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_ROUTINE_H_
