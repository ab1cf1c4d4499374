// The handlers that a plugin registers, and the table that binds names to them.
#ifndef JAXMG_XLA_FFI_HANDLERS_HANDLERS_H_
#define JAXMG_XLA_FFI_HANDLERS_HANDLERS_H_

#include "xla/ffi/api/ffi.h"

XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxmgPotrs);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxmgPotri);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxmgSyevd);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxmgCyclic1d);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxmgPotrf);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxmgFactorApply);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxmgFactorInvert);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxmgFactorDiagonal);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxmgFactorTiles);
XLA_FFI_DECLARE_HANDLER_SYMBOL(JaxmgFactorRows);

namespace jaxmg {

struct Registration {
  const char* name;
  XLA_FFI_Handler* handler;
};

inline constexpr Registration kRegistrations[] = {
    {"jaxmg_potrs", JaxmgPotrs},
    {"jaxmg_potri", JaxmgPotri},
    {"jaxmg_syevd", JaxmgSyevd},
    {"jaxmg_cyclic_1d", JaxmgCyclic1d},
    {"jaxmg_potrf", JaxmgPotrf},
    {"jaxmg_factor_apply", JaxmgFactorApply},
    {"jaxmg_factor_invert", JaxmgFactorInvert},
    {"jaxmg_factor_diagonal", JaxmgFactorDiagonal},
    {"jaxmg_factor_tiles", JaxmgFactorTiles},
    {"jaxmg_factor_rows", JaxmgFactorRows},
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_HANDLERS_H_
