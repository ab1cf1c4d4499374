// The handlers of the factors of Hermitian and symmetric indefinite matrices. Their operands are
// `tiles` (rows, n), this rank's tiles of L, all of full width; `band`: (n, 3 tile), T, and
// `band_lu`: (n, 4 tile), its LU factors; `pivots` and `band_pivots`: n numbers. All but `tiles`
// are equal on all ranks.
#include "xla_ffi/engine/ldl/ldl_factor.h"

#include <complex>

#include "xla_ffi/handlers/general_factor.h"

namespace jaxmg {

// Adds whether a matrix is Hermitian; otherwise it is symmetric.
template <typename Base>
struct WithSymmetry : Base {
  bool hermitian;

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    Base::Visit(attributes, visit);
    visit("hermitian", attributes.hermitian);
  }
};

using LdlAttributes = WithSymmetry<PrecisionAttributes>;
using LdlSolveAttributes = WithSymmetry<WithOperation<SquareAttributes>>;

namespace {

using Pivots = ffi::Buffer<ffi::DataType::S32>;

// The memory that a call needs on a rank, for plans: also that of L, which isn't in A's memory.
struct LdlNeeds {
  template <typename T>
  static RankNeeds Of(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    const LdlFactorSpace<T> space(sizes, ranks);
    return NeedsOf<T>(space, (space.tiles.block() + 7 * space.tiles.width()) * query.n);
  }
};

Status CheckShape(const char* routine, const char* what, const ffi::Span<const int64_t>& shape,
                  int64_t n, int64_t columns) {
  const bool fits = columns == 0 ? shape.size() == 1 && shape[0] == n
                                 : shape.size() == 2 && shape[0] == n && shape[1] == columns;
  if (fits) return Status::Ok();
  return Error(Code::kInvalidArgument, routine, ": ", what, " has another shape than that of ", n,
               " rows in tiles of this width");
}

// Checks that the tiles of L are those that the factorization makes.
Status CheckLdlTiles(const char* routine, ffi::AnyBuffer tiles,
                     const SquareAttributes& attributes) {
  size_t backend = 0;
  const int64_t n = attributes.n;
  JAXMG_RETURN_IF_ERROR(CheckBlock(routine, tiles, n, n, attributes, kNativeAlone, &backend));
  const Tiles needed = LdlTiles(n, static_cast<int>(attributes.ranks), attributes.tile);
  if (attributes.tile == needed.width() && tiles.dimensions()[0] == needed.block()) {
    return Status::Ok();
  }
  return Error(Code::kInvalidArgument, routine, ": ", tiles.dimensions()[0],
               " rows on each rank are no tiles of ", attributes.tile, " columns of L");
}

PlatformResult FactorizeLdl(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                            ffi::AnyBuffer a, Pivots order, ffi::Result<ffi::AnyBuffer> tiles,
                            ffi::Result<ffi::AnyBuffer> band, ffi::Result<ffi::AnyBuffer> band_lu,
                            ffi::Result<Pivots> pivots, ffi::Result<Pivots> band_pivots,
                            ffi::Result<ffi::AnyBuffer> log_abs, ffi::Result<ffi::AnyBuffer> sign,
                            ffi::ResultBuffer<ffi::DataType::S32> status,
                            LdlAttributes attributes) {
  static constexpr char kName[] = "ldl_factor";
  const int64_t n = attributes.n;
  auto check = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(CheckCall(kName, a, attributes));
    JAXMG_RETURN_IF_ERROR(CheckPrecision(kName, a, attributes));
    JAXMG_RETURN_IF_ERROR(CheckLdlTiles(kName, *tiles, attributes));
    JAXMG_RETURN_IF_ERROR(CheckShape(kName, "order", order.dimensions(), n, 0));
    JAXMG_RETURN_IF_ERROR(CheckShape(kName, "band", band->dimensions(), n, 3 * attributes.tile));
    JAXMG_RETURN_IF_ERROR(
        CheckShape(kName, "band_lu", band_lu->dimensions(), n, 4 * attributes.tile));
    JAXMG_RETURN_IF_ERROR(CheckShape(kName, "pivots", pivots->dimensions(), n, 0));
    return CheckShape(kName, "band_pivots", band_pivots->dimensions(), n, 0);
  };
  const Status checked = check();
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    Operand<T> operand = {
        n, n, tiles->dimensions()[0], attributes.tile, DataOf<T>(*tiles), status->typed_data()};
    operand.precision = attributes.products;
    return Launch(
        platform, SiteOf(kName, platform, coordinates, a, attributes, n),
        [operand, hermitian = attributes.hermitian,
         columns = Columns<T>{DataOf<T>(a), a.dimensions()[0]}, order = order.typed_data(),
         parts = LdlParts<T>{DataOf<T>(*band), DataOf<T>(*band_lu), pivots->typed_data(),
                             band_pivots->typed_data()},
         log_abs = DataOf<Real<T>>(*log_abs), sign = DataOf<T>(*sign)](const RankContext& context) {
          return LdlFactorRoutine<T>(context, operand, hermitian, columns, order, parts, log_abs,
                                     sign);
        });
  });
}

