// The singular value decomposition A = U S V^H of a square matrix, by all ranks:
//
//   A ──polar.h──► Q, H ──eigenproblem.h──► V, W ──► sorted, corrected: V, S ──products.h──► Q V,
//   V^H
//
// With A = Q H and H = V W V^H it is A = (Q V) W V^H (N. J. Higham, P. Papadimitriou, Parallel
// Comput. 20, 1994; Y. Nakatsukasa, N. J. Higham, SIAM J. Sci. Comput. 35, 2013). Both steps are
// backward stable: singular values have errors of the size of rounding times the largest.
//
// A step of Newton and Schulz is taken where V is not orthonormal to rounding. Two eigenvectors of
// a small residual can only be so where their eigenvalues are close to each other, so the step
// leaves the residual small.
#ifndef JAXMG_XLA_FFI_ENGINE_SVD_GESVD_VECTORS_H_
#define JAXMG_XLA_FFI_ENGINE_SVD_GESVD_VECTORS_H_

#include "xla_ffi/engine/eigen/eigenproblem.h"
#include "xla_ffi/engine/svd/polar.h"

namespace jaxmg {

// Which singular values are wanted, in descending order, and this rank's rows of their vectors.
template <typename T>
struct SingularVectors {
  Subset subset;
  bool in_double;  // as in PolarRoutine
  T* u;            // block x subset.count(); null: all are wanted, and u is the operand's block
  T* vh;           // vh_block x n
  int64_t vh_block;
  Real<T>* s;  // subset.count(), on every rank
};

// What a rank needs beside A and the results: the memory of the eigenproblem, in which the polar
// decomposition and the last products have theirs, and H's where V^H's is too small for it.
template <typename T>
struct GesvdVectorsSpace {
  GesvdVectorsSpace(const Sizes& sizes, const SingularVectors<T>& wanted, const Ranks& ranks);

  // The eigenvalues of H that belong to the singular values. No eigenvalue is negative but by
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
  int64_t elements;  // of the larger one
  int64_t host_bytes;
};

// A routine (routines.h). The block is overwritten, by the rows of U where wanted.u is null. If A
// has an element that isn't finite, *status is kNotFinite. Results are NaN if *status is not 0.
template <typename T>
Status GesvdVectorsRoutine(const RankContext& context, const Operand<T>& operand,
                           const SingularVectors<T>& wanted);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_SVD_GESVD_VECTORS_H_
