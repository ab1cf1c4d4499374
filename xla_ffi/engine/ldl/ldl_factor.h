// The factorization of a Hermitian or symmetric matrix that need not be definite, as a value: the
// rank programs that compute it and that use it.
//
// A and M = A^T are n x n, and P M P^* = L T L^* (aasen.h). The factor consists of this rank's
// tiles of L (LdlTiles), stored as columns in place of rows, and of T, its LU factors and the
// pivots of both, equal on all ranks. The tile width is part of the factor: `Operand::tile` must be
// the width of LdlFactorSpace's tiles.
#ifndef JAXMG_XLA_FFI_ENGINE_LDL_LDL_FACTOR_H_
#define JAXMG_XLA_FFI_ENGINE_LDL_LDL_FACTOR_H_

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/ldl/aasen.h"

namespace jaxmg {

// What all ranks have of a factor, with tiles of b columns.
template <typename T>
struct LdlParts {
  T* band;               // T: 3 b x n (BlockBand)
  T* band_lu;            // its LU factors: 4 b x n
  int32_t* pivots;       // n, of L (Aasen)
  int32_t* band_pivots;  // n, of T (BandLu)
};

// The workspace of Aasen, and of the columns' order.
template <typename T>
struct LdlFactorSpace : RoutineSpace<T> {
  LdlFactorSpace(const Sizes& sizes, const Ranks& ranks);

  Precision precision;
  Piece<int32_t> order;
  Piece<int32_t> panel_info;
};

// This rank's columns of x, another x, and x transposed.
template <typename T>
struct LdlSolveSpace : RoutineSpace<T> {
  LdlSolveSpace(const Sizes& sizes, int64_t nrhs, const Ranks& ranks);

  Piece<T> local;
  Piece<T> sums;
  Piece<T> turned;
};

// T in host memory, on the root.
template <typename T>
struct LdlInertiaSpace : RoutineSpace<T> {
  LdlInertiaSpace(const Sizes& sizes, const Ranks& ranks);
};

// Overwrites the operand's `a`, this rank's n x block part of L, and the parts with the factor of
// A. `columns` has this rank's rows of A, as columns of M, both triangles; they are only read.
// `order` holds 0, 1, ..., n - 1. *log_abs and *sign describe A's determinant. *status is 0; k > 0
// if the k-th pivot of T is the first that is zero; or kNotFinite: then L and T are NaN. Workspace:
// LdlFactorSpace.
template <typename T>
Status LdlFactorRoutine(const RankContext& context, const Operand<T>& operand, bool hermitian,
                        const Columns<T>& columns, const int32_t* order, const LdlParts<T>& parts,
                        Real<T>* log_abs, T* sign);

// x (n x nrhs, row-major, on every rank) becomes the solution of A x = b or, with kConjTrans, of
// A^H x = b. First copies `source` to x, unless it is null. Doesn't read T. Workspace:
// LdlSolveSpace.
template <typename T>
Status LdlSolveRoutine(const RankContext& context, const Operand<T>& factor, bool hermitian,
                       const LdlParts<T>& parts, Op op, int64_t nrhs, T* x,
                       const T* source = nullptr);

// inertia, in device memory: the numbers of positive, negative and zero eigenvalues (InertiaOf) of
// a Hermitian A, on every rank. The root computes them on its host, and waits for its device.
// Reads only T. Workspace: LdlInertiaSpace.
template <typename T>
Status LdlInertiaRoutine(const RankContext& context, const Operand<T>& factor,
                         const LdlParts<T>& parts, int32_t* inertia);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_LDL_LDL_FACTOR_H_