PlatformResult SolveLdl(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                        ffi::AnyBuffer tiles, ffi::AnyBuffer overflow, ffi::AnyBuffer band_lu,
                        Pivots pivots, Pivots band_pivots, ffi::AnyBuffer b,
                        ffi::Result<ffi::AnyBuffer> x, LdlSolveAttributes attributes) {
  static constexpr char kName[] = "LDLFactor.solve";
  const int64_t n = attributes.n;
  const auto shape = b.dimensions();
  auto check = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(CheckLdlTiles(kName, tiles, attributes));
    JAXMG_RETURN_IF_ERROR(
        CheckShape(kName, "band_lu", band_lu.dimensions(), n, 4 * attributes.tile));
    JAXMG_RETURN_IF_ERROR(CheckShape(kName, "pivots", pivots.dimensions(), n, 0));
    JAXMG_RETURN_IF_ERROR(CheckShape(kName, "band_pivots", band_pivots.dimensions(), n, 0));
    if (shape.size() == 2 && shape[0] == n && b.element_type() == tiles.element_type()) {
      return Status::Ok();
    }
    return Error(Code::kInvalidArgument, kName, ": b must be (n, nrhs), of a's dtype");
  };
  return OnFactors(
      kName, platform, coordinates, attributes, n, tiles, overflow, check(),
      [&](auto zero) {
        using T = decltype(zero);
        return [factor = OperandOf<T>(attributes, n, tiles, overflow, nullptr, nullptr),
                hermitian = attributes.hermitian, op = attributes.operation,
                parts = LdlParts<T>{nullptr, DataOf<T>(band_lu), pivots.typed_data(),
                                    band_pivots.typed_data()},
                nrhs = shape[1], x = DataOf<T>(*x), b = DataOf<T>(b)](const RankContext& context) {
          return LdlSolveRoutine<T>(context, factor, hermitian, parts, op, nrhs, x, b);
        };
      },
      &b);
}

PlatformResult CountEigenvalues(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                                ffi::AnyBuffer tiles, ffi::AnyBuffer overflow, ffi::AnyBuffer band,
                                ffi::Result<Pivots> inertia, SquareAttributes attributes) {
  static constexpr char kName[] = "LDLFactor.inertia";
  auto check = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(CheckLdlTiles(kName, tiles, attributes));
    JAXMG_RETURN_IF_ERROR(CheckShape(kName, "inertia", inertia->dimensions(), 3, 0));
    return CheckShape(kName, "band", band.dimensions(), attributes.n, 3 * attributes.tile);
  };
  return OnFactors(
      kName, platform, coordinates, attributes, attributes.n, tiles, overflow, check(),
      [&](auto zero) {
        using T = decltype(zero);
        return [factor = OperandOf<T>(attributes, attributes.n, tiles, overflow, nullptr, nullptr),
                parts = LdlParts<T>{DataOf<T>(band), nullptr, nullptr, nullptr},
                inertia = inertia->typed_data()](const RankContext& context) {
          return LdlInertiaRoutine<T>(context, factor, parts, inertia);
        };
      });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgHetrf, "hetrf", jaxmg::FactorizeLdl, jaxmg::LdlAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()                         // a
                         .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>()   // order: 0, 1, ...
                         .Ret<xla::ffi::AnyBuffer>()                         // tiles
                         .Ret<xla::ffi::AnyBuffer>()                         // band
                         .Ret<xla::ffi::AnyBuffer>()                         // band_lu
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>()   // pivots
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>()   // band_pivots
                         .Ret<xla::ffi::AnyBuffer>()                         // log_abs
                         .Ret<xla::ffi::AnyBuffer>()                         // sign
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kNativeAlone, &jaxmg::AnswerSquareWith<jaxmg::LdlNeeds>);

JAXMG_DEFINE_ROUTINE(JaxmgLdlSolve, "ldl_solve", jaxmg::SolveLdl, jaxmg::LdlSolveAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()                        // tiles
                         .Arg<xla::ffi::AnyBuffer>()                        // overflow: (0, n)
                         .Arg<xla::ffi::AnyBuffer>()                        // band_lu
                         .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // pivots
                         .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // band_pivots
                         .Arg<xla::ffi::AnyBuffer>()                        // b
                         .Ret<xla::ffi::AnyBuffer>(),                       // x
                     jaxmg::kNativeAlone);

JAXMG_DEFINE_ROUTINE(JaxmgLdlInertia, "ldl_inertia", jaxmg::CountEigenvalues,
                     jaxmg::SquareAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()                         // tiles
                         .Arg<xla::ffi::AnyBuffer>()                         // overflow: (0, n)
                         .Arg<xla::ffi::AnyBuffer>()                         // band
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // inertia
                     jaxmg::kNativeAlone);
