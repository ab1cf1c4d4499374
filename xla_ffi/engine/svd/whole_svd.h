// The singular value decomposition of a matrix that one rank does for all, by its device's solver
// of a whole matrix: the ranks of a process share its processors and memory, and LAPACK takes a
// third of the operations of a polar decomposition.
//
// The root's gathered rows of A are the columns of M = A^T = W S Z^H. A = (Z^H)^T S W^T, so that
// the columns of Z^H are the rows of U, and those of W the rows of V^H: nothing is transposed.
#ifndef JAXMG_XLA_FFI_ENGINE_SVD_WHOLE_SVD_H_
#define JAXMG_XLA_FFI_ENGINE_SVD_WHOLE_SVD_H_

#include <vector>

#include "xla_ffi/engine/svd/gesvd_vectors.h"

namespace jaxmg {

// On the root the whole matrix; with vectors those of both sides, and all singular values.
template <typename T>
struct WholeSvdSpace : RoutineSpace<T> {
  WholeSvdSpace(const Sizes& sizes, bool vectors, const Ranks& ranks);

  Piece<T> w, zh;
  Piece<Real<T>> s;
};

// Whether one rank decomposes a matrix of this order.
inline bool IsWholeSvd(int64_t n, const Tuning& tuning) { return n <= tuning.whole_svd_order; }

// A routine (routines.h): GesvdVectorsRoutine with `vectors`, else GesvdRoutine with wanted.s for
// w.
template <typename T>
Status WholeSvdRoutine(const RankContext& context, const Operand<T>& operand, bool vectors,
                       const SingularVectors<T>& wanted);

// What a rank has of a call.
template <typename T>
struct WholeSvdProblem {
  Operand<T> operand;
  bool vectors;
  SingularVectors<T> wanted;
};

// The same by one rank for all ranks of its process (for_all.h).
template <typename T>
Status WholeSvdForAll(const RankContext& alone, const std::vector<WholeSvdProblem<T>>& problems);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_SVD_WHOLE_SVD_H_
