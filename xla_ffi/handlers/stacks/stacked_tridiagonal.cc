#include <complex>

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/handlers/call.h"

namespace jaxmg {

namespace {

constexpr char kName[] = "stacked_tridiagonal";
constexpr char kReduction[] = "stacked_sytrd";
constexpr char kReflectors[] = "stacked_ormtr";

CallOutcome Solve(Platform platform, ffi::AnyBuffer d, ffi::AnyBuffer e,
                  ffi::Result<ffi::AnyBuffer> w, ffi::Result<ffi::AnyBuffer> v, NoAttributes) {
  const auto shape = d.dimensions();
  const int64_t n = shape.size() == 0 ? 0 : shape.back();
  const auto all = static_cast<int64_t>(d.element_count());
  const int64_t count = n == 0 ? 0 : all / n;
  if (n < 1 || n > kMostQl || static_cast<int64_t>(e.element_count()) != count * (n - 1) ||
      static_cast<int64_t>(w->element_count()) != all ||
      static_cast<int64_t>(v->element_count()) != all * n) {
    return {Error(Code::kInvalidArgument, kName, ": d must be (..., n) with 1 <= n <= ", kMostQl,
                  ", and e must be (..., n - 1)")};
  }
  return ForRealDtype(kName, d.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) {
      return device.stacks<T>().SolveTridiagonal(Stream::kMain, count, n, DataOf<T>(d),
                                                 DataOf<T>(e), DataOf<T>(*w), DataOf<T>(*v));
    });
  });
}

CallOutcome Reduce(Platform platform, ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> reflectors,
                   ffi::Result<ffi::AnyBuffer> d, ffi::Result<ffi::AnyBuffer> e,
                   ffi::Result<ffi::AnyBuffer> tau, NoAttributes) {
  const auto shape = a.dimensions();
  const size_t rank = shape.size();
  const int64_t n = rank < 2 ? 0 : shape[rank - 1];
  const auto all = static_cast<int64_t>(a.element_count());
  const int64_t count = n == 0 ? 0 : all / (n * n);
  if (n < 2 || shape[rank - 2] != n || static_cast<int64_t>(reflectors->element_count()) != all ||
      static_cast<int64_t>(d->element_count()) != count * n ||
      static_cast<int64_t>(e->element_count()) != count * (n - 1) ||
      static_cast<int64_t>(tau->element_count()) != count * n) {
    return {Error(Code::kInvalidArgument, kReduction,
                  ": a must be (..., n, n) with n > 1, the reflectors must have a's shape, d and "
                  "tau must be (..., n), and e must be (..., n - 1)")};
  }
  return ForRealDtype(kReduction, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) -> Status {
      T* const to = DataOf<T>(*reflectors);
      JAXMG_RETURN_IF_ERROR(CopyIfApart(device, DataOf<T>(a), to, all));
      return device.stacks<T>().ReduceToTridiagonal(Stream::kMain, count, n, to, DataOf<T>(*d),
                                                    DataOf<T>(*e), DataOf<T>(*tau));
    });
  });
}

CallOutcome Apply(Platform platform, ffi::AnyBuffer reflectors, ffi::AnyBuffer tau,
                  ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> product, NoAttributes) {
  const auto shape = reflectors.dimensions(), of_x = x.dimensions();
  const size_t rank = shape.size();
  const auto all = static_cast<int64_t>(x.element_count());
  bool fits = rank >= 2 && of_x.size() == rank && shape[rank - 2] == shape[rank - 1] &&
              shape[rank - 1] > 1 &&
              tau.element_count() * shape[rank - 1] == reflectors.element_count();
  for (size_t i = 0; fits && i + 1 < rank; ++i) fits &= of_x[i] == shape[i];
  if (!fits || tau.element_type() != reflectors.element_type() ||
      x.element_type() != reflectors.element_type() ||
      product->element_type() != reflectors.element_type() ||
      static_cast<int64_t>(product->element_count()) != all) {
    return {
        Error(Code::kInvalidArgument, kReflectors,
              ": the reflectors must be (..., n, n) with n > 1, tau must be (..., n), and x and "
              "the result must be (..., n, k) of the reflectors' dtype")};
  }
  if (all == 0) return {Status::Ok()};
  const int64_t n = shape[rank - 1], columns = of_x[rank - 1];
  return ForDtype(kReflectors, x.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) -> Status {
      T* const to = DataOf<T>(*product);
      JAXMG_RETURN_IF_ERROR(CopyIfApart(device, DataOf<T>(x), to, all));
      return device.stacks<T>().ApplyReflectors(Stream::kMain, all / (n * columns), n, columns,
                                                DataOf<T>(reflectors), DataOf<T>(tau), to);
    });
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedSytrd, jaxmg::kReduction, jaxmg::Reduce, jaxmg::NoAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()    // a, ... x n x n
                               .Ret<xla::ffi::AnyBuffer>()    // reflectors, overwrites a
                               .Ret<xla::ffi::AnyBuffer>()    // d, ... x n
                               .Ret<xla::ffi::AnyBuffer>()    // e, ... x n - 1
                               .Ret<xla::ffi::AnyBuffer>());  // tau, ... x n

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedOrmtr, jaxmg::kReflectors, jaxmg::Apply, jaxmg::NoAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()    // reflectors, ... x n x n
                               .Arg<xla::ffi::AnyBuffer>()    // tau, ... x n
                               .Arg<xla::ffi::AnyBuffer>()    // x, ... x n x k
                               .Ret<xla::ffi::AnyBuffer>());  // Q x, overwrites x

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedTridiagonal, jaxmg::kName, jaxmg::Solve, jaxmg::NoAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()    // d, ... x n
                               .Arg<xla::ffi::AnyBuffer>()    // e, ... x n - 1
                               .Ret<xla::ffi::AnyBuffer>()    // eigenvalues, ... x n
                               .Ret<xla::ffi::AnyBuffer>());  // eigenvectors, ... x n x n
