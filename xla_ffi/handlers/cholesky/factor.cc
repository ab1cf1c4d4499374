// The handlers of the Cholesky factor as a value. Its operands are `tiles` (rows, n), which
// replaces the rows of A, and `overflow`: (tile, n) if the layout has an overflow tile, else (0,
// n).
#include "xla_ffi/engine/cholesky/factor.h"

#include <complex>

#include "xla_ffi/engine/cholesky/update.h"
#include "xla_ffi/handlers/call.h"

namespace jaxmg {

template <>
struct EnumAttribute<Apply> {
  static constexpr int64_t kCount = static_cast<int64_t>(Apply::kMultiplyLH) + 1;
  static constexpr char kWhat[] = "operation";
};

struct ApplyAttributes : SquareAttributes {
  Apply operation;

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    SquareAttributes::Visit(attributes, visit);
    visit("operation", attributes.operation);
  }
};

struct SolveRowsAttributes : SquareAttributes {
  bool inverse;  // b L^-1 instead of b L^-H

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    SquareAttributes::Visit(attributes, visit);
    visit("inverse", attributes.inverse);
  }
};

struct UpdateAttributes : SquareAttributes {
  bool downdate;  // A - V V^H instead of A + V V^H

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    SquareAttributes::Visit(attributes, visit);
    visit("downdate", attributes.downdate);
  }
};

