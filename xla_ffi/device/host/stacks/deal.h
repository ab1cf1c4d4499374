// DealOut: distributes the matrices of a stack over the processor's cores; each matrix has one
// core.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_STACKS_DEAL_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_STACKS_DEAL_H_

#include <cstdint>
#include <functional>

#include "xla_ffi/base/status.h"

namespace jaxmg {

// Calls function(begin, end) for parts of [0, count), on this thread and, if `operations`, the
// floating-point operations of one matrix, make a thread worthwhile, on others. Meanwhile BLAS
// calls use one thread, because one thread per core takes longer for small matrices, and several
// devices would each start that many. Returns the first error, or Ok.
Status DealOut(int64_t count, double operations,
               const std::function<Status(int64_t begin, int64_t end)>& function);

// Returns the number of threads of one DealOut with this amount of work. Tests call it.
int ThreadsOfDeal(int64_t count, double operations, int cores, int active);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_STACKS_DEAL_H_
