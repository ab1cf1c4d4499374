// The handlers that a plugin registers, and the table that binds names to them.
#ifndef JAXMG_XLA_FFI_HANDLERS_HANDLERS_H_
#define JAXMG_XLA_FFI_HANDLERS_HANDLERS_H_

#include "xla/ffi/api/ffi.h"

// With what makes the state of a call of it, where there is any.
#define JAXMG_DECLARE_HANDLER(symbol)                  \
  XLA_FFI_DECLARE_HANDLER_SYMBOL(symbol##Instantiate); \
  XLA_FFI_DECLARE_HANDLER_SYMBOL(symbol)

JAXMG_DECLARE_HANDLER(JaxmgPotrs);
JAXMG_DECLARE_HANDLER(JaxmgPotri);
JAXMG_DECLARE_HANDLER(JaxmgSyevd);
JAXMG_DECLARE_HANDLER(JaxmgSyevx);
JAXMG_DECLARE_HANDLER(JaxmgSygvd);
JAXMG_DECLARE_HANDLER(JaxmgSygvx);
JAXMG_DECLARE_HANDLER(JaxmgCyclic1d);
JAXMG_DECLARE_HANDLER(JaxmgPotrf);
JAXMG_DECLARE_HANDLER(JaxmgFactorApply);
JAXMG_DECLARE_HANDLER(JaxmgFactorSolveRows);
JAXMG_DECLARE_HANDLER(JaxmgFactorInvert);
JAXMG_DECLARE_HANDLER(JaxmgFactorDiagonal);
JAXMG_DECLARE_HANDLER(JaxmgFactorTiles);
JAXMG_DECLARE_HANDLER(JaxmgFactorRows);
JAXMG_DECLARE_HANDLER(JaxmgHemm);
JAXMG_DECLARE_HANDLER(JaxmgAllGather);

namespace jaxmg {

struct Registration {
  const char* name;
  XLA_FFI_Handler* instantiate;
  XLA_FFI_Handler* execute;
};

inline constexpr Registration kRegistrations[] = {
    {"jaxmg_potrs", JaxmgPotrsInstantiate, JaxmgPotrs},
    {"jaxmg_potri", JaxmgPotriInstantiate, JaxmgPotri},
    {"jaxmg_syevd", JaxmgSyevdInstantiate, JaxmgSyevd},
    {"jaxmg_syevx", JaxmgSyevxInstantiate, JaxmgSyevx},
    {"jaxmg_sygvd", JaxmgSygvdInstantiate, JaxmgSygvd},
    {"jaxmg_sygvx", JaxmgSygvxInstantiate, JaxmgSygvx},
    {"jaxmg_cyclic_1d", JaxmgCyclic1dInstantiate, JaxmgCyclic1d},
    {"jaxmg_potrf", JaxmgPotrfInstantiate, JaxmgPotrf},
    {"jaxmg_factor_apply", JaxmgFactorApplyInstantiate, JaxmgFactorApply},
    {"jaxmg_factor_solve_rows", JaxmgFactorSolveRowsInstantiate, JaxmgFactorSolveRows},
    {"jaxmg_factor_invert", JaxmgFactorInvertInstantiate, JaxmgFactorInvert},
    {"jaxmg_factor_diagonal", JaxmgFactorDiagonalInstantiate, JaxmgFactorDiagonal},
    {"jaxmg_factor_tiles", JaxmgFactorTilesInstantiate, JaxmgFactorTiles},
    {"jaxmg_factor_rows", JaxmgFactorRowsInstantiate, JaxmgFactorRows},
    {"jaxmg_hemm", JaxmgHemmInstantiate, JaxmgHemm},
    {"jaxmg_all_gather", JaxmgAllGatherInstantiate, JaxmgAllGather},
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_HANDLERS_H_
