#include <complex>

#include "xla_ffi/engine/stacks/iterations.h"
#include "xla_ffi/handlers/call.h"

namespace jaxmg {

struct StackedPolarAttributes {
  bool hermitian;  // whether to compute H; otherwise h has no elements

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    visit("hermitian", attributes.hermitian);
  }
};

struct StackedRootAttributes {
  int64_t p;
  Numbers epsilon;  // one number

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    visit("p", attributes.p);
    visit("epsilon", attributes.epsilon);
  }
};

struct StackedScaleAttributes {
  int64_t step;

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    visit("step", attributes.step);
  }
};

namespace {

constexpr char kPolar[] = "stacked_polar";
constexpr char kInverseRoot[] = "stacked_root";
constexpr char kScale[] = "stacked_scale";
constexpr char kUnit[] = "stacked_unit";
constexpr int64_t kMost = 1 << 20;  // limit for the step of exponents

// A stack (..., m, n) with a result of its shape and dtype.
struct Stack {
  Stack(ffi::AnyBuffer a, ffi::AnyBuffer result) {
    const auto shape = a.dimensions();
    const auto rank = static_cast<int64_t>(shape.size());
    fits = rank >= 2 && result.element_type() == a.element_type() &&
           result.element_count() == a.element_count();
    if (rank < 2) return;
    m = shape[rank - 2], n = shape[rank - 1];
    if (m * n != 0) count = static_cast<int64_t>(a.element_count()) / (m * n);
  }

  bool fits;
  int64_t count = 0, m = 0, n = 0;
};

CallOutcome Scale(Platform platform, ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> scaled,
                  ffi::Result<ffi::Buffer<ffi::DataType::S32>> exponents,
                  StackedScaleAttributes attributes) {
  const Stack stack(a, *scaled);
  if (!stack.fits || attributes.step < 1 || attributes.step > kMost ||
      (stack.count > 0 && static_cast<int64_t>(exponents->element_count()) != stack.count)) {
    return {
        Error(Code::kInvalidArgument, kScale,
              ": a must be (..., m, n), the result must have a's shape and dtype, the exponents "
              "must be (...), and step must be from 1 to ",
              kMost)};
  }
  if (stack.count == 0) return {Status::Ok()};
  return ForDtype(kScale, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) {
      return device.elements<T>().Scale(Stream::kMain, stack.count, stack.m * stack.n,
                                        attributes.step, DataOf<T>(a), DataOf<T>(*scaled),
                                        exponents->typed_data());
    });
  });
}

CallOutcome Normalize(Platform platform, ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> x,
                      NoAttributes) {
  const Stack stack(a, *x);
  if (!stack.fits) {
    return {Error(Code::kInvalidArgument, kUnit,
                  ": a must be (..., m, n), and the result must have a's shape and dtype")};
  }
  if (stack.count == 0) return {Status::Ok()};
  return ForDtype(kUnit, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) {
      return NormalizeStack(device, stack.count, stack.m * stack.n, DataOf<const T>(a),
                            DataOf<T>(*x));
    });
  });
}

CallOutcome FindRoots(Platform platform, ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> roots,
                      StackedRootAttributes attributes) {
  const Stack stack(a, *roots);
  if (!stack.fits || stack.m != stack.n || attributes.p < 1 || attributes.epsilon.count != 1) {
    return {Error(Code::kInvalidArgument, kInverseRoot,
                  ": a must be (..., n, n), the result must have a's shape and dtype, p must be at "
                  "least 1, and epsilon must be one number")};
  }
  if (stack.count == 0) return {Status::Ok()};
  return ForDtype(kInverseRoot, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) {
      return InverseRootsOfStack(device, stack.count, stack.n, attributes.p,
                                 *attributes.epsilon.data, DataOf<const T>(a), DataOf<T>(*roots));
    });
  });
}

CallOutcome Decompose(Platform platform, ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> u,
                      ffi::Result<ffi::AnyBuffer> h,
                      ffi::Result<ffi::Buffer<ffi::DataType::S32>> exponents,
                      StackedPolarAttributes attributes) {
  const Stack stack(a, *u);
  const size_t size_of_h = attributes.hermitian ? a.element_count() : 0;
  if (!stack.fits || stack.m != stack.n || h->element_type() != a.element_type() ||
      h->element_count() != size_of_h ||
      (stack.count > 0 && static_cast<int64_t>(exponents->element_count()) != stack.count)) {
    return {Error(Code::kInvalidArgument, kPolar,
                  ": a must be (..., n, n), U must have a's shape and dtype, H must be like U or "
                  "empty, and the exponents must be (...)")};
  }
  if (stack.count == 0) return {Status::Ok()};
  return ForDtype(kPolar, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) {
      return PolarOfStack(device, stack.count, stack.n, DataOf<const T>(a), DataOf<T>(*u),
                          attributes.hermitian ? DataOf<T>(*h) : nullptr, exponents->typed_data());
    });
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedPolar, jaxmg::kPolar, jaxmg::Decompose,
                           jaxmg::StackedPolarAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()  // a, ... x n x n
                               .Ret<xla::ffi::AnyBuffer>()  // U, overwrites a
                               .Ret<xla::ffi::AnyBuffer>()  // H 2^-e, ... x n x n
                               .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>());  // e, ...

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedRoot, jaxmg::kInverseRoot, jaxmg::FindRoots,
                           jaxmg::StackedRootAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()    // a, ... x n x n
                               .Ret<xla::ffi::AnyBuffer>());  // its inverse root, overwrites a

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedScale, jaxmg::kScale, jaxmg::Scale,
                           jaxmg::StackedScaleAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()  // a, ... x m x n
                               .Ret<xla::ffi::AnyBuffer>()  // a 2^-e, overwrites a
                               .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>());  // e, ...

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedUnit, jaxmg::kUnit, jaxmg::Normalize, jaxmg::NoAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()    // a, ... x m x n
                               .Ret<xla::ffi::AnyBuffer>());  // a / |a|, overwrites a
