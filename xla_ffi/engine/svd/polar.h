// The polar decomposition A = U H of a square matrix, by QDWH (qdwh.h).
//
// Three to six steps as a rule, of 4 n^3 to 13 n^3 operations by all ranks.
#ifndef JAXMG_XLA_FFI_ENGINE_SVD_POLAR_H_
#define JAXMG_XLA_FFI_ENGINE_SVD_POLAR_H_

#include <complex>
#include <optional>
#include <type_traits>

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/svd/qdwh.h"

namespace jaxmg {

// The dtype in which a matrix in single precision is computed in double.
template <typename T>
using InDouble = std::conditional_t<kIsComplex<T>, std::complex<double>, double>;

// The iteration's memory, and X where A is needed afterwards or has another dtype.
template <typename T>
struct PolarSteps {
  // `hermitian`: whether the caller has memory for H and wants it. `in_double`: whether the
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

// The decomposition inside another rank program, in its memory.
template <typename T>
class Polar {
 public:
  // `a` is this rank's rows of A, n x block, and `h` memory for those of H or null, as `space` has
  // been made for. `host` has its host_bytes.
  Polar(const RankContext& context, const Sizes& sizes, const PolarSteps<T>& space,
        const Workspace& workspace, T* a, T* h, void* host);

  // To be called before the ranks start to work.
  Status Prepare() const;

  // a := the rows of U; h := those of 2^-exponent H. *finite is false if A has an element that
  // isn't finite; then both are undefined.
  Status Compute(int* exponent, bool* finite) const;

 private:
  Device& device() const { return context_.device; }
  MatrixKernels<T>& matrix() const { return context_.device.template matrix<T>(); }
  bool alone() const { return context_.comm.size() == 1; }
  int64_t rows() const;
  template <typename W>
  Qdwh<W> IterationOf(const QdwhSpace<W>& space) const;

  // The exponent of the power of two that is above the largest entry of A and next to it.
  Status FindExponent(int* exponent, bool* finite) const;
  Status Iterate(bool* finite) const;
  Status IterateInDouble(bool* finite) const;
  // h := the Hermitian part of U^H A. The scratch has as many elements.
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

// A routine (routines.h). The block is overwritten by the rows of U, which has orthonormal columns
// whatever the rank of A. Unless h is null, it gets the rows of H: block x n, row-major; it must
// not overlap the operand's block. If A has an element that isn't finite, *status is kNotFinite and
// both are NaN.
template <typename T>
Status PolarRoutine(const RankContext& context, const Operand<T>& operand, bool in_double, T* h);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_SVD_POLAR_H_
