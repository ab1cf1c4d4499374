// Checks of calls of LAPACK (lapack.h).
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_LAPACK_CHECKS_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_LAPACK_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "xla_ffi/base/status.h"
#include "xla_ffi/device/host/lapack.h"

namespace jaxmg {

// Converts sizes to LAPACK's 32-bit integers, with a check.
class LapackInts {
 public:
  template <typename... Int64>
  explicit LapackInts(Int64... values) : values_{static_cast<int64_t>(values)...} {
    for (size_t i = 0; i < values_.size(); ++i) narrow_.push_back(static_cast<int>(values_[i]));
  }
  Status Check(const char* routine) const {
    for (int64_t value : values_) {
      if (value < 0 || value > std::numeric_limits<int>::max()) {
        return Error(Code::kInvalidArgument, routine, ": size ", value,
                     " is beyond LAPACK's 32-bit integers");
      }
    }
    return Status::Ok();
  }
  int* operator[](size_t i) { return &narrow_[i]; }

 private:
  std::vector<int64_t> values_;
  std::vector<int> narrow_;
};

}  // namespace jaxmg

// Returns an error if the routine's pointer is null or a size is too large.
#define JAXMG_CHECK_LAPACK(routine, ints)                                                       \
  do {                                                                                          \
    if (HostLapack<T>().routine == nullptr) {                                                   \
      return Error(Code::kUnavailable, "LAPACK's " #routine " has not been loaded from SciPy"); \
    }                                                                                           \
    JAXMG_RETURN_IF_ERROR((ints).Check(#routine));                                              \
  } while (false)

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_LAPACK_CHECKS_H_
