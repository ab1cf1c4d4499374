#include <complex>

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/handlers/call.h"

namespace jaxmg {

namespace {

constexpr char kName[] = "stacked_lu";

CallOutcome Factor(Platform platform, ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> lu,
                   ffi::Result<ffi::Buffer<ffi::DataType::S32>> pivots, NoAttributes) {
  const auto shape = a.dimensions();
  const size_t rank = shape.size();
  const int64_t n = rank < 2 ? 0 : shape[rank - 1];
  const auto all = static_cast<int64_t>(a.element_count());
  if (rank < 2 || shape[rank - 2] != n || lu->element_type() != a.element_type() ||
      static_cast<int64_t>(lu->element_count()) != all ||
      (n > 0 && static_cast<int64_t>(pivots->element_count()) != all / n)) {
    return {Error(Code::kInvalidArgument, kName,
                  ": a must be (..., n, n), the factors must have a's size and dtype, and there "
                  "must be n pivots for each matrix")};
  }
  if (all == 0) return {Status::Ok()};
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return LaunchAlone(platform, [&](Device& device) -> Status {
      T* const factors = DataOf<T>(*lu);
      JAXMG_RETURN_IF_ERROR(CopyIfApart(device, DataOf<T>(a), factors, all));
      return device.stacks<T>().FactorLu(Stream::kMain, all / (n * n), n, factors,
                                         pivots->typed_data());
    });
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE_ALONE(
    JaxmgStackedLu, jaxmg::kName, jaxmg::Factor, jaxmg::NoAttributes,
    xla::ffi::Ffi::Bind()
        .Ctx<jaxmg::Platform>()
        .Arg<xla::ffi::AnyBuffer>()                          // a, ... x n x n
        .Ret<xla::ffi::AnyBuffer>()                          // L and U, overwrites a
        .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>());  // pivots, ... x n
