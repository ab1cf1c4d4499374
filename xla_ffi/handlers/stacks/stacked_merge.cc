#include <cmath>
#include <complex>

#include "xla_ffi/handlers/call.h"

namespace jaxmg {

struct StackedMergeAttributes {
  int64_t gap_exponent;  // equal poles are set apart by this power of two

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    visit("gap_exponent", attributes.gap_exponent);
  }
};

namespace {

constexpr char kName[] = "stacked_merge";

CallOutcome Merge(Platform platform, ffi::AnyBuffer high, ffi::AnyBuffer low, ffi::AnyBuffer z,
                  ffi::AnyBuffer rho, ffi::Result<ffi::AnyBuffer> root_high,
                  ffi::Result<ffi::AnyBuffer> root_low, ffi::Result<ffi::AnyBuffer> vectors,
                  StackedMergeAttributes attributes) {
  const auto shape = high.dimensions();
  const int64_t k = shape.size() == 0 ? 0 : shape.back();
  const size_t all = high.element_count();
  const int64_t count = k == 0 ? 0 : static_cast<int64_t>(all) / k;
  if (k < 2 || k % 2 != 0 || low.element_count() != all || z.element_count() != all ||
      static_cast<int64_t>(rho.element_count()) != count || root_high->element_count() != all ||
      root_low->element_count() != all || vectors->element_count() != all * k) {
    return {Error(Code::kInvalidArgument, kName,
                  ": poles and z must be (..., k) with even k, and rho must be (...)")};
  }
  return ForRealDtype(kName, high.element_type(), [&](auto zero) {
    using T = decltype(zero);
    const T gap = std::ldexp(T(1), static_cast<int>(attributes.gap_exponent));
    const StackedMerges<T> merges = {
        count, k, gap, DataOf<T>(high), DataOf<T>(low), DataOf<T>(z), DataOf<T>(rho)};
    const MergedPairs<T> pairs = {DataOf<T>(*root_high), DataOf<T>(*root_low), DataOf<T>(*vectors)};
    return LaunchAlone(platform, [&](Device& device) {
      return device.stacks<T>().Merge(Stream::kMain, merges, pairs);
    });
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedMerge, jaxmg::kName, jaxmg::Merge,
                           jaxmg::StackedMergeAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()    // poles, the large parts, ... x k
                               .Arg<xla::ffi::AnyBuffer>()    // the small parts
                               .Arg<xla::ffi::AnyBuffer>()    // z
                               .Arg<xla::ffi::AnyBuffer>()    // rho
                               .Ret<xla::ffi::AnyBuffer>()    // roots, the large parts
                               .Ret<xla::ffi::AnyBuffer>()    // the small parts
                               .Ret<xla::ffi::AnyBuffer>());  // vectors, ... x 2 x k x k / 2
