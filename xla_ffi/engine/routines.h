// The routines as one rank runs them from a caller's block of rows to its results: workspace,
// agreement, redistribution, the algorithm, the status. What a handler calls.
//
// A is row-major, in blocks of rows; each rank's block, read column by column, is a block of
// columns of M. Where A is Hermitian M = conj(A), and only A's upper triangle is read, which is M's
// lower one.
//
// Every rank calls the same routine with the same sizes. All return the same Status: either all of
// them have enqueued everything (Stream::kMain last) or all failed. A numerical failure is none in
// this sense: *status says which, and a routine's header what becomes of its results.
#ifndef JAXMG_XLA_FFI_ENGINE_ROUTINES_H_
#define JAXMG_XLA_FFI_ENGINE_ROUTINES_H_

#include "xla_ffi/engine/cholesky/factor.h"
#include "xla_ffi/engine/cholesky/hemm.h"
#include "xla_ffi/engine/cholesky/potri.h"
#include "xla_ffi/engine/cholesky/potrs.h"
#include "xla_ffi/engine/core/cyclic.h"
#include "xla_ffi/engine/core/gather.h"
#include "xla_ffi/engine/eigen/eigenproblem.h"
#include "xla_ffi/engine/eigen/sygvd.h"
#include "xla_ffi/engine/lu/gesv.h"
#include "xla_ffi/engine/lu/getri.h"
#include "xla_ffi/engine/lu/lu_factor.h"

#endif  // JAXMG_XLA_FFI_ENGINE_ROUTINES_H_
