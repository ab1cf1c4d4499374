// DealOut: gives the matrices of a stack to the processor's cores, each matrix to one of them.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_DEAL_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_DEAL_H_

#include <cstdint>
#include <functional>

#include "xla_ffi/base/status.h"

namespace jaxmg {

// Calls function(begin, end) for parts of [0, count), on this thread and on others if `operations`,
// the floating-point operations of one matrix, make that worth a thread. Meanwhile a call of BLAS
// has one thread: one that has as many as cores takes longer for small matrices, and several
// devices would start as many each. Returns the first error, or Ok.
Status DealOut(int64_t count, double operations,
               const std::function<Status(int64_t begin, int64_t end)>& function);

// How many threads one DealOut of so much work has: what tests count.
int ThreadsOfDeal(int64_t count, double operations, int cores, int active);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_DEAL_H_
