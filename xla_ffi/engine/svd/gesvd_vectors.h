// The singular value decomposition A = U S V^H of a square matrix, computed by all ranks:
//
//   A ─polar.h─► Q, H ─eigenproblem.h─► V, W ─► sorted, corrected: V, S ─products.h─► Q V, V^H
//
// If A = Q H and H = V W V^H, then A = (Q V) W V^H (N. J. Higham, P. Papadimitriou, Parallel
// Comput. 20, 1994; Y. Nakatsukasa, N. J. Higham, SIAM J. Sci. Comput. 35, 2013). Both steps are
// backward stable: the errors of singular values are of the size of rounding times the largest one.
//
// If V is not orthonormal to rounding, a Newton-Schulz step corrects it. Two eigenvectors with
// small residuals are far from orthogonal only if their eigenvalues are close, so the correction
// keeps residuals small.
#ifndef JAXMG_XLA_FFI_ENGINE_SVD_GESVD_VECTORS_H_
#define JAXMG_XLA_FFI_ENGINE_SVD_GESVD_VECTORS_H_

#include "xla_ffi/engine/eigen/eigenproblem.h"
#include "xla_ffi/engine/svd/polar.h"

namespace jaxmg {

// The requested singular values, in descending order, and this rank's rows of their vectors.
template <typename T>
struct SingularVectors {
  Subset subset;
  bool in_double;  // as in PolarRoutine
  T* u;            // block x subset.count(); null: all are requested, and u is the operand's block
  T* vh;           // vh_block x n
  int64_t vh_block;
  Real<T>* s;  // subset.count(), on every rank
};

// A rank's memory in addition to A and the results. The polar decomposition and the last products
// use the memory of the eigenproblem. H has its own memory unless it fits into that of V^H.
template <typename T>
struct GesvdVectorsSpace {
  GesvdVectorsSpace(const Sizes& sizes, const SingularVectors<T>& wanted, const Ranks& ranks);

  // The eigenvalues of H that belong to the singular values. Eigenvalues are negative only by
  // rounding.
  Subset eigenvalues;
  bool h_in_vh;
  Pieces own;
  Piece<Real<T>> w, signs;
  Piece<int32_t> order;
  Piece<double> sums;
  Piece<T> h;
  Pieces in_polar, in_products;  // both in the memory of the eigenproblem
  PolarSteps<T> polar;
  Piece<T> v, corrected, stage;
  int64_t elements;  // of the larger one of in_polar and in_products
  int64_t host_bytes;
};

// A routine (routines.h). Overwrites the block. If wanted.u is null, the block then contains the
// rows of U. If A has an element that isn't finite, *status is kNotFinite. Results are NaN if
// *status is not 0.
template <typename T>
Status GesvdVectorsRoutine(const RankContext& context, const Operand<T>& operand,
                           const SingularVectors<T>& wanted);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_SVD_GESVD_VECTORS_H_
