#include <complex>

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/handlers/call.h"

namespace jaxmg {

struct StackedTriangleAttributes {
  bool upper;  // whether to use the upper triangle

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    visit("upper", attributes.upper);
  }
};

struct StackedCholeskyAttributes {
  bool upper;      // whether the upper triangle is computed
  bool hermitian;  // whether both triangles are read, and must agree up to rounding

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    visit("upper", attributes.upper);
    visit("hermitian", attributes.hermitian);
  }
};

struct StackedSolveAttributes {
  bool upper, adjoint, unit;  // as in StackedTriangle

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    visit("upper", attributes.upper);
    visit("adjoint", attributes.adjoint);
    visit("unit", attributes.unit);
  }
};

namespace {

constexpr char kCholesky[] = "stacked_cholesky";
constexpr char kInverse[] = "stacked_trtri";
constexpr char kSolve[] = "stacked_trsm";
constexpr char kProduct[] = "stacked_lauum";

// Calls function(T(), number of matrices, their order) for the dtype T.
template <typename Function>
CallOutcome OnMatrices(const char* name, ffi::AnyBuffer a, ffi::AnyBuffer result,
                       const Function& function) {
  const auto shape = a.dimensions();
  const size_t rank = shape.size();
  const int64_t n = rank < 2 ? 0 : shape[rank - 1];
  const auto all = static_cast<int64_t>(a.element_count());
  if (rank < 2 || shape[rank - 2] != n || result.element_type() != a.element_type() ||
      static_cast<int64_t>(result.element_count()) != all) {
    return {Error(Code::kInvalidArgument, name,
                  ": a must be (..., n, n), and the result must have a's shape and dtype")};
  }
  if (all == 0) return {Status::Ok()};
  return ForDtype(name, a.element_type(),
                  [&](auto zero) { return function(zero, all / (n * n), n); });
}

// Calls an operation that overwrites matrices.
template <typename Function>
CallOutcome InPlace(const char* name, Platform platform, ffi::AnyBuffer a, ffi::AnyBuffer result,
                    const Function& function) {
  return OnMatrices(name, a, result, [&](auto zero, int64_t count, int64_t n) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) -> Status {
      T* const x = DataOf<T>(result);
      JAXMG_RETURN_IF_ERROR(CopyIfApart(device, DataOf<T>(a), x, count * n * n));
      return function(device.stacks<T>(), count, n, x);
    });
  });
}

CallOutcome Factor(Platform platform, ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> factor,
                   StackedCholeskyAttributes attributes) {
  return InPlace(kCholesky, platform, a, *factor, [&](auto& kernels, auto... operands) {
    return attributes.hermitian
               ? kernels.FactorHermitian(Stream::kMain, attributes.upper, operands...)
               : kernels.FactorCholesky(Stream::kMain, attributes.upper, operands...);
  });
}

CallOutcome Invert(Platform platform, ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> inverse,
                   StackedTriangleAttributes attributes) {
  return InPlace(kInverse, platform, a, *inverse, [&](auto& kernels, auto... operands) {
    return kernels.InvertTriangle(Stream::kMain, attributes.upper, operands...);
  });
}

CallOutcome Solve(Platform platform, ffi::AnyBuffer a, ffi::AnyBuffer b,
                  ffi::Result<ffi::AnyBuffer> x, StackedSolveAttributes attributes) {
  const auto shape = a.dimensions(), columns = b.dimensions();
  const size_t rank = shape.size();
  const auto all = static_cast<int64_t>(b.element_count());
  bool fits = rank >= 2 && columns.size() == rank && shape[rank - 2] == shape[rank - 1];
  for (size_t i = 0; fits && i + 1 < rank; ++i) fits &= columns[i] == shape[i];
  if (!fits || b.element_type() != a.element_type() || x->element_type() != a.element_type() ||
      static_cast<int64_t>(x->element_count()) != all) {
    return {Error(Code::kInvalidArgument, kSolve,
                  ": a must be (..., n, n), and b and the result must be (..., n, nrhs) of a's "
                  "dtype")};
  }
  if (all == 0) return {Status::Ok()};
  const int64_t n = shape[rank - 1], nrhs = columns[rank - 1];
  return ForDtype(kSolve, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) -> Status {
      T* const solution = DataOf<T>(*x);
      JAXMG_RETURN_IF_ERROR(CopyIfApart(device, DataOf<T>(b), solution, all));
      const StackedTriangle triangle = {attributes.upper, attributes.adjoint, attributes.unit};
      return device.stacks<T>().SolveTriangle(Stream::kMain, triangle, all / (n * nrhs), n, nrhs,
                                              DataOf<T>(a), solution);
    });
  });
}

CallOutcome Multiply(Platform platform, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> product,
                     NoAttributes) {
  return OnMatrices(kProduct, x, *product, [&](auto zero, int64_t count, int64_t n) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) {
      return device.stacks<T>().MultiplyTriangle(Stream::kMain, count, n, DataOf<T>(x),
                                                 DataOf<T>(*product));
    });
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedCholesky, jaxmg::kCholesky, jaxmg::Factor,
                           jaxmg::StackedCholeskyAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()    // a, ... x n x n
                               .Ret<xla::ffi::AnyBuffer>());  // L or U, overwrites a

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedTrtri, jaxmg::kInverse, jaxmg::Invert,
                           jaxmg::StackedTriangleAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()    // a triangle, ... x n x n
                               .Ret<xla::ffi::AnyBuffer>());  // its inverse, overwrites it

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedTrsm, jaxmg::kSolve, jaxmg::Solve,
                           jaxmg::StackedSolveAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()    // a, ... x n x n
                               .Arg<xla::ffi::AnyBuffer>()    // b, ... x n x nrhs
                               .Ret<xla::ffi::AnyBuffer>());  // x, overwrites b

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedLauum, jaxmg::kProduct, jaxmg::Multiply, jaxmg::NoAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()    // upper triangular x, ... x n x n
                               .Ret<xla::ffi::AnyBuffer>());  // x x^H, its lower triangle
