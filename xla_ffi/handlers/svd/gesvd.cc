#include "xla_ffi/engine/svd/gesvd.h"

#include <complex>

#include "xla_ffi/engine/svd/gesvd_vectors.h"
#include "xla_ffi/engine/svd/whole_svd.h"
#include "xla_ffi/handlers/call.h"
#ifdef JAXMG_CUDA
#include "xla_ffi/vendor/cusolvermp/mp.h"
#endif

namespace jaxmg {

// The indices of SubsetAttributes count singular values in descending order.
struct GesvdAttributes : SubsetAttributes {
  bool vectors;
  bool in_double;  // whether to iterate in double precision

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    SubsetAttributes::Visit(attributes, visit);
    visit("in_double", attributes.in_double);
    visit("vectors", attributes.vectors);
  }
};

namespace {

constexpr char kName[] = "gesvd";

// Without vectors, the engine returns the singular values in ascending order.
template <typename T>
Status Native(const RankContext& context, const Operand<T>& operand, bool vectors,
              const SingularVectors<T>& wanted) {
  if (IsWholeSvd(operand.n, context.device.tuning())) {
    return WholeSvdRoutine<T>(context, operand, vectors, wanted);
  }
  if (vectors) return GesvdVectorsRoutine<T>(context, operand, wanted);
  JAXMG_RETURN_IF_ERROR(CheckGesvd<T>(operand.sizes(), RanksOf(context)));
  return GesvdRoutine<T>(context, operand, wanted.s);
}

#ifdef JAXMG_CUDA
template <typename T>
Status ByLibrary(const RankContext& context, const Operand<T>& operand, bool vectors,
                 const SingularVectors<T>& wanted) {
  if (wanted.subset.count() < operand.n) {
    return Error(Code::kInvalidArgument, kName,
                 ": NVIDIA's library can't compute a subset of the singular values");
  }
  return mp::Gesvd<T>(context, operand, vectors, wanted.vh, wanted.s);
}
#endif

// By backend, the preferred one first.
template <typename T>
constexpr Solver<Status(const RankContext&, const Operand<T>&, bool, const SingularVectors<T>&)>
    kSolvers[] = {
        {kNative, &Native<T>},
#ifdef JAXMG_CUDA
        {"cusolvermp", &ByLibrary<T>},
#endif
};
constexpr auto kNames = NamesOf(kSolvers<double>);
constexpr Backends kBackends = {kNames.data(), kNames.size()};

PlatformResult Gesvd(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                     ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> work,
                     ffi::Result<ffi::AnyBuffer> u, ffi::Result<ffi::AnyBuffer> vh,
                     ffi::Result<ffi::AnyBuffer> s, ffi::ResultBuffer<ffi::DataType::S32> status,
                     GesvdAttributes attributes) {
  const int64_t n = attributes.n;
  size_t backend = 0;
  Status checked = CheckCall(kName, a, attributes, kBackends, &backend);
  if (checked.ok()) checked = CheckSubset(kName, attributes);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    const Operand<T> operand = OperandOf<T>(a, *work, status->typed_data(), n, n, attributes);
    const Subset subset = {attributes.first, attributes.last};
    const SingularVectors<T> wanted = {
        subset,         attributes.in_double, subset.count() < n ? DataOf<T>(*u) : nullptr,
        DataOf<T>(*vh), vh->dimensions()[0],  DataOf<Real<T>>(*s)};
    auto program = [=](const RankContext& context) {
      return kSolvers<T>[backend].solve(context, operand, attributes.vectors, wanted);
    };
    return LaunchForAll<WholeSvdProblem<T>>(
        platform, SiteOf(kName, platform, coordinates, a, attributes, n), program, false,
        [&](const Tuning& tuning) { return IsWholeSvd(n, tuning); },
        {operand, attributes.vectors, wanted}, &WholeSvdForAll<T>);
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgGesvd, jaxmg::kName, jaxmg::Gesvd, jaxmg::GesvdAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // a
                         .Ret<xla::ffi::AnyBuffer>()  // rows of U, or undefined; overwrites a
                         .Ret<xla::ffi::AnyBuffer>()  // rows of some columns of U, or none
                         .Ret<xla::ffi::AnyBuffer>()  // rows of V^H, or none
                         .Ret<xla::ffi::AnyBuffer>()  // the singular values
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kBackends);
