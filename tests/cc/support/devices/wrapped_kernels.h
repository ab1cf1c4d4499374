// The kernels of all dtypes of a device that wraps another device. For async_device.cc and
// recording_device.cc.
#ifndef JAXMG_TESTS_CC_SUPPORT_DEVICES_WRAPPED_KERNELS_H_
#define JAXMG_TESTS_CC_SUPPORT_DEVICES_WRAPPED_KERNELS_H_

#include <complex>
#include <tuple>

#include "xla_ffi/device/device.h"

namespace jaxmg::testing {

// Each class template wraps kernels of its kind. Its constructor takes a `Context` and these
// kernels.
template <typename Context, template <typename> class BlasOf, template <typename> class SolverOf,
          template <typename> class PanelOf, template <typename> class ChaseOf,
          template <typename> class SecularOf, template <typename> class LuOf,
          template <typename> class MatrixOf>
class WrappedKernels {
 public:
  WrappedKernels(Context& context, Device& real) : WrappedKernels(Source{context, real}) {}

  // Calls offer with the arguments of Device::Offer for each dtype.
  template <typename Offer>
  void ForEachDtype(const Offer& offer) {
    std::apply(
        [&](auto&... each) {
          (offer(each.by_precision(), each.solver, each.eigen(), &each.lu, &each.matrix), ...);
        },
        of_dtype_);
  }

 private:
  struct Source {
    Context& context;
    Device& real;
  };

  template <typename T>
  struct OfDtype {
    explicit OfDtype(const Source& from)
        : blas(from.context, from.real.template blas<T>()),
          bf16x3(from.context, from.real.template blas<T>(Precision::kBf16x3)),
          bf16x6(from.context, from.real.template blas<T>(Precision::kBf16x6)),
          f16x3(from.context, from.real.template blas<T>(Precision::kF16x3)),
          solver(from.context, from.real.template solver<T>()),
          panel(from.context, *from.real.template eigen<T>().panel),
          chase(from.context, *from.real.template eigen<T>().chase),
          secular(from.context, *from.real.template eigen<T>().secular),
          lu(from.context, from.real.template lu<T>()),
          matrix(from.context, from.real.template matrix<T>()) {}
    BlasByPrecision<T> by_precision() { return {&blas, &blas, &bf16x3, &bf16x6, &f16x3}; }
    EigenKernels<T> eigen() { return {&panel, &chase, &secular}; }
    BlasOf<T> blas, bf16x3, bf16x6, f16x3;
    SolverOf<T> solver;
    PanelOf<T> panel;
    ChaseOf<T> chase;
    SecularOf<T> secular;
    LuOf<T> lu;
    MatrixOf<T> matrix;
  };

  explicit WrappedKernels(const Source& from) : of_dtype_(from, from, from, from) {}

  PerDtype<OfDtype> of_dtype_;
};

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_DEVICES_WRAPPED_KERNELS_H_
