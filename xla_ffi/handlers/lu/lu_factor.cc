// The handlers of the LU factors as a value. Their operands are `tiles` (rows, n), which replaces
// the rows of A, m x n; `overflow`: (tile, n) if the layout has an overflow tile, else (0, n);
// `pivots`: min(m, n) numbers, equal on all ranks.
#include "xla_ffi/engine/lu/lu_factor.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/handlers/general_factor.h"

namespace jaxmg {

using GetrfAttributes = WithRows<PrecisionAttributes>;
using LuAttributes = WithRows<SquareAttributes>;
using LuSolveAttributes = WithOperation<SquareAttributes>;

namespace {

using Pivots = ffi::Buffer<ffi::DataType::S32>;

// The memory that a call needs on a rank, for plans.
struct GetrfNeeds {
  template <typename T>
  static RankNeeds Of(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    const LuFactorSpace<T> space(sizes, ranks);
    return NeedsOf<T>(space, space.tiles.has_overflow() ? space.tiles.width() * query.n : 0);
  }
};

struct ApplyNeeds {
  template <typename T>
  static RankNeeds Of(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    return NeedsOf<T>(LuApplySpace<T>(sizes, query.nrhs, ranks), query.n * query.nrhs);
  }
};

struct InvertNeeds {
  template <typename T>
  static RankNeeds Of(const PlanQuery&, const Sizes& sizes, const Ranks& ranks) {
    return NeedsOf<T>(LuInvertSpace<T>(sizes, ranks), 0);
  }
};

Status CheckPivots(const char* routine, const ffi::Span<const int64_t>& shape, int64_t count) {
  if (shape.size() == 1 && shape[0] == count) return Status::Ok();
  return Error(Code::kInvalidArgument, routine, ": pivots must be (", count, ")");
}

PlatformResult FactorizeLu(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                           ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> tiles,
                           ffi::Result<ffi::AnyBuffer> overflow, ffi::Result<Pivots> pivots,
                           ffi::Result<ffi::AnyBuffer> log_abs, ffi::Result<ffi::AnyBuffer> sign,
                           ffi::ResultBuffer<ffi::DataType::S32> status,
                           GetrfAttributes attributes) {
  static constexpr char kName[] = "lu_factor";
  const int64_t m = attributes.m;
  Status checked = CheckPrecision(kName, a, attributes);
  if (checked.ok()) {
    checked = CheckPivots(kName, pivots->dimensions(), std::min(m, attributes.n));
  }
  return OnFactors(
      kName, platform, coordinates, attributes, m, *tiles, *overflow, checked, [&](auto zero) {
        using T = decltype(zero);
        return [operand = OperandOf<T>(attributes, m, *tiles, *overflow, status->typed_data(),
                                       DataOf<T>(a), attributes.products),
                pivots = pivots->typed_data(), log_abs = DataOf<Real<T>>(*log_abs),
                sign = DataOf<T>(*sign)](const RankContext& context) {
          return LuFactorRoutine<T>(context, operand, pivots, log_abs, sign);
        };
      });
}

PlatformResult Apply(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                     ffi::AnyBuffer tiles, ffi::AnyBuffer overflow, Pivots pivots, ffi::AnyBuffer b,
                     ffi::Result<ffi::AnyBuffer> x, LuSolveAttributes attributes) {
  static constexpr char kName[] = "lu_solve";
  const int64_t n = attributes.n;
  Status checked = CheckPivots(kName, pivots.dimensions(), n);
  const auto shape = b.dimensions();
  if (shape.size() != 2 || shape[0] != n || b.element_type() != tiles.element_type()) {
    checked = Error(Code::kInvalidArgument, kName, ": b must be (n, nrhs), of a's dtype");
  }
  return OnFactors(
      kName, platform, coordinates, attributes, n, tiles, overflow, checked,
      [&](auto zero) {
        using T = decltype(zero);
        return [factor = OperandOf<T>(attributes, n, tiles, overflow, nullptr, nullptr),
                pivots = pivots.typed_data(), op = attributes.operation, nrhs = shape[1],
                x = DataOf<T>(*x), b = DataOf<T>(b)](const RankContext& context) {
          return LuApplyRoutine<T>(context, factor, pivots, op, nrhs, x, b);
        };
      },
      &b);
}

PlatformResult SolveRows(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                         ffi::AnyBuffer tiles, ffi::AnyBuffer overflow, Pivots pivots,
                         ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> x,
                         LuSolveAttributes attributes) {
  static constexpr char kName[] = "lu_solve by rows";
  const int64_t n = attributes.n;
  Status checked = CheckPivots(kName, pivots.dimensions(), n);
  const auto shape = b.dimensions();
  if (shape.size() != 2 || shape[1] != n || b.element_type() != tiles.element_type()) {
    checked = Error(Code::kInvalidArgument, kName, ": b must be (rows, n), of a's dtype");
  }
  return OnFactors(
      kName, platform, coordinates, attributes, n, tiles, overflow, checked,
      [&](auto zero) {
        using T = decltype(zero);
        return [factor = OperandOf<T>(attributes, n, tiles, overflow, nullptr, nullptr),
                pivots = pivots.typed_data(), op = attributes.operation, rows = shape[0],
                x = DataOf<T>(*x), b = DataOf<T>(b)](const RankContext& context) {
          return LuSolveRowsRoutine<T>(context, factor, pivots, op, rows, x, b);
        };
      },
      &b);
}

PlatformResult InvertFactors(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                             ffi::AnyBuffer tiles, ffi::AnyBuffer overflow, Pivots pivots,
                             ffi::Result<ffi::AnyBuffer> inverse, PrecisionAttributes attributes) {
  static constexpr char kName[] = "LUFactor.inv";
  const int64_t n = attributes.n;
  Status checked = CheckPrecision(kName, tiles, attributes);
  if (checked.ok()) checked = CheckPivots(kName, pivots.dimensions(), n);
  return OnFactors(kName, platform, coordinates, attributes, n, tiles, overflow, checked,
                   [&](auto zero) {
                     using T = decltype(zero);
                     return [factor = OperandOf<T>(attributes, n, *inverse, overflow, nullptr,
                                                   DataOf<T>(tiles), attributes.products),
                             pivots = pivots.typed_data()](const RankContext& context) {
                       return LuInvertRoutine<T>(context, factor, pivots);
                     };
                   });
}

PlatformResult Diagonal(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                        ffi::AnyBuffer tiles, ffi::AnyBuffer overflow,
                        ffi::Result<ffi::AnyBuffer> diagonal, LuAttributes attributes) {
  const int64_t m = attributes.m;
  return OnFactors("LUFactor.diagonal", platform, coordinates, attributes, m, tiles, overflow,
                   Status::Ok(), [&](auto zero) {
                     using T = decltype(zero);
                     return
                         [factor = OperandOf<T>(attributes, m, tiles, overflow, nullptr, nullptr),
                          diagonal = DataOf<T>(*diagonal)](const RankContext& context) {
                           return LuDiagonalRoutine<T>(context, factor, diagonal);
                         };
                   });
}

PlatformResult TilesOfRows(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                           ffi::AnyBuffer rows, ffi::Result<ffi::AnyBuffer> tiles,
                           ffi::Result<ffi::AnyBuffer> overflow, LuAttributes attributes) {
  const int64_t m = attributes.m;
  return OnFactors("LUFactor.from_packed", platform, coordinates, attributes, m, *tiles, *overflow,
                   Status::Ok(), [&](auto zero) {
                     using T = decltype(zero);
                     return [factor = OperandOf<T>(attributes, m, *tiles, *overflow, nullptr,
                                                   DataOf<T>(rows))](const RankContext& context) {
                       return MoveLuRoutine<T>(context, factor, /*to_rows=*/false);
                     };
                   });
}

PlatformResult RowsOfTiles(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                           ffi::AnyBuffer tiles, ffi::AnyBuffer overflow,
                           ffi::Result<ffi::AnyBuffer> rows, LuAttributes attributes) {
  const int64_t m = attributes.m;
  return OnFactors("LUFactor.packed", platform, coordinates, attributes, m, tiles, overflow,
                   Status::Ok(), [&](auto zero) {
                     using T = decltype(zero);
                     return [factor = OperandOf<T>(attributes, m, *rows, overflow, nullptr,
                                                   DataOf<T>(tiles))](const RankContext& context) {
                       return MoveLuRoutine<T>(context, factor, /*to_rows=*/true);
                     };
                   });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgGetrf, "getrf", jaxmg::FactorizeLu, jaxmg::GetrfAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()                         // a
                         .Ret<xla::ffi::AnyBuffer>()                         // tiles, overwrites a
                         .Ret<xla::ffi::AnyBuffer>()                         // overflow
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>()   // pivots
                         .Ret<xla::ffi::AnyBuffer>()                         // log_abs
                         .Ret<xla::ffi::AnyBuffer>()                         // sign
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kNativeAlone, &jaxmg::AnswerWith<jaxmg::GetrfNeeds>);

JAXMG_DEFINE_ROUTINE(JaxmgLuApply, "lu_apply", jaxmg::Apply, jaxmg::LuSolveAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()                        // tiles
                         .Arg<xla::ffi::AnyBuffer>()                        // overflow
                         .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // pivots
                         .Arg<xla::ffi::AnyBuffer>()                        // b
                         .Ret<xla::ffi::AnyBuffer>(),                       // x
                     jaxmg::kNativeAlone, &jaxmg::AnswerSquareWith<jaxmg::ApplyNeeds>);

JAXMG_DEFINE_ROUTINE(JaxmgLuSolveRows, "lu_solve_rows", jaxmg::SolveRows, jaxmg::LuSolveAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()                        // tiles
                         .Arg<xla::ffi::AnyBuffer>()                        // overflow
                         .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // pivots
                         .Arg<xla::ffi::AnyBuffer>()                        // b, a block of rows
                         .Ret<xla::ffi::AnyBuffer>(),                       // x
                     jaxmg::kNativeAlone);

JAXMG_DEFINE_ROUTINE(JaxmgLuInvert, "lu_invert", jaxmg::InvertFactors, jaxmg::PrecisionAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()                        // tiles
                         .Arg<xla::ffi::AnyBuffer>()                        // overflow
                         .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // pivots
                         .Ret<xla::ffi::AnyBuffer>(),  // the inverse, overwrites the tiles
                     jaxmg::kNativeAlone, &jaxmg::AnswerSquareWith<jaxmg::InvertNeeds>);

JAXMG_DEFINE_ROUTINE(JaxmgLuDiagonal, "lu_diagonal", jaxmg::Diagonal, jaxmg::LuAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()   // tiles
                         .Arg<xla::ffi::AnyBuffer>()   // overflow
                         .Ret<xla::ffi::AnyBuffer>(),  // diagonal of U
                     jaxmg::kNativeAlone);

JAXMG_DEFINE_ROUTINE(JaxmgLuTiles, "lu_tiles", jaxmg::TilesOfRows, jaxmg::LuAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()   // rows
                         .Ret<xla::ffi::AnyBuffer>()   // tiles, overwrites the rows
                         .Ret<xla::ffi::AnyBuffer>(),  // overflow
                     jaxmg::kNativeAlone);

JAXMG_DEFINE_ROUTINE(JaxmgLuRows, "lu_rows", jaxmg::RowsOfTiles, jaxmg::LuAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()   // tiles
                         .Arg<xla::ffi::AnyBuffer>()   // overflow
                         .Ret<xla::ffi::AnyBuffer>(),  // rows, overwrites the tiles
                     jaxmg::kNativeAlone);
