// The handlers of the Cholesky factor as a value. Its operands are `tiles` (rows, n), in the place
// of the rows of A, and `overflow`: (tile, n) where the layout has an overflow tile, else (0, n).
#include "xla_ffi/engine/cholesky/factor.h"

#include <complex>

#include "xla_ffi/handlers/call.h"
#include "xla_ffi/handlers/handlers.h"

namespace jaxmg {
namespace {

// A Status that names the routine unless the block, the tile width and the overflow tile fit each
// other as the plan has them.
Status CheckFactor(const char* routine, ffi::AnyBuffer tiles, ffi::AnyBuffer overflow,
                   const Attributes& attributes) {
  Backend backend;
  JAXMG_RETURN_IF_ERROR(CheckCall(routine, tiles, attributes, &backend));
  if (backend != kNative) {
    return Error(Code::kInvalidArgument, routine, ": only backend 'native' keeps factors");
  }
  const int64_t n = attributes.n, block = tiles.dimensions()[0];
  if (attributes.tile != Tiles::EvenWidth(block, attributes.tile)) {
    return Error(Code::kInvalidArgument, routine, ": tiles of ", attributes.tile,
                 " columns are not what blocks of ", block, " are cut into");
  }
  const bool overflows =
      Tiles(n, block, static_cast<int>(attributes.ranks), attributes.tile).has_overflow();
  const int64_t rows = overflows ? attributes.tile : 0;
  const auto shape = overflow.dimensions();
  if (shape.size() != 2 || shape[0] != rows || shape[1] != n ||
      overflow.element_type() != tiles.element_type()) {
    return Error(Code::kInvalidArgument, routine, ": the overflow tile must be (", rows, ", ", n,
                 "), of the tiles' dtype");
  }
  return Status::Ok();
}

// What a rank works on in `a`, and where that is copied from first.
template <typename T>
Operand<T> OperandOf(const Attributes& attributes, ffi::AnyBuffer a, ffi::AnyBuffer overflow,
                     int32_t* status, const T* source) {
  return {attributes.n,     attributes.n, a.dimensions()[0],       attributes.tile,
          Data<T>(a),       status,       PrecisionOf(attributes), source,
          Data<T>(overflow)};
}

// Launches the rank program that `program` gives for the factor's dtype, if the call can be right.
// What that needs of buffers it has to take out of them: they may be gone when it runs.
template <typename Program>
PlatformResult OnFactor(const char* name, const Platform& platform,
                        ffi::Buffer<ffi::DataType::S32>& place, const Attributes& attributes,
                        ffi::AnyBuffer tiles, ffi::AnyBuffer overflow, const Program& program) {
  const Status checked = CheckFactor(name, tiles, overflow, attributes);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(name, tiles.element_type(), [&](auto zero) {
    return Launch(platform, SiteOf(name, platform, place, tiles, attributes), program(zero));
  });
}

PlatformResult Factorize(Platform platform, ffi::Buffer<ffi::DataType::S32> place, ffi::AnyBuffer a,
                         ffi::Result<ffi::AnyBuffer> tiles, ffi::Result<ffi::AnyBuffer> overflow,
                         ffi::Result<ffi::AnyBuffer> log_det,
                         ffi::ResultBuffer<ffi::DataType::S32> status, Attributes attributes) {
  return OnFactor("potrf", platform, place, attributes, *tiles, *overflow, [&](auto zero) {
    using T = decltype(zero);
    return [operand = OperandOf<T>(attributes, *tiles, *overflow, status->typed_data(), Data<T>(a)),
            log_det = Data<Real<T>>(*log_det)](const RankContext& context) {
      return PotrfRoutine<T>(context, operand, log_det);
    };
  });
}

PlatformResult FactorApply(Platform platform, ffi::Buffer<ffi::DataType::S32> place,
                           ffi::AnyBuffer tiles, ffi::AnyBuffer overflow, ffi::AnyBuffer b,
                           ffi::Result<ffi::AnyBuffer> x, Attributes attributes) {
  static constexpr char kName[] = "factor_apply";
  const auto shape = b.dimensions();
  if (shape.size() != 2 || shape[0] != attributes.n || b.element_type() != tiles.element_type()) {
    return Refuse(Error(Code::kInvalidArgument, kName, ": b must be (n, nrhs), of a's dtype"));
  }
  if (attributes.operation < 0 || attributes.operation > static_cast<int64_t>(Apply::kMultiplyLH)) {
    return Refuse(
        Error(Code::kInvalidArgument, kName, ": there is no operation ", attributes.operation));
  }
  return OnFactor(kName, platform, place, attributes, tiles, overflow, [&](auto zero) {
    using T = decltype(zero);
    return [factor = OperandOf<T>(attributes, tiles, overflow, nullptr, nullptr),
            apply = static_cast<Apply>(attributes.operation), nrhs = shape[1], x = Data<T>(*x),
            b = Data<T>(b)](const RankContext& context) {
      return ApplyRoutine<T>(context, factor, apply, nrhs, x, b);
    };
  });
}

PlatformResult FactorSolveRows(Platform platform, ffi::Buffer<ffi::DataType::S32> place,
                               ffi::AnyBuffer tiles, ffi::AnyBuffer overflow, ffi::AnyBuffer b,
                               ffi::Result<ffi::AnyBuffer> x, Attributes attributes) {
  static constexpr char kName[] = "factor_solve_rows";
  const auto shape = b.dimensions(), block = tiles.dimensions();
  if (shape.size() != 2 || block.size() != 2 || shape[0] != block[0] || shape[1] != block[1] ||
      b.element_type() != tiles.element_type()) {
    return Refuse(Error(Code::kInvalidArgument, kName, ": b must be a block such as the tiles'"));
  }
  return OnFactor(kName, platform, place, attributes, tiles, overflow, [&](auto zero) {
    using T = decltype(zero);
    return [factor = OperandOf<T>(attributes, tiles, overflow, nullptr, nullptr),
            inverse = attributes.inverse != 0, x = Data<T>(*x),
            b = Data<T>(b)](const RankContext& context) {
      return SolveRowsRoutine<T>(context, factor, inverse, x, b);
    };
  });
}

PlatformResult FactorInvert(Platform platform, ffi::Buffer<ffi::DataType::S32> place,
                            ffi::AnyBuffer tiles, ffi::AnyBuffer overflow,
                            ffi::Result<ffi::AnyBuffer> inverse, Attributes attributes) {
  return OnFactor("factor_invert", platform, place, attributes, tiles, overflow, [&](auto zero) {
    using T = decltype(zero);
    return [factor = OperandOf<T>(attributes, *inverse, overflow, nullptr, Data<T>(tiles))](
               const RankContext& context) { return InvertRoutine<T>(context, factor); };
  });
}

PlatformResult FactorDiagonal(Platform platform, ffi::Buffer<ffi::DataType::S32> place,
                              ffi::AnyBuffer tiles, ffi::AnyBuffer overflow,
                              ffi::Result<ffi::AnyBuffer> diagonal, Attributes attributes) {
  return OnFactor("factor_diagonal", platform, place, attributes, tiles, overflow, [&](auto zero) {
    using T = decltype(zero);
    return [factor = OperandOf<T>(attributes, tiles, overflow, nullptr, nullptr),
            diagonal = Data<Real<T>>(*diagonal)](const RankContext& context) {
      return DiagonalRoutine<T>(context, factor, diagonal);
    };
  });
}

PlatformResult FactorTiles(Platform platform, ffi::Buffer<ffi::DataType::S32> place,
                           ffi::AnyBuffer rows, ffi::Result<ffi::AnyBuffer> tiles,
                           ffi::Result<ffi::AnyBuffer> overflow, Attributes attributes) {
  return OnFactor("factor_tiles", platform, place, attributes, *tiles, *overflow, [&](auto zero) {
    using T = decltype(zero);
    return [factor = OperandOf<T>(attributes, *tiles, *overflow, nullptr, Data<T>(rows))](
               const RankContext& context) {
      return MoveFactorRoutine<T>(context, factor, /*inverse=*/false);
    };
  });
}

PlatformResult FactorRows(Platform platform, ffi::Buffer<ffi::DataType::S32> place,
                          ffi::AnyBuffer tiles, ffi::AnyBuffer overflow,
                          ffi::Result<ffi::AnyBuffer> rows, Attributes attributes) {
  return OnFactor("factor_rows", platform, place, attributes, tiles, overflow, [&](auto zero) {
    using T = decltype(zero);
    return [factor = OperandOf<T>(attributes, *rows, overflow, nullptr, Data<T>(tiles))](
               const RankContext& context) {
      return MoveFactorRoutine<T>(context, factor, /*inverse=*/true);
    };
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_HANDLER(JaxmgPotrf, "potrf", jaxmg::Factorize, jaxmg::kN | jaxmg::kProducts,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()                        // a
                         .Ret<xla::ffi::AnyBuffer>()                        // tiles, in a's place
                         .Ret<xla::ffi::AnyBuffer>()                        // overflow
                         .Ret<xla::ffi::AnyBuffer>()                        // log_det
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // status
);

JAXMG_DEFINE_HANDLER(JaxmgFactorApply, "factor_apply", jaxmg::FactorApply,
                     jaxmg::kN | jaxmg::kOperation,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // tiles
                         .Arg<xla::ffi::AnyBuffer>()  // overflow
                         .Arg<xla::ffi::AnyBuffer>()  // b
                         .Ret<xla::ffi::AnyBuffer>()  // x
);

JAXMG_DEFINE_HANDLER(JaxmgFactorSolveRows, "factor_solve_rows", jaxmg::FactorSolveRows,
                     jaxmg::kN | jaxmg::kInverse,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // tiles
                         .Arg<xla::ffi::AnyBuffer>()  // overflow
                         .Arg<xla::ffi::AnyBuffer>()  // b, a block of rows
                         .Ret<xla::ffi::AnyBuffer>()  // x
);

JAXMG_DEFINE_HANDLER(JaxmgFactorInvert, "factor_invert", jaxmg::FactorInvert,
                     jaxmg::kN | jaxmg::kProducts,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // tiles
                         .Arg<xla::ffi::AnyBuffer>()  // overflow
                         .Ret<xla::ffi::AnyBuffer>()  // the inverse, in the tiles' place
);

JAXMG_DEFINE_HANDLER(JaxmgFactorDiagonal, "factor_diagonal", jaxmg::FactorDiagonal, jaxmg::kN,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // tiles
                         .Arg<xla::ffi::AnyBuffer>()  // overflow
                         .Ret<xla::ffi::AnyBuffer>()  // diagonal, real
);

JAXMG_DEFINE_HANDLER(JaxmgFactorTiles, "factor_tiles", jaxmg::FactorTiles, jaxmg::kN,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // rows of U
                         .Ret<xla::ffi::AnyBuffer>()  // tiles, in their place
                         .Ret<xla::ffi::AnyBuffer>()  // overflow
);

JAXMG_DEFINE_HANDLER(JaxmgFactorRows, "factor_rows", jaxmg::FactorRows, jaxmg::kN,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()  // tiles
                         .Arg<xla::ffi::AnyBuffer>()  // overflow
                         .Ret<xla::ffi::AnyBuffer>()  // rows of U, in the tiles' place
);
