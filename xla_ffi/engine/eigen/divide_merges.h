// The merges of divide and conquer.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_MERGES_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_MERGES_H_

#include <vector>

#include "xla_ffi/engine/eigen/divide_space.h"
#include "xla_ffi/engine/eigen/divide_tree.h"

namespace jaxmg {

// All merges of a level that this rank has a part in; their halves' eigenvalues and rows of vectors
// are in the problem's space. From the merge that is the whole come the eigenvalues, ascending, to
// d (n, the host's), the vectors that are wanted, and in *failed whether a root has not been found.
template <typename R>
Status MergeLevel(const DivideProblem<R>& problem, std::vector<Merge<R>>& merges, R* d,
                  bool* failed);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_MERGES_H_
