// DefaultFloatingPoint: the floating-point mode in which all native code computes.
#ifndef JAXMG_XLA_FFI_BASE_FLOATING_POINT_H_
#define JAXMG_XLA_FFI_BASE_FLOATING_POINT_H_

#include <cfenv>

namespace jaxmg {

// Sets this thread to round to nearest and to keep denormals; the destructor restores the previous
// mode. Needed because some of XLA's threads flush denormals to zero at times, and a thread
// inherits the mode of its creator.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() noexcept {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatingPoint() { std::fesetenv(&before_); }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_BASE_FLOATING_POINT_H_
