// The handlers of LAPACK's factorization of Hermitian and symmetric matrices, on host devices.
#include <complex>

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/handlers/call.h"

namespace jaxmg {

struct StackedLdlAttributes {
  bool lower;      // the triangle that is read
  bool hermitian;  // otherwise A is symmetric

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    visit("lower", attributes.lower);
    visit("hermitian", attributes.hermitian);
  }
};

struct StackedSysvAttributes {
  bool hermitian;

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    visit("hermitian", attributes.hermitian);
  }
};

namespace {

constexpr char kLdl[] = "stacked_ldl", kSysv[] = "stacked_sysv";

int64_t ElementsOf(ffi::AnyBuffer buffer) { return static_cast<int64_t>(buffer.element_count()); }

// Returns n of a (..., n, n); -1 if it has another shape.
int64_t OrderOf(ffi::AnyBuffer a) {
  const auto shape = a.dimensions();
  const size_t rank = shape.size();
  return rank < 2 || shape[rank - 2] != shape[rank - 1] ? -1 : shape[rank - 1];
}

CallOutcome Factor(Platform platform, ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> l,
                   ffi::Result<ffi::AnyBuffer> d,
                   ffi::Result<ffi::Buffer<ffi::DataType::S32>> order,
                   StackedLdlAttributes attributes) {
  const int64_t n = OrderOf(a), all = ElementsOf(a);
  if (n < 0 || l->element_type() != a.element_type() || ElementsOf(*l) != all ||
      d->element_type() != a.element_type() || ElementsOf(*d) != all ||
      (n > 0 && static_cast<int64_t>(order->element_count()) != all / n)) {
    return {
        Error(Code::kInvalidArgument, kLdl,
              ": a must be (..., n, n), L and D must have a's size and dtype, and there must be "
              "n rows in the order of each matrix")};
  }
  if (all == 0) return {Status::Ok()};
  return ForDtype(kLdl, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) -> Status {
      T* const matrices = DataOf<T>(*l);
      JAXMG_RETURN_IF_ERROR(CopyIfApart(device, DataOf<T>(a), matrices, all));
      return device.stacks<T>().FactorIndefinite(Stream::kMain, attributes.lower,
                                                 attributes.hermitian, all / (n * n), n, matrices,
                                                 DataOf<T>(*d), order->typed_data());
    });
  });
}

CallOutcome Solve(Platform platform, ffi::AnyBuffer a, ffi::AnyBuffer b,
                  ffi::Result<ffi::AnyBuffer> work, ffi::Result<ffi::AnyBuffer> x,
                  StackedSysvAttributes attributes) {
  const int64_t n = OrderOf(a), all = ElementsOf(a), of_b = ElementsOf(b);
  const int64_t count = n > 0 ? all / (n * n) : 0;
  const auto shape = b.dimensions();
  if (n < 0 || b.element_type() != a.element_type() || work->element_type() != a.element_type() ||
      ElementsOf(*work) != all || x->element_type() != a.element_type() || ElementsOf(*x) != of_b ||
      shape.size() < 2 || shape[shape.size() - 2] != n ||
      of_b != count * n * shape[shape.size() - 1]) {
    return {Error(Code::kInvalidArgument, kSysv,
                  ": a must be (..., n, n) and b (..., n, nrhs), of one dtype, and x must have b's "
                  "size")};
  }
  if (of_b == 0) return {Status::Ok()};
  return ForDtype(kSysv, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) -> Status {
      T* const matrices = DataOf<T>(*work);
      T* const solutions = DataOf<T>(*x);
      JAXMG_RETURN_IF_ERROR(CopyIfApart(device, DataOf<T>(a), matrices, all));
      JAXMG_RETURN_IF_ERROR(CopyIfApart(device, DataOf<T>(b), solutions, of_b));
      return device.stacks<T>().SolveIndefinite(Stream::kMain, attributes.hermitian, count, n,
                                                of_b / (count * n), matrices, solutions);
    });
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE_ALONE(
    JaxmgStackedLdl, jaxmg::kLdl, jaxmg::Factor, jaxmg::StackedLdlAttributes,
    xla::ffi::Ffi::Bind()
        .Ctx<jaxmg::Platform>()
        .Arg<xla::ffi::AnyBuffer>()                          // a, ... x n x n
        .Ret<xla::ffi::AnyBuffer>()                          // L, overwrites a
        .Ret<xla::ffi::AnyBuffer>()                          // D, ... x n x n
        .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>());  // order, ... x n

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedSysv, jaxmg::kSysv, jaxmg::Solve,
                           jaxmg::StackedSysvAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()    // a, ... x n x n
                               .Arg<xla::ffi::AnyBuffer>()    // b, ... x n x nrhs
                               .Ret<xla::ffi::AnyBuffer>()    // undefined; overwrites a
                               .Ret<xla::ffi::AnyBuffer>());  // x, overwrites b
