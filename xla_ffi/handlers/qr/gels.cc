#include "xla_ffi/engine/qr/gels.h"

#include <complex>

#include "xla_ffi/handlers/general_factor.h"

namespace jaxmg {

struct GelsAttributes : WithOperation<WithRows<PrecisionAttributes>> {
  bool check_b;  // whether to compare b between the ranks

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    WithOperation<WithRows<PrecisionAttributes>>::Visit(attributes, visit);
    visit("check_b", attributes.check_b);
  }
};

namespace {

constexpr char kName[] = "gels";

// The memory that a call needs on a rank, for plans.
struct Needs {
  template <typename T>
  static RankNeeds Of(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    return NeedsOf<T>(GelsSpace<T>(sizes, query.nrhs, ranks), query.n * query.nrhs + query.m);
  }
};

PlatformResult Gels(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                    ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> a_work,
                    ffi::Result<ffi::AnyBuffer> x, ffi::Result<ffi::AnyBuffer> diagonal,
                    ffi::ResultBuffer<ffi::DataType::S32> status, GelsAttributes attributes) {
  const int64_t m = attributes.m, n = attributes.n;
  size_t backend = 0;
  Status checked = CheckBlock(kName, a, m, n, attributes, kNativeAlone, &backend);
  if (checked.ok()) checked = CheckPrecision(kName, a, attributes);
  if (!checked.ok()) return Refuse(checked);
  const auto shape = b.dimensions();
  if (m > n || shape.size() != 2 || shape[0] != n || b.element_type() != a.element_type()) {
    return Refuse(Error(Code::kInvalidArgument, kName, ": m = ", m, " must be at most n = ", n,
                        ", and b must be (n, nrhs), of a's dtype"));
  }
  const auto size = diagonal->dimensions();
  if (size.size() != 1 || size[0] != m || diagonal->element_type() != a.element_type()) {
    return Refuse(
        Error(Code::kInvalidArgument, kName, ": diagonal must be (", m, "), of a's dtype"));
  }
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    const Operand<T> operand = OperandOf<T>(a, *a_work, status->typed_data(), m, n, attributes);
    const LeastSquares<T> problem = {attributes.operation, shape[1],     DataOf<T>(*x),
                                     DataOf<T>(*diagonal), DataOf<T>(b), attributes.check_b};
    auto program = [=](const RankContext& context) {
      return GelsRoutine<T>(context, operand, problem);
    };
    return Launch(platform, SiteOf(kName, platform, coordinates, a, attributes, n, &b), program);
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgGels, jaxmg::kName, jaxmg::Gels, jaxmg::GelsAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()                         // a
                         .Arg<xla::ffi::AnyBuffer>()                         // b
                         .Ret<xla::ffi::AnyBuffer>()                         // a_work, overwrites a
                         .Ret<xla::ffi::AnyBuffer>()                         // x
                         .Ret<xla::ffi::AnyBuffer>()                         // diagonal
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kNativeAlone, &jaxmg::AnswerWith<jaxmg::Needs>);
