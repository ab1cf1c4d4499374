// Routine: what a plugin knows of a routine, in one row. Each routine's file ends with its row, and
// handlers.h lists them.
#ifndef JAXMG_XLA_FFI_HANDLERS_ROUTINE_H_
#define JAXMG_XLA_FFI_HANDLERS_ROUTINE_H_

#include <array>
#include <cstddef>
#include <string_view>

#include "xla/ffi/api/ffi.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/handlers/plan.h"

namespace jaxmg {

// A solver of a routine: the engine's, or a vendor's with the engine's signature.
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

inline constexpr const char* kNative = "native";
// Of a routine that the engine alone has.
inline constexpr Backends kNativeAlone = {&kNative, 1};

struct Routine {
  const char* name;  // without jaxmg_, which XLA's target has before it
  XLA_FFI_Handler* instantiate;
  XLA_FFI_Handler* execute;
  Backends backends = kNativeAlone;
  // What a call would need; null of a routine that has no plan of its own.
  PlanFunction* plan = nullptr;
};

// The index of the backend that a call names, if this plugin has it for the routine.
Status FindBackend(const char* routine, const Backends& backends, std::string_view name,
                   size_t* index);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_ROUTINE_H_
