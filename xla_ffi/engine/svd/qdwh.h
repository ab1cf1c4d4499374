// QDWH, the dynamically weighted Halley iteration: computes the unitary factor U of A = U H by all
// ranks (Y. Nakatsukasa, Z. Bai, F. Gygi, SIAM J. Matrix Anal. Appl. 31, 2010; Y. Nakatsukasa, N.
// J. Higham, SIAM J. Sci. Comput. 35, 2013).
//
// A step maps each singular value x of the iterate to x (a + b x^2) / (1 + c x^2). Its weights map
// the interval [l, 1] as close to 1 as such a function can. A step is computed in one of two ways:
//
// - If c is small, by the Cholesky factor of I + c X^H X, whose condition is at most 1 + c.
// - Otherwise by the QR decomposition of [sqrt(c) X; I]. The QR is CholeskyQR2: the Cholesky
//   factorization of the Gram matrix, and a correction by the Gram matrix of the resulting Q. It is
//   as orthogonal as Householder's QR if sqrt(c) is below the inverse square root of the rounding.
//   So the weights use an l for which this holds, and tiny singular values take some more steps.
//
// From l = 0.99 on, a step uses the binomial series of (I + D)^(-1/2), D = X^H X - I, which needs
// no inverse (A. Bjorck, C. Bowie, SIAM J. Numer. Anal. 8, 1971). It has as many terms as the norm
// of D requires, up to D^4, whose error is 63/256 |D|^5. With S = D^2 - 4/7 D the sum is I - D / 2
// + 2/7 D^2 + 35/128 S^2, two products of a matrix with its adjoint.
//
// l comes from an estimate of the smallest singular value, by inverse iteration with X^H X. If the
// rounding of X^H X hides that value, the step uses a hundredth of the smallest value that is
// distinguishable from rounding, or the smallest l that a QR step allows. The estimate is then
// repeated with the next X, whose small singular values are at least 10^4 times as large in double
// precision. If rounding hides the value there too, X gets a perturbation of the size of rounding.
// After that no singular value is 0, so U has orthonormal columns whatever the rank of A.
//
// The choice of the next step depends on norms and estimates that the hosts of all ranks read.
// These numbers are equal on all ranks, so all ranks choose the same.
#ifndef JAXMG_XLA_FFI_ENGINE_SVD_QDWH_H_
#define JAXMG_XLA_FFI_ENGINE_SVD_QDWH_H_

#include <array>

#include "xla_ffi/engine/products/products.h"
#include "xla_ffi/engine/svd/gram_factor.h"

namespace jaxmg {

// The weights of a step for singular values in [low, 1].
struct Weights {
  double a, b, c;
};
Weights WeightsOf(double low);

// The memory of the iteration in addition to X: a rank's rows of X^H X and of three more matrices
// (two on a single rank).
template <typename T>
struct QdwhSpace {
  // `gram`: whether to reserve memory for X^H X; otherwise the caller passes it.
  QdwhSpace(Pieces& pieces, const Sizes& sizes, const Ranks& ranks, bool gram);

  Piece<T> gram;
  std::array<Piece<T>, 3> matrices;
  Piece<T> stage;    // of products
  Piece<T> vectors;  // whole vectors, and a part of one
  Piece<double> sums;
  Piece<int32_t> info;
  GramFactorSpace<T> factor;
  int64_t host_bytes;
};

template <typename T>
class Qdwh {
 public:
  // `gram` is the memory of QdwhSpace or the caller's. `host` has the space's host_bytes.
  Qdwh(const RankContext& context, const Sizes& sizes, const QdwhSpace<T>& space,
       const Workspace& workspace, T* gram, void* host);

  // Must be called before the ranks start to work.
  Status Prepare();

  // On entry *x points to this rank's rows of a square matrix, n x block, whose largest entry is
  // between 1/2 and 1. On exit it points to the rows of U, which are in this memory or in a matrix
  // of the workspace. Sets *finite to false if the iteration met a value that isn't finite; then U
  // is undefined.
  Status Run(T** x, bool* finite);

  // Returns memory of n x block elements that is free after Run.
  T* free(int i) const { return spare_[i]; }
  T* gram() const { return gram_; }
  T* stage() const { return workspace_.Get(space_.stage); }

 private:
  struct State {
    double low = 0;      // l, a lower bound of the singular values of X
    bool known = false;  // whether l is known
    bool apart = true;   // whether X differs from U by more than rounding
    bool finite = true;
  };

  Device& device() const { return context_.device; }
  Blas<T>& blas() const { return context_.device.template blas<T>(); }
  MatrixKernels<T>& matrix() const { return context_.device.template matrix<T>(); }
  bool alone() const { return context_.comm.size() == 1; }
  RowBlocks<T> Rows(T* data) const { return {n_, n_, block_, data}; }
  static ProductTerms<T> Terms(double alpha, double beta) {
    return {static_cast<Real<T>>(alpha), static_cast<Real<T>>(beta)};
  }
  double unit() const;
  double RoundingOfGram() const;
  double LeastLow() const;

  Status Step(State& state);
  Status Estimate(State& state);
  Status ByInverse(const Weights& weights);
  Status ByQr(const Weights& weights);
  Status BySeries(State& state);
  // spare_[0] := L^-1 of the factor; spare_[1] := Q1 = sqrt(c) X L^-H. `root` is sqrt(c).
  Status FormQ(double root);
  // Multiplies Q1 by (I + D)^-1, where D = Q1^H Q1 + Q2^H Q2 - I is in gram_; if `near`, by I - D.
  Status Correct(bool near);

  // gram := factor gram + I
  Status PlusIdentity(double factor, T* gram);
  // gram := alpha X^H X + beta gram
  Status GramOf(T* x, double alpha, double beta, T* gram);
  Status Combine(double alpha, const T* a, double beta, T* c);
  Status AddToDiagonal(double value, T* a);
  // Sets v to noise, scaled to length 1 and equal on all ranks.
  Status MakeNoise(T* v);
  Status Normalize(T* v);
  // Reads the norm of v (unless it is null) and the Frobenius norm of the matrix `of` to the hosts
  // of all ranks.
  Status ReadNorms(const T* v, const T* of, double* vector, double* frobenius);
  // Computes an upper bound of the 2-norm of a Hermitian matrix, at most a quarter too large.
  Status Norm(const T* hermitian, double* norm);

  const RankContext& context_;
  const QdwhSpace<T>& space_;
  const Workspace& workspace_;
  const int64_t n_, block_, begin_, width_;
  GramFactor<T> factor_;
  T *x_ = nullptr, *gram_;
  std::array<T*, 3> spare_;
  double* const host_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_SVD_QDWH_H_
