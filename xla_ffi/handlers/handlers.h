// The table of routines. Each line names a routine and its row: handlers, backends, plan. The
// routine's own file defines the row (JAXMG_DEFINE_ROUTINE in call.h).
#ifndef JAXMG_XLA_FFI_HANDLERS_HANDLERS_H_
#define JAXMG_XLA_FFI_HANDLERS_HANDLERS_H_

#include <string_view>

#include "xla/ffi/api/ffi.h"
#include "xla_ffi/handlers/routine.h"

#define JAXMG_FOR_EACH_ROUTINE(ROUTINE)                 \
  ROUTINE(potrs, JaxmgPotrs)                            \
  ROUTINE(potri, JaxmgPotri)                            \
  ROUTINE(syevd, JaxmgSyevd)                            \
  ROUTINE(syevx, JaxmgSyevx)                            \
  ROUTINE(sygvd, JaxmgSygvd)                            \
  ROUTINE(sygvx, JaxmgSygvx)                            \
  ROUTINE(cyclic_1d, JaxmgCyclic1d)                     \
  ROUTINE(potrf, JaxmgPotrf)                            \
  ROUTINE(factor_apply, JaxmgFactorApply)               \
  ROUTINE(factor_solve_rows, JaxmgFactorSolveRows)      \
  ROUTINE(factor_invert, JaxmgFactorInvert)             \
  ROUTINE(factor_diagonal, JaxmgFactorDiagonal)         \
  ROUTINE(factor_tiles, JaxmgFactorTiles)               \
  ROUTINE(factor_rows, JaxmgFactorRows)                 \
  ROUTINE(factor_update, JaxmgFactorUpdate)             \
  ROUTINE(hetrf, JaxmgHetrf)                            \
  ROUTINE(ldl_solve, JaxmgLdlSolve)                     \
  ROUTINE(ldl_inertia, JaxmgLdlInertia)                 \
  ROUTINE(gesv, JaxmgGesv)                              \
  ROUTINE(getri, JaxmgGetri)                            \
  ROUTINE(getrf, JaxmgGetrf)                            \
  ROUTINE(lu_apply, JaxmgLuApply)                       \
  ROUTINE(lu_solve_rows, JaxmgLuSolveRows)              \
  ROUTINE(lu_invert, JaxmgLuInvert)                     \
  ROUTINE(lu_diagonal, JaxmgLuDiagonal)                 \
  ROUTINE(lu_tiles, JaxmgLuTiles)                       \
  ROUTINE(lu_rows, JaxmgLuRows)                         \
  ROUTINE(gels, JaxmgGels)                              \
  ROUTINE(geqrf, JaxmgGeqrf)                            \
  ROUTINE(qr_apply, JaxmgQrApply)                       \
  ROUTINE(qr_apply_rows, JaxmgQrApplyRows)              \
  ROUTINE(qr_solve, JaxmgQrSolve)                       \
  ROUTINE(qr_form, JaxmgQrForm)                         \
  ROUTINE(tall_qr, JaxmgTallQr)                         \
  ROUTINE(gesvd, JaxmgGesvd)                            \
  ROUTINE(polar, JaxmgPolar)                            \
  ROUTINE(hemm, JaxmgHemm)                              \
  ROUTINE(host_potrf, JaxmgHostPotrf)                   \
  ROUTINE(host_potri, JaxmgHostPotri)                   \
  ROUTINE(host_solve, JaxmgHostSolve)                   \
  ROUTINE(host_rows, JaxmgHostRows)                     \
  ROUTINE(host_getrf, JaxmgHostGetrf)                   \
  ROUTINE(host_getrs, JaxmgHostGetrs)                   \
  ROUTINE(all_gather, JaxmgAllGather)                   \
  ROUTINE(product, JaxmgProduct)                        \
  ROUTINE(root_exchange, JaxmgRootExchange)             \
  ROUTINE(stacked_cholesky, JaxmgStackedCholesky)       \
  ROUTINE(stacked_lauum, JaxmgStackedLauum)             \
  ROUTINE(stacked_ldl, JaxmgStackedLdl)                 \
  ROUTINE(stacked_lu, JaxmgStackedLu)                   \
  ROUTINE(stacked_merge, JaxmgStackedMerge)             \
  ROUTINE(stacked_ormtr, JaxmgStackedOrmtr)             \
  ROUTINE(stacked_polar, JaxmgStackedPolar)             \
  ROUTINE(stacked_polynomials, JaxmgStackedPolynomials) \
  ROUTINE(stacked_product, JaxmgStackedProduct)         \
  ROUTINE(stacked_qr, JaxmgStackedQr)                   \
  ROUTINE(stacked_svd, JaxmgStackedSvd)                 \
  ROUTINE(stacked_inv32, JaxmgStackedInv32)             \
  ROUTINE(stacked_root, JaxmgStackedRoot)               \
  ROUTINE(stacked_scale, JaxmgStackedScale)             \
  ROUTINE(stacked_solve32, JaxmgStackedSolve32)         \
  ROUTINE(stacked_split, JaxmgStackedSplit)             \
  ROUTINE(stacked_sysv, JaxmgStackedSysv)               \
  ROUTINE(stacked_sytrd, JaxmgStackedSytrd)             \
  ROUTINE(stacked_trsm, JaxmgStackedTrsm)               \
  ROUTINE(stacked_trtri, JaxmgStackedTrtri)             \
  ROUTINE(stacked_tridiagonal, JaxmgStackedTridiagonal) \
  ROUTINE(stacked_unit, JaxmgStackedUnit)

// Declares the execute stage, the instantiate stage and the row.
#define JAXMG_DECLARE_ROUTINE(name, symbol)            \
  XLA_FFI_DECLARE_HANDLER_SYMBOL(symbol##Instantiate); \
  XLA_FFI_DECLARE_HANDLER_SYMBOL(symbol);              \
  extern const jaxmg::Routine symbol##Routine;
JAXMG_FOR_EACH_ROUTINE(JAXMG_DECLARE_ROUTINE)
#undef JAXMG_DECLARE_ROUTINE

namespace jaxmg {

#define JAXMG_ROW(name, symbol) &symbol##Routine,
inline constexpr const Routine* kRoutines[] = {JAXMG_FOR_EACH_ROUTINE(JAXMG_ROW)};
#undef JAXMG_ROW

// Returns null if there is no routine of that name.
inline const Routine* FindRoutine(std::string_view name) {
  for (const Routine* routine : kRoutines) {
    if (name == routine->name) return routine;
  }
  return nullptr;
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_HANDLERS_H_
