// The singular value decomposition of a square matrix on one rank, by its device's solver for a
// whole matrix. Used because the ranks of a process share its processors and memory, and LAPACK
// takes a third of the operations of a polar decomposition.
//
// The root gathers the rows of A, which are the columns of M = A^T = W S Z^H. So A = (Z^H)^T S W^T:
// the columns of Z^H are the rows of U, and the columns of W are the rows of V^H. Nothing needs to
// be transposed.
#ifndef JAXMG_XLA_FFI_ENGINE_SVD_WHOLE_SVD_H_
#define JAXMG_XLA_FFI_ENGINE_SVD_WHOLE_SVD_H_

#include <vector>

#include "xla_ffi/engine/svd/gesvd_vectors.h"

namespace jaxmg {

// On the root: the whole matrix, all singular values and, with vectors, the vectors of both sides.
template <typename T>
struct WholeSvdSpace : RoutineSpace<T> {
  WholeSvdSpace(const Sizes& sizes, bool vectors, const Ranks& ranks);

  Piece<T> w, zh;
  Piece<Real<T>> s;
};

// Returns whether one rank decomposes a matrix of this order.
inline bool IsWholeSvd(int64_t n, const Tuning& tuning) { return n <= tuning.svd.whole_order; }

// A routine (routines.h). With `vectors`, as GesvdVectorsRoutine. Without, as GesvdRoutine with
// wanted.s for its w, in ascending order.
template <typename T>
Status WholeSvdRoutine(const RankContext& context, const Operand<T>& operand, bool vectors,
                       const SingularVectors<T>& wanted);

// A rank's part of a call.
template <typename T>
struct WholeSvdProblem {
  Operand<T> operand;
  bool vectors;
  SingularVectors<T> wanted;
};

// As WholeSvdRoutine, by one rank for all ranks of its process (for_all.h).
template <typename T>
Status WholeSvdForAll(const RankContext& alone, const std::vector<WholeSvdProblem<T>>& problems);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_SVD_WHOLE_SVD_H_
