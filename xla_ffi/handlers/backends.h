// The solvers behind a routine: the engine's, or a vendor's with the engine's signature.
#ifndef JAXMG_XLA_FFI_HANDLERS_BACKENDS_H_
#define JAXMG_XLA_FFI_HANDLERS_BACKENDS_H_

#include <string_view>

#include "xla_ffi/engine/routines.h"
#ifdef JAXMG_CUDA
#include "xla_ffi/vendor/cusolvermg/mg.h"
#endif

namespace jaxmg {

enum class Backend { kNative, kCusolverMg };

// The backend that a call names, if this plugin has it.
inline Status FindBackend(const char* routine, std::string_view name, Backend* backend) {
  if (name == "native") {
    *backend = Backend::kNative;
    return Status::Ok();
  }
#ifdef JAXMG_CUDA
  if (name == "cusolvermg") {
    *backend = Backend::kCusolverMg;
    return Status::Ok();
  }
#endif
  return Error(Code::kInvalidArgument, routine, ": this plugin has no backend '", name, "'");
}

template <typename T>
Status RunPotrs(Backend backend, const RankContext& context, const Operand<T>& operand,
                const Solution<T>& solution) {
#ifdef JAXMG_CUDA
  if (backend == Backend::kCusolverMg) return mg::Potrs(context, operand, solution);
#endif
  (void)backend;
  return PotrsRoutine<T>(context, operand, solution);
}

template <typename T>
Status RunPotri(Backend backend, const RankContext& context, const Operand<T>& operand) {
#ifdef JAXMG_CUDA
  if (backend == Backend::kCusolverMg) return mg::Potri(context, operand);
#endif
  (void)backend;
  return PotriRoutine<T>(context, operand);
}

template <typename T>
Status RunSyevd(Backend backend, const RankContext& context, const Operand<T>& operand,
                bool vectors, Real<T>* w) {
#ifdef JAXMG_CUDA
  if (backend == Backend::kCusolverMg) return mg::Syevd(context, operand, vectors, w);
#endif
  (void)backend;
  return SyevdRoutine<T>(context, operand, vectors, w);
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_BACKENDS_H_
