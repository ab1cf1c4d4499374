#include "xla_ffi/engine/qr/tall/tall_qr.h"

#include <complex>

#include "xla_ffi/engine/qr/whole_qr.h"
#include "xla_ffi/handlers/call.h"

namespace jaxmg {

struct TallQrAttributes : SquareAttributes {
  bool with_b;  // whether there are right-hand sides
  bool with_q;

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    SquareAttributes::Visit(attributes, visit);
    visit("with_b", attributes.with_b);
    visit("with_q", attributes.with_q);
  }
};

namespace {

constexpr char kName[] = "tall_qr";

// Returns whether the buffer is a rows x columns matrix of a's dtype.
bool Is(ffi::AnyBuffer buffer, ffi::AnyBuffer a, int64_t rows, int64_t columns) {
  const auto shape = buffer.dimensions();
  return shape.size() == 2 && shape[0] == rows && shape[1] == columns &&
         buffer.element_type() == a.element_type();
}

PlatformResult TallQr(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                      ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer below,
                      ffi::Result<ffi::AnyBuffer> q, ffi::Result<ffi::AnyBuffer> r,
                      ffi::Result<ffi::AnyBuffer> c, ffi::ResultBuffer<ffi::DataType::S32> power,
                      ffi::ResultBuffer<ffi::DataType::S32> powers, TallQrAttributes attributes) {
  const int64_t n = attributes.n, block = a.dimensions().size() == 2 ? a.dimensions()[0] : 0;
  size_t backend = 0;
  const Status checked = CheckBlock(kName, a, n, n, attributes, kNativeAlone, &backend);
  if (!checked.ok()) return Refuse(checked);
  const int64_t nrhs = b.dimensions().size() == 2 ? b.dimensions()[1] : 0;
  const int64_t further = below.dimensions().size() == 2 ? below.dimensions()[0] : 0;
  if (!Is(b, a, attributes.with_b ? block : 0, nrhs) || !Is(below, a, further, n)) {
    return Refuse(Error(Code::kInvalidArgument, kName, ": b must be (", block,
                        ", nrhs), or (0, 0) without right-hand sides, and operand 'below' must be "
                        "(rows, ",
                        n, "); both of a's dtype"));
  }
  const bool fit = Is(*q, a, attributes.with_q ? block : 0, n) && Is(*r, a, n, n) &&
                   Is(*c, a, n, nrhs) && power->element_count() == 1 &&
                   static_cast<int64_t>(powers->element_count()) == nrhs;
  if (!fit) {
    return Refuse(Error(Code::kInvalidArgument, kName, ": with n = ", n,
                        ", the results must be Q (", block, ", n), R (n, n) and Q^H b (n, ", nrhs,
                        "), of a's dtype, and two arrays of exponents, (1,) and (", nrhs, ",)"));
  }
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    const TallQrProblem<T> problem = {
        {n, block, further, nrhs, attributes.with_b, attributes.with_q},
        DataOf<T>(a),
        DataOf<T>(b),
        DataOf<T>(below),
        attributes.with_q ? DataOf<T>(*q) : nullptr,
        DataOf<T>(*r),
        DataOf<T>(*c),
        power->typed_data(),
        powers->typed_data()};
    auto program = [problem](const RankContext& context) {
      return TallQrRoutine<T>(context, problem);
    };
    const auto whole = [&](const Tuning& tuning) {
      return IsWholeQr(problem.sizes, static_cast<int>(attributes.ranks), tuning);
    };
    return LaunchForAll<TallQrProblem<T>>(
        platform, SiteOf(kName, platform, coordinates, a, attributes, n, &b), program, false, whole,
        problem, &WholeQrForAll<T>);
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgTallQr, jaxmg::kName, jaxmg::TallQr, jaxmg::TallQrAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()                         // a
                         .Arg<xla::ffi::AnyBuffer>()                         // b
                         .Arg<xla::ffi::AnyBuffer>()                         // below
                         .Ret<xla::ffi::AnyBuffer>()                         // q
                         .Ret<xla::ffi::AnyBuffer>()                         // r
                         .Ret<xla::ffi::AnyBuffer>()                         // c
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>()   // power
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // powers
                     jaxmg::kNativeAlone);