namespace {

// The memory that a call needs on a rank, for plans.
struct PotrfNeeds {
  template <typename T>
  static RankNeeds Of(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    const PotrfSpace<T> space(sizes, ranks);
    return NeedsOf<T>(space, space.tiles.has_overflow() ? space.tiles.width() * query.n : 0);
  }
};

struct ApplyNeeds {
  template <typename T>
  static RankNeeds Of(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    return NeedsOf<T>(ApplySpace<T>(sizes, query.nrhs, ranks), query.n * query.nrhs);
  }
};

// Returns the operand in `a`, to which the routine first copies `source`, unless that is null.
template <typename T>
Operand<T> OperandOf(const SquareAttributes& attributes, ffi::AnyBuffer a, ffi::AnyBuffer overflow,
                     int32_t* status, const T* source, Precision precision = Precision::kHighest) {
  return {attributes.n, attributes.n, a.dimensions()[0],  attributes.tile, DataOf<T>(a), status,
          precision,    source,       DataOf<T>(overflow)};
}

// Checks the call and launches the rank program that program(T()) returns for the factor's dtype.
// The rank program must hold the buffers' pointers, not the buffers, which may be destroyed before
// it runs.
template <typename Program>
PlatformResult OnFactor(const char* name, const Platform& platform,
                        ffi::Buffer<ffi::DataType::S32>& coordinates,
                        const SquareAttributes& attributes, ffi::AnyBuffer tiles,
                        ffi::AnyBuffer overflow, const Program& program,
                        const ffi::AnyBuffer* b = nullptr) {
  const Status checked = CheckTiles(name, tiles, overflow, attributes.n, attributes.n, attributes);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(name, tiles.element_type(), [&](auto zero) {
    return Launch(platform, SiteOf(name, platform, coordinates, tiles, attributes, attributes.n, b),
                  program(zero));
  });
}

PlatformResult Factorize(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                         ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> tiles,
                         ffi::Result<ffi::AnyBuffer> overflow, ffi::Result<ffi::AnyBuffer> log_det,
                         ffi::ResultBuffer<ffi::DataType::S32> status,
                         PrecisionAttributes attributes) {
  const Status checked = CheckPrecision("potrf", a, attributes);
  if (!checked.ok()) return Refuse(checked);
  return OnFactor("potrf", platform, coordinates, attributes, *tiles, *overflow, [&](auto zero) {
    using T = decltype(zero);
    return [operand = OperandOf<T>(attributes, *tiles, *overflow, status->typed_data(),
                                   DataOf<T>(a), attributes.products),
            log_det = DataOf<Real<T>>(*log_det)](const RankContext& context) {
      return PotrfRoutine<T>(context, operand, log_det);
    };
  });
}

PlatformResult FactorApply(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                           ffi::AnyBuffer tiles, ffi::AnyBuffer overflow, ffi::AnyBuffer b,
                           ffi::Result<ffi::AnyBuffer> x, ApplyAttributes attributes) {
  static constexpr char kName[] = "factor_apply";
  const auto shape = b.dimensions();
  if (shape.size() != 2 || shape[0] != attributes.n || b.element_type() != tiles.element_type()) {
    return Refuse(Error(Code::kInvalidArgument, kName, ": b must be (n, nrhs), of a's dtype"));
  }
  return OnFactor(
      kName, platform, coordinates, attributes, tiles, overflow,
      [&](auto zero) {
        using T = decltype(zero);
        return [factor = OperandOf<T>(attributes, tiles, overflow, nullptr, nullptr),
                apply = attributes.operation, nrhs = shape[1], x = DataOf<T>(*x),
                b = DataOf<T>(b)](const RankContext& context) {
          return ApplyRoutine<T>(context, factor, apply, nrhs, x, b);
        };
      },
      &b);
}

PlatformResult FactorSolveRows(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                               ffi::AnyBuffer tiles, ffi::AnyBuffer overflow, ffi::AnyBuffer b,
                               ffi::Result<ffi::AnyBuffer> x, SolveRowsAttributes attributes) {
  static constexpr char kName[] = "factor_solve_rows";
  const auto shape = b.dimensions(), block = tiles.dimensions();
  if (shape.size() != 2 || block.size() != 2 || shape[0] != block[0] || shape[1] != block[1] ||
      b.element_type() != tiles.element_type()) {
    return Refuse(
        Error(Code::kInvalidArgument, kName, ": b must have the shape and dtype of the tiles"));
  }
  return OnFactor(
      kName, platform, coordinates, attributes, tiles, overflow,
      [&](auto zero) {
        using T = decltype(zero);
        return [factor = OperandOf<T>(attributes, tiles, overflow, nullptr, nullptr),
                inverse = attributes.inverse, x = DataOf<T>(*x),
                b = DataOf<T>(b)](const RankContext& context) {
          return SolveRowsRoutine<T>(context, factor, inverse, x, b);
        };
      },
      &b);
}

PlatformResult FactorInvert(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                            ffi::AnyBuffer tiles, ffi::AnyBuffer overflow,
                            ffi::Result<ffi::AnyBuffer> inverse, PrecisionAttributes attributes) {
  const Status checked = CheckPrecision("factor_invert", tiles, attributes);
  if (!checked.ok()) return Refuse(checked);
  return OnFactor(
      "factor_invert", platform, coordinates, attributes, tiles, overflow, [&](auto zero) {
        using T = decltype(zero);
        return [factor = OperandOf<T>(attributes, *inverse, overflow, nullptr, DataOf<T>(tiles),
                                      attributes.products)](const RankContext& context) {
          return InvertRoutine<T>(context, factor);
        };
      });
}

PlatformResult FactorDiagonal(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                              ffi::AnyBuffer tiles, ffi::AnyBuffer overflow,
                              ffi::Result<ffi::AnyBuffer> diagonal, SquareAttributes attributes) {
  return OnFactor("factor_diagonal", platform, coordinates, attributes, tiles, overflow,
                  [&](auto zero) {
                    using T = decltype(zero);
                    return [factor = OperandOf<T>(attributes, tiles, overflow, nullptr, nullptr),
                            diagonal = DataOf<Real<T>>(*diagonal)](const RankContext& context) {
                      return DiagonalRoutine<T>(context, factor, diagonal);
                    };
                  });
}

PlatformResult FactorTiles(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                           ffi::AnyBuffer rows, ffi::Result<ffi::AnyBuffer> tiles,
                           ffi::Result<ffi::AnyBuffer> overflow, SquareAttributes attributes) {
  return OnFactor(
      "factor_tiles", platform, coordinates, attributes, *tiles, *overflow, [&](auto zero) {
        using T = decltype(zero);
        return [factor = OperandOf<T>(attributes, *tiles, *overflow, nullptr, DataOf<T>(rows))](
                   const RankContext& context) {
          return MoveFactorRoutine<T>(context, factor, /*inverse=*/false);
        };
      });
}

PlatformResult FactorRows(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                          ffi::AnyBuffer tiles, ffi::AnyBuffer overflow,
                          ffi::Result<ffi::AnyBuffer> rows, SquareAttributes attributes) {
  return OnFactor(
      "factor_rows", platform, coordinates, attributes, tiles, overflow, [&](auto zero) {
        using T = decltype(zero);
        return [factor = OperandOf<T>(attributes, *rows, overflow, nullptr, DataOf<T>(tiles))](
                   const RankContext& context) {
          return MoveFactorRoutine<T>(context, factor, /*inverse=*/true);
        };
      });
}

PlatformResult FactorUpdate(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                            ffi::AnyBuffer tiles, ffi::AnyBuffer overflow, ffi::AnyBuffer v,
                            ffi::Result<ffi::AnyBuffer> new_tiles,
                            ffi::Result<ffi::AnyBuffer> new_overflow,
                            ffi::Result<ffi::AnyBuffer> log_det,
                            ffi::ResultBuffer<ffi::DataType::S32> status,
                            UpdateAttributes attributes) {
  static constexpr char kName[] = "factor_update";
  const auto shape = v.dimensions();
  if (shape.size() != 2 || shape[0] != attributes.n || v.element_type() != tiles.element_type()) {
    return Refuse(Error(Code::kInvalidArgument, kName, ": v must be (n, k), of a's dtype"));
  }
  return OnFactor(
      kName, platform, coordinates, attributes, *new_tiles, *new_overflow,
      [&](auto zero) {
        using T = decltype(zero);
        return [factor = OperandOf<T>(attributes, *new_tiles, *new_overflow, status->typed_data(),
                                      DataOf<T>(tiles)),
                overflow = DataOf<T>(overflow), downdate = attributes.downdate, k = shape[1],
                v = DataOf<T>(v), log_det = DataOf<Real<T>>(*log_det)](const RankContext& context) {
          return UpdateRoutine<T>(context, factor, overflow, downdate, k, v, log_det);
        };
      },
      &v);
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgPotrf, "potrf", jaxmg::Factorize, jaxmg::PrecisionAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()                         // a
                         .Ret<xla::ffi::AnyBuffer>()                         // tiles, overwrites a
                         .Ret<xla::ffi::AnyBuffer>()                         // overflow
                         .Ret<xla::ffi::AnyBuffer>()                         // log_det
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kNativeAlone, &jaxmg::AnswerSquareWith<jaxmg::PotrfNeeds>);

JAXMG_DEFINE_ROUTINE(JaxmgFactorApply, "factor_apply", jaxmg::FactorApply, jaxmg::ApplyAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()   // tiles
                         .Arg<xla::ffi::AnyBuffer>()   // overflow
                         .Arg<xla::ffi::AnyBuffer>()   // b
                         .Ret<xla::ffi::AnyBuffer>(),  // x
                     jaxmg::kNativeAlone, &jaxmg::AnswerSquareWith<jaxmg::ApplyNeeds>);

JAXMG_DEFINE_ROUTINE(JaxmgFactorSolveRows, "factor_solve_rows", jaxmg::FactorSolveRows,
                     jaxmg::SolveRowsAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()   // tiles
                         .Arg<xla::ffi::AnyBuffer>()   // overflow
                         .Arg<xla::ffi::AnyBuffer>()   // b, a block of rows
                         .Ret<xla::ffi::AnyBuffer>(),  // x
                     jaxmg::kNativeAlone);

JAXMG_DEFINE_ROUTINE(JaxmgFactorInvert, "factor_invert", jaxmg::FactorInvert,
                     jaxmg::PrecisionAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()   // tiles
                         .Arg<xla::ffi::AnyBuffer>()   // overflow
                         .Ret<xla::ffi::AnyBuffer>(),  // the inverse, overwrites the tiles
                     jaxmg::kNativeAlone);

JAXMG_DEFINE_ROUTINE(JaxmgFactorDiagonal, "factor_diagonal", jaxmg::FactorDiagonal,
                     jaxmg::SquareAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()   // tiles
                         .Arg<xla::ffi::AnyBuffer>()   // overflow
                         .Ret<xla::ffi::AnyBuffer>(),  // diagonal, real
                     jaxmg::kNativeAlone);

JAXMG_DEFINE_ROUTINE(JaxmgFactorTiles, "factor_tiles", jaxmg::FactorTiles, jaxmg::SquareAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()   // rows of U
                         .Ret<xla::ffi::AnyBuffer>()   // tiles, overwrites the rows
                         .Ret<xla::ffi::AnyBuffer>(),  // overflow
                     jaxmg::kNativeAlone);

JAXMG_DEFINE_ROUTINE(JaxmgFactorRows, "factor_rows", jaxmg::FactorRows, jaxmg::SquareAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()   // tiles
                         .Arg<xla::ffi::AnyBuffer>()   // overflow
                         .Ret<xla::ffi::AnyBuffer>(),  // rows of U, overwrites the tiles
                     jaxmg::kNativeAlone);

JAXMG_DEFINE_ROUTINE(JaxmgFactorUpdate, "factor_update", jaxmg::FactorUpdate,
                     jaxmg::UpdateAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()                         // tiles
                         .Arg<xla::ffi::AnyBuffer>()                         // overflow
                         .Arg<xla::ffi::AnyBuffer>()                         // v
                         .Ret<xla::ffi::AnyBuffer>()                         // tiles, overwritten
                         .Ret<xla::ffi::AnyBuffer>()                         // overflow
                         .Ret<xla::ffi::AnyBuffer>()                         // log_det
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kNativeAlone);
