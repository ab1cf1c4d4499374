#include <complex>

#include "xla_ffi/handlers/call.h"

namespace jaxmg {

namespace {

constexpr char kInverse[] = "stacked_inv32";
constexpr char kSolve[] = "stacked_solve32";

// Returns the order of the matrices, (..., n, n) with n <= kMostSmall, or -1.
int64_t OrderOf(ffi::AnyBuffer a) {
  const auto shape = a.dimensions();
  const size_t rank = shape.size();
  if (rank < 2 || shape[rank - 2] != shape[rank - 1] || shape[rank - 1] > kMostSmall) return -1;
  return shape[rank - 1];
}

CallOutcome Invert(Platform platform, ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> inverse,
                   NoAttributes) {
  const int64_t n = OrderOf(a);
  if (n < 0 || inverse->element_type() != a.element_type() ||
      inverse->element_count() != a.element_count()) {
    return {Error(Code::kInvalidArgument, kInverse, ": a must be (..., n, n) with n <= ",
                  kMostSmall, ", and the inverse must have a's shape and dtype")};
  }
  if (a.element_count() == 0) return {Status::Ok()};
  const int64_t count = static_cast<int64_t>(a.element_count()) / (n * n);
  return ForDtype(kInverse, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) {
      return device.stacks<T>().InvertSmall(Stream::kMain, count, n, DataOf<T>(a),
                                            DataOf<T>(*inverse));
    });
  });
}

CallOutcome Solve(Platform platform, ffi::AnyBuffer a, ffi::AnyBuffer b,
                  ffi::Result<ffi::AnyBuffer> x, NoAttributes) {
  const int64_t n = OrderOf(a);
  const auto shape = a.dimensions(), columns = b.dimensions();
  const size_t rank = shape.size();
  bool fits = n >= 0 && columns.size() == rank && columns[rank - 1] <= kMostSmallColumns;
  for (size_t i = 0; fits && i + 1 < rank; ++i) fits &= columns[i] == shape[i];
  if (!fits || b.element_type() != a.element_type() || x->element_type() != a.element_type() ||
      x->element_count() != b.element_count()) {
    return {Error(Code::kInvalidArgument, kSolve, ": a must be (..., n, n) with n <= ", kMostSmall,
                  ", and b and the result must be (..., n, nrhs) of a's dtype with nrhs <= ",
                  kMostSmallColumns)};
  }
  if (b.element_count() == 0) return {Status::Ok()};
  const int64_t nrhs = columns[rank - 1];
  const int64_t count = static_cast<int64_t>(b.element_count()) / (n * nrhs);
  return ForDtype(kSolve, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) {
      return device.stacks<T>().SolveSmall(Stream::kMain, count, n, nrhs, DataOf<T>(a),
                                           DataOf<T>(b), DataOf<T>(*x));
    });
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedInv32, jaxmg::kInverse, jaxmg::Invert, jaxmg::NoAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()    // a, ... x n x n
                               .Ret<xla::ffi::AnyBuffer>());  // its inverse

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedSolve32, jaxmg::kSolve, jaxmg::Solve, jaxmg::NoAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()    // a, ... x n x n
                               .Arg<xla::ffi::AnyBuffer>()    // b, ... x n x nrhs
                               .Ret<xla::ffi::AnyBuffer>());  // x
