// The polar decomposition A = U H of a square matrix, by QDWH (qdwh.h).
//
// It usually takes three to six steps. A step, including X^H X, takes 3.3 n^3 operations over all
// ranks by an inverse, 7.7 n^3 (one rank) to 9.7 n^3 by QR, and 3 n^3 to 5 n^3 by the series. An
// estimate of the smallest singular value adds n^3 / 3. Up to order Tuning::usual_tile, where
// products with adjoints aren't halved (Gram), the range is 4 n^3 to 13 n^3.
#ifndef JAXMG_XLA_FFI_ENGINE_SVD_POLAR_H_
#define JAXMG_XLA_FFI_ENGINE_SVD_POLAR_H_

#include <complex>
#include <optional>
#include <type_traits>

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/svd/qdwh.h"

namespace jaxmg {

// The double-precision dtype in which a single-precision matrix is decomposed.
template <typename T>
using InDouble = std::conditional_t<kIsComplex<T>, std::complex<double>, double>;

// The iteration's memory, and memory for X if A is needed afterwards or has another dtype.
template <typename T>
struct PolarSteps {
  // `hermitian`: whether H is requested, for which the caller has memory. `in_double`: whether the
  // iteration is in double precision.
  PolarSteps(Pieces& pieces, const Sizes& sizes, bool hermitian, bool in_double,
             const Ranks& ranks);

  Piece<T> x = {}, stage = {};
  Piece<InDouble<T>> x_in_double = {};
  std::optional<QdwhSpace<T>> own;
  std::optional<QdwhSpace<InDouble<T>>> in_double;
  Piece<Real<T>> largest;
  int64_t host_bytes;
};

// The decomposition as a part of another rank program, in that program's memory.
template <typename T>
class Polar {
 public:
  // `a` is this rank's rows of A, n x block. `h` is memory for the rows of H, or null if `space`
  // was made without H. `host` has space.host_bytes.
  Polar(const RankContext& context, const Sizes& sizes, const PolarSteps<T>& space,
        const Workspace& workspace, T* a, T* h, void* host);

  // Must be called before the ranks start to work.
  Status Prepare() const;

  // a := the rows of U; h := the rows of 2^-exponent H, unless it is null. Sets *finite to false if
  // A has an element that isn't finite; then both are undefined.
  Status Compute(int* exponent, bool* finite) const;

 private:
  Device& device() const { return context_.device; }
  MatrixKernels<T>& matrix() const { return context_.device.template matrix<T>(); }
  bool alone() const { return context_.comm.size() == 1; }
  int64_t rows() const;
  template <typename W>
  Qdwh<W> IterationOf(const QdwhSpace<W>& space) const;

  // Computes the exponent of the smallest power of two that exceeds all entries of A, and whether
  // all entries are finite.
  Status FindExponent(int* exponent, bool* finite) const;
  Status Iterate(bool* finite) const;
  Status IterateInDouble(bool* finite) const;
  // h := the Hermitian part of U^H A. `scratch` has as many elements as h.
  Status FormHermitian(T* u, T* scratch) const;

  const RankContext& context_;
  const Sizes sizes_;
  const PolarSteps<T>& space_;
  const Workspace& workspace_;
  T *const a_, *const h_;
  void* const host_;
};

template <typename T>
struct PolarSpace : RoutineSpace<T> {
  PolarSpace(const Sizes& sizes, bool hermitian, bool in_double, const Ranks& ranks);

  PolarSteps<T> steps;
};

// A routine (routines.h). Overwrites the block with the rows of U, which has orthonormal columns
// whatever the rank of A. Unless h is null, writes the rows of H to it: block x n, row-major. h
// must not overlap the operand's block. If A has an element that isn't finite, *status is
// kNotFinite, and U and H are NaN.
template <typename T>
Status PolarRoutine(const RankContext& context, const Operand<T>& operand, bool in_double, T* h);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_SVD_POLAR_H_
