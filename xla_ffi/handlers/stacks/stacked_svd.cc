#include <algorithm>
#include <complex>

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/handlers/call.h"

namespace jaxmg {

struct StackedSvdAttributes {
  bool vectors;  // otherwise u and vh have no elements

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    visit("vectors", attributes.vectors);
  }
};

namespace {

constexpr char kName[] = "stacked_svd";

int64_t ElementsOf(ffi::AnyBuffer buffer) { return static_cast<int64_t>(buffer.element_count()); }

CallOutcome Decompose(Platform platform, ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> work,
                      ffi::Result<ffi::AnyBuffer> u, ffi::Result<ffi::AnyBuffer> vh,
                      ffi::Result<ffi::AnyBuffer> s, StackedSvdAttributes attributes) {
  const auto shape = a.dimensions();
  const size_t rank = shape.size();
  const int64_t all = ElementsOf(a);
  const int64_t m = rank < 2 ? 0 : shape[rank - 2], n = rank < 2 ? 0 : shape[rank - 1];
  const int64_t count = rank < 2 || all == 0 ? 0 : all / (m * n), k = std::min(m, n);
  const int64_t of_u = attributes.vectors ? count * m * k : 0;
  const int64_t of_vh = attributes.vectors ? count * k * n : 0;
  if (rank < 2 || work->element_type() != a.element_type() || ElementsOf(*work) != all ||
      u->element_type() != a.element_type() || vh->element_type() != a.element_type() ||
      ElementsOf(*u) != of_u || ElementsOf(*vh) != of_vh || ElementsOf(*s) != count * k) {
    return {Error(Code::kInvalidArgument, kName,
                  ": a must be (..., m, n), U must be (..., m, k) and V^H (..., k, n), both of a's "
                  "dtype or empty, and s must be (..., k), where k = min(m, n)")};
  }
  if (all == 0) return {Status::Ok()};
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) -> Status {
      T* const matrices = DataOf<T>(*work);
      JAXMG_RETURN_IF_ERROR(CopyIfApart(device, DataOf<T>(a), matrices, all));
      return device.stacks<T>().Decompose(
          Stream::kMain, count, m, n, matrices, attributes.vectors ? DataOf<T>(*u) : nullptr,
          DataOf<Real<T>>(*s), attributes.vectors ? DataOf<T>(*vh) : nullptr);
    });
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE_ALONE(JaxmgStackedSvd, jaxmg::kName, jaxmg::Decompose,
                           jaxmg::StackedSvdAttributes,
                           xla::ffi::Ffi::Bind()
                               .Ctx<jaxmg::Platform>()
                               .Arg<xla::ffi::AnyBuffer>()    // a, ... x m x n
                               .Ret<xla::ffi::AnyBuffer>()    // undefined; overwrites a
                               .Ret<xla::ffi::AnyBuffer>()    // U, ... x m x min(m, n), or none
                               .Ret<xla::ffi::AnyBuffer>()    // V^H, ... x min(m, n) x n, or none
                               .Ret<xla::ffi::AnyBuffer>());  // s, ... x min(m, n)
