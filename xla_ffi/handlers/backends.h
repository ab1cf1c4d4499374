// The table of routines and backends: for each backend what solves, the engine or a vendor's with
// the engine's signature.
#ifndef JAXMG_XLA_FFI_HANDLERS_BACKENDS_H_
#define JAXMG_XLA_FFI_HANDLERS_BACKENDS_H_

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "xla_ffi/engine/routines.h"
#ifdef JAXMG_CUDA
#include "xla_ffi/vendor/cusolvermg/mg.h"
#include "xla_ffi/vendor/cusolvermp/mp.h"
#endif

namespace jaxmg {

// Null where a backend doesn't have the routine. Those that aren't here are the engine's alone.
template <typename T>
struct Solvers {
  const char* backend;
  Status (*potrs)(const RankContext&, const Operand<T>&, const Solution<T>&);
  Status (*potri)(const RankContext&, const Operand<T>&);
  Status (*syevd)(const RankContext&, const Operand<T>&, bool vectors, Real<T>* w);
};

// The preferred one first.
template <typename T>
inline constexpr Solvers<T> kSolvers[] = {
    {"native", &PotrsRoutine<T>, &PotriRoutine<T>, &SyevdRoutine<T>},
#ifdef JAXMG_CUDA
    {"cusolvermg", &mg::Potrs<T>, &mg::Potri<T>, &mg::Syevd<T>},
    {"cusolvermp", &mp::Potrs<T>, nullptr, &mp::Syevd<T>},
#endif
};

// A row of the table.
using Backend = size_t;
inline constexpr Backend kNative = 0;

// The rows of the grid of ranks that a call names behind its backend, as in "cusolvermp:2"; 0 where
// it names none.
inline int64_t GridRows(std::string_view name) {
  int64_t rows = 0;
  const size_t colon = std::min(name.find(':'), name.size());
  for (const char digit : name.substr(std::min(colon + 1, name.size()))) {
    rows = rows * 10 + (digit - '0');
  }
  return rows;
}

// The backend that a call names, if this plugin has it.
inline Status FindBackend(const char* routine, std::string_view name, Backend* backend) {
  name = name.substr(0, name.find(':'));
  for (*backend = 0; *backend < std::size(kSolvers<double>); ++*backend) {
    if (name == kSolvers<double>[*backend].backend) return Status::Ok();
  }
  return Error(Code::kInvalidArgument, routine, ": this plugin has no backend '", name, "'");
}

// Those that serve a routine.
inline std::vector<std::string> BackendsOf(std::string_view routine) {
  std::vector<std::string> names;
  for (const Solvers<double>& row : kSolvers<double>) {
    const bool serves = routine == "potrs"   ? row.potrs != nullptr
                        : routine == "potri" ? row.potri != nullptr
                        : routine == "syevd" || routine == "syevx"
                            ? row.syevd != nullptr
                            : row.backend == kSolvers<double>[kNative].backend;
    if (serves) names.push_back(row.backend);
  }
  return names;
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_BACKENDS_H_
