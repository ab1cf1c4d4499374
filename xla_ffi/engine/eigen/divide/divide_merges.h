// The merges of divide and conquer.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_DIVIDE_MERGES_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_DIVIDE_MERGES_H_

#include <vector>

#include "xla_ffi/engine/eigen/divide/divide_space.h"
#include "xla_ffi/engine/eigen/divide/divide_tree.h"

namespace jaxmg {

// Performs all merges of a level in which this rank takes part. The eigenvalues and rows of vectors
// of their halves are in the problem's space. The merge of the whole matrix writes the eigenvalues,
// ascending, to d (n, host memory), and the requested vectors. Sets *failed if a root did not
// converge.
template <typename R>
Status MergeLevel(const DivideProblem<R>& problem, std::vector<Merge<R>>& merges, R* d,
                  bool* failed);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_DIVIDE_MERGES_H_
