#ifndef JAXMG_XLA_FFI_DEVICE_STACKS_STACK_FACTOR_H_
#define JAXMG_XLA_FFI_DEVICE_STACKS_STACK_FACTOR_H_

#include <cstdint>

#include "xla_ffi/device/blas.h"

namespace jaxmg {

// A row-major factor of a product of stacks; `ld` is the number of elements of a row, `size` of a
// matrix.
template <typename T>
struct StackedFactor {
  const T* data;
  int64_t ld, size;
  Op op = Op::kNone;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_STACKS_STACK_FACTOR_H_
