// sygvd: A x = lambda B x, A Hermitian and B Hermitian positive definite, as LAPACK's problem of
// type 1. With M = conj(A), N = conj(B) = L L^H and u = conj(x):
//
// clang-format off
//   N ── potrf.h ──► L       C = L^-1 M L^-H,   C y = lambda y,   u = L^-H y,   u^H N u = y^H y = 1
//                    │
//   M ───── solve_rows.h ──► C ── eigenproblem.h ──► lambda, Y^H ── solve_rows.h ──► U^H = Y^H L^-1
// clang-format on
//
// Computes both triangles of C: 2 n^3 operations, twice as many as LAPACK's sygst, in two solves
// that mostly consist of products (G. H. Golub and C. F. Van Loan, "Matrix Computations", 4th ed.,
// section 8.7.2). The back-transformation of k eigenvectors takes n^2 k operations.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_SYGVD_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_SYGVD_H_

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/core/subset.h"
#include "xla_ffi/engine/eigen/eigenproblem.h"

namespace jaxmg {

// Returns the workspace for A: EigenproblemSpace, with at least this rank's block of rows.
template <typename T>
EigenproblemSpace<T> SygvdSpace(const Sizes& sizes, bool vectors, const Subset& subset,
                                const Ranks& ranks);

// The workspace for B: the workspace of Potrf and SolveRows, and an overflow tile.
template <typename T>
struct SygstSpace : RoutineSpace<T> {
  SygstSpace(const Sizes& sizes, const Ranks& ranks);
};

// A routine (routines.h). w (n): the eigenvalues, ascending. Unless v is null, writes the block's
// rows of the eigenvectors of `subset` to it, block x subset.count(), row-major, with X^H B X = I.
// v may be a's block if the subset has all eigenvalues. Both blocks are overwritten. a and b must
// have equal order, block and tile width. If b is not positive definite, *a.status is n plus b's
// info; b.status is not used. Workspace (docs/memory.md): SygvdSpace and SygstSpace.
template <typename T>
Status SygvdRoutine(const RankContext& context, const Operand<T>& a, const Operand<T>& b,
                    const Subset& subset, Real<T>* w, T* v);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_SYGVD_H_
