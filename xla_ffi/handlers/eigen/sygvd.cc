#include "xla_ffi/engine/eigen/sygvd.h"

#include <complex>

#include "xla_ffi/handlers/call.h"

namespace jaxmg {
namespace {

// The memory that a call needs on a rank, for plans.
struct Needs {
  template <typename T>
  static RankNeeds Of(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    RankNeeds needs = NeedsOf<T>(SygvdSpace<T>(sizes, query.vectors, {0, query.n}, ranks), 0);
    needs.bytes += query.n * sizeof(Real<T>) + SygstSpace<T>(sizes, ranks).bytes();
    return needs;
  }
};

// Checks that A, B and the attributes match; an error names the routine.
Status CheckPair(const char* routine, ffi::AnyBuffer a, ffi::AnyBuffer b,
                 const SquareAttributes& attributes) {
  JAXMG_RETURN_IF_ERROR(CheckCall(routine, a, attributes));
  if (!(b.dimensions() == a.dimensions()) || b.element_type() != a.element_type()) {
    return Error(Code::kInvalidArgument, routine, ": b must have a's shape and dtype");
  }
  return Status::Ok();
}

// `v`: the eigenvectors in `subset`, or null.
template <typename T>
PlatformResult Solve(const char* name, const Platform& platform,
                     ffi::Buffer<ffi::DataType::S32>& coordinates, ffi::AnyBuffer a,
                     ffi::AnyBuffer b, T* a_work, T* b_work, const Subset& subset, T* v, Real<T>* w,
                     int32_t* status, const SquareAttributes& attributes) {
  auto operand = [&](ffi::AnyBuffer buffer, T* work, int32_t* outcome) {
    return Operand<T>{attributes.n, attributes.n, buffer.dimensions()[0], attributes.tile,
                      work,         outcome,      Precision::kHighest,    DataOf<T>(buffer)};
  };
  auto program = [left = operand(a, a_work, status), right = operand(b, b_work, nullptr), subset, v,
                  w](const RankContext& context) {
    return SygvdRoutine<T>(context, left, right, subset, w, v);
  };
  return Launch(platform, SiteOf(name, platform, coordinates, a, attributes, attributes.n),
                program);
}

constexpr char kName[] = "sygvd";

PlatformResult Sygvd(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                     ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> v,
                     ffi::Result<ffi::AnyBuffer> b_work, ffi::Result<ffi::AnyBuffer> w,
                     ffi::ResultBuffer<ffi::DataType::S32> status, VectorsAttributes attributes) {
  const Status checked = CheckPair(kName, a, b, attributes);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    T* rows = DataOf<T>(*v);
    return Solve<T>(kName, platform, coordinates, a, b, rows, DataOf<T>(*b_work), {0, attributes.n},
                    attributes.vectors ? rows : nullptr, DataOf<Real<T>>(*w), status->typed_data(),
                    attributes);
  });
}

constexpr char kSubsetName[] = "sygvx";

PlatformResult Sygvx(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                     ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> a_work,
                     ffi::Result<ffi::AnyBuffer> b_work, ffi::Result<ffi::AnyBuffer> v,
                     ffi::Result<ffi::AnyBuffer> w, ffi::ResultBuffer<ffi::DataType::S32> status,
                     SubsetAttributes attributes) {
  Status checked = CheckPair(kSubsetName, a, b, attributes);
  if (checked.ok()) checked = CheckSubset(kSubsetName, attributes);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kSubsetName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    return Solve<T>(kSubsetName, platform, coordinates, a, b, DataOf<T>(*a_work),
                    DataOf<T>(*b_work), {attributes.first, attributes.last}, DataOf<T>(*v),
                    DataOf<Real<T>>(*w), status->typed_data(), attributes);
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgSygvd, jaxmg::kName, jaxmg::Sygvd, jaxmg::VectorsAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // a
                         .Arg<xla::ffi::AnyBuffer>()  // b
                         .Ret<xla::ffi::AnyBuffer>()  // rows of X, overwrites a
                         .Ret<xla::ffi::AnyBuffer>()  // undefined, overwrites b
                         .Ret<xla::ffi::AnyBuffer>()  // w
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kNativeAlone, &jaxmg::AnswerSquareWith<jaxmg::Needs>);
JAXMG_DEFINE_ROUTINE(JaxmgSygvx, jaxmg::kSubsetName, jaxmg::Sygvx, jaxmg::SubsetAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // a
                         .Arg<xla::ffi::AnyBuffer>()  // b
                         .Ret<xla::ffi::AnyBuffer>()  // undefined, overwrites a
                         .Ret<xla::ffi::AnyBuffer>()  // undefined, overwrites b
                         .Ret<xla::ffi::AnyBuffer>()  // rows of the selected columns of X
                         .Ret<xla::ffi::AnyBuffer>()  // w
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kNativeAlone, &jaxmg::AnswerSquareWith<jaxmg::Needs>);
