// The routines that handlers call. A routine is one rank's whole part of a call, from the caller's
// block of rows to its results: workspace, agreement, redistribution, the algorithm, the status.
//
// A is row-major, in blocks of rows. Read as column-major, each rank's block is a block of columns
// of M = A^T. For a Hermitian A, M = conj(A), and a routine reads only the upper triangle of A,
// which is the lower triangle of M.
//
// Every rank calls the same routine with the same sizes. All return the same Status: either all of
// them have enqueued everything (Stream::kMain last) or all failed. A numerical failure is not an
// error in this sense: *status reports it, and the routine's header describes its results in this
// case.
#ifndef JAXMG_XLA_FFI_ENGINE_ROUTINES_H_
#define JAXMG_XLA_FFI_ENGINE_ROUTINES_H_

#include "xla_ffi/engine/cholesky/factor.h"
#include "xla_ffi/engine/cholesky/hemm.h"
#include "xla_ffi/engine/cholesky/potri.h"
#include "xla_ffi/engine/cholesky/potrs.h"
#include "xla_ffi/engine/cholesky/update.h"
#include "xla_ffi/engine/core/cyclic.h"
#include "xla_ffi/engine/core/gather.h"
#include "xla_ffi/engine/core/root_exchange.h"
#include "xla_ffi/engine/eigen/eigenproblem.h"
#include "xla_ffi/engine/eigen/sygvd.h"
#include "xla_ffi/engine/ldl/ldl_factor.h"
#include "xla_ffi/engine/lu/gesv.h"
#include "xla_ffi/engine/lu/getri.h"
#include "xla_ffi/engine/lu/lu_factor.h"
#include "xla_ffi/engine/offload/host_getrf.h"
#include "xla_ffi/engine/offload/host_getrs.h"
#include "xla_ffi/engine/offload/host_potrf.h"
#include "xla_ffi/engine/offload/host_potri.h"
#include "xla_ffi/engine/offload/host_rows.h"
#include "xla_ffi/engine/offload/host_solve.h"
#include "xla_ffi/engine/products/product.h"
#include "xla_ffi/engine/qr/gels.h"
#include "xla_ffi/engine/qr/qr_factor.h"
#include "xla_ffi/engine/qr/tall/tall_qr.h"
#include "xla_ffi/engine/qr/whole_qr.h"
#include "xla_ffi/engine/svd/gesvd.h"
#include "xla_ffi/engine/svd/gesvd_vectors.h"
#include "xla_ffi/engine/svd/polar.h"
#include "xla_ffi/engine/svd/whole_svd.h"

#endif  // JAXMG_XLA_FFI_ENGINE_ROUTINES_H_
