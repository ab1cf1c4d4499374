#ifndef JAXMG_XLA_FFI_ENGINE_CORE_SUBSET_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_SUBSET_H_

#include <cstdint>

namespace jaxmg {

// The eigenvalues with indices [first, last) in ascending order, and their eigenvectors.
struct Subset {
  int64_t first, last;
  int64_t count() const { return last - first; }
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_SUBSET_H_
