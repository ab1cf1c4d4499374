// The handlers of the QR factorization as a value. Their operands are `tiles` (rows, n), which
// replaces the rows of A, m x n; `overflow`: (tile, n) if the layout has an overflow tile, else (0,
// n); `t`: (k, kPanelColumns), k = min(m, n), equal on all ranks.
#include "xla_ffi/engine/qr/qr_factor.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/handlers/general_factor.h"

namespace jaxmg {

using GeqrfAttributes = WithRows<PrecisionAttributes>;
using QrAttributes = WithOperation<WithRows<SquareAttributes>>;

namespace {

// The memory that a call needs on a rank, for plans.
struct GeqrfNeeds {
  template <typename T>
  static RankNeeds Of(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    const QrFactorSpace<T> space(sizes, ranks);
    const int64_t overflow = space.tiles.has_overflow() ? space.tiles.width() * query.n : 0;
    return NeedsOf<T>(space, overflow + (kPanelColumns + 1) * std::min(query.m, query.n));
  }
};

struct QrApplyNeeds {
  template <typename T>
  static RankNeeds Of(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    return NeedsOf<T>(QrApplySpace<T>(sizes, query.nrhs, ranks), query.n * query.nrhs);
  }
};

struct QrSolveNeeds {
  template <typename T>
  static RankNeeds Of(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    return NeedsOf<T>(QrSolveSpace<T>(sizes, query.nrhs, ranks), query.n * query.nrhs);
  }
};

struct QrFormNeeds {
  template <typename T>
  static RankNeeds Of(const PlanQuery&, const Sizes& sizes, const Ranks& ranks) {
    return NeedsOf<T>(QrFormSpace<T>(sizes, ranks), 0);
  }
};

Status CheckShape(const char* routine, const char* what, ffi::AnyBuffer buffer, int64_t rows,
                  int64_t columns, ffi::AnyBuffer tiles) {
  const auto shape = buffer.dimensions();
  if (shape.size() == 2 && (rows < 0 || shape[0] == rows) && (columns < 0 || shape[1] == columns) &&
      buffer.element_type() == tiles.element_type()) {
    return Status::Ok();
  }
  auto size = [](int64_t count) { return count < 0 ? std::string("any") : std::to_string(count); };
  return Error(Code::kInvalidArgument, routine, ": ", what, " must be (", size(rows), ", ",
               size(columns), "), of the tiles' dtype");
}

Status CheckT(const char* routine, ffi::AnyBuffer t, int64_t m, int64_t n, ffi::AnyBuffer tiles) {
  return CheckShape(routine, "t", t, std::min(m, n), kPanelColumns, tiles);
}

PlatformResult FactorizeQr(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                           ffi::AnyBuffer a, ffi::Result<ffi::AnyBuffer> tiles,
                           ffi::Result<ffi::AnyBuffer> overflow, ffi::Result<ffi::AnyBuffer> tau,
                           ffi::Result<ffi::AnyBuffer> t,
                           ffi::ResultBuffer<ffi::DataType::S32> status,
                           GeqrfAttributes attributes) {
  static constexpr char kName[] = "geqrf";
  const int64_t m = attributes.m, count = std::min(m, attributes.n);
  Status checked = CheckPrecision(kName, a, attributes);
  if (checked.ok()) checked = CheckT(kName, *t, m, attributes.n, *tiles);
  const auto shape = tau->dimensions();
  if (shape.size() != 1 || shape[0] != count || tau->element_type() != a.element_type()) {
    checked = Error(Code::kInvalidArgument, kName, ": tau must be (", count, "), of a's dtype");
  }
  return OnFactors(
      kName, platform, coordinates, attributes, m, *tiles, *overflow, checked, [&](auto zero) {
        using T = decltype(zero);
        return [operand = OperandOf<T>(attributes, m, *tiles, *overflow, status->typed_data(),
                                       DataOf<T>(a), attributes.products),
                t = DataOf<T>(*t), tau = DataOf<T>(*tau)](const RankContext& context) {
          return QrFactorRoutine<T>(context, operand, t, tau);
        };
      });
}

PlatformResult ApplyQ(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                      ffi::AnyBuffer tiles, ffi::AnyBuffer overflow, ffi::AnyBuffer t,
                      ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> x, QrAttributes attributes) {
  static constexpr char kName[] = "qr_apply";
  const int64_t m = attributes.m, n = attributes.n;
  Status checked = CheckT(kName, t, m, n, tiles);
  if (checked.ok()) checked = CheckShape(kName, "b", b, n, -1, tiles);
  return OnFactors(
      kName, platform, coordinates, attributes, m, tiles, overflow, checked,
      [&](auto zero) {
        using T = decltype(zero);
        return [factor = OperandOf<T>(attributes, m, tiles, overflow, nullptr, nullptr),
                t = DataOf<T>(t), op = attributes.operation, nrhs = b.dimensions()[1],
                x = DataOf<T>(*x), b = DataOf<T>(b)](const RankContext& context) {
          return QrApplyRoutine<T>(context, factor, t, op, nrhs, x, b);
        };
      },
      &b);
}

PlatformResult ApplyQToRows(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                            ffi::AnyBuffer tiles, ffi::AnyBuffer overflow, ffi::AnyBuffer t,
                            ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> x,
                            QrAttributes attributes) {
  static constexpr char kName[] = "qr_apply_rows";
  const int64_t m = attributes.m, n = attributes.n;
  Status checked = CheckT(kName, t, m, n, tiles);
  if (checked.ok()) checked = CheckShape(kName, "b", b, -1, n, tiles);
  return OnFactors(
      kName, platform, coordinates, attributes, m, tiles, overflow, checked,
      [&](auto zero) {
        using T = decltype(zero);
        return [factor = OperandOf<T>(attributes, m, tiles, overflow, nullptr, nullptr),
                t = DataOf<T>(t), op = attributes.operation, rows = b.dimensions()[0],
                x = DataOf<T>(*x), b = DataOf<T>(b)](const RankContext& context) {
          return QrApplyRowsRoutine<T>(context, factor, t, op, rows, x, b);
        };
      },
      &b);
}

PlatformResult SolveQr(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                       ffi::AnyBuffer tiles, ffi::AnyBuffer overflow, ffi::AnyBuffer t,
                       ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> x, QrAttributes attributes) {
  static constexpr char kName[] = "qr_solve";
  const int64_t m = attributes.m, n = attributes.n;
  Status checked = CheckT(kName, t, m, n, tiles);
  if (checked.ok()) checked = CheckShape(kName, "b", b, n, -1, tiles);
  if (m > n) {
    checked = Error(Code::kInvalidArgument, kName, ": m = ", m, " is more than n = ", n,
                    ": R has no inverse");
  }
  return OnFactors(
      kName, platform, coordinates, attributes, m, tiles, overflow, checked,
      [&](auto zero) {
        using T = decltype(zero);
        return [factor = OperandOf<T>(attributes, m, tiles, overflow, nullptr, nullptr),
                t = DataOf<T>(t), system = attributes.operation, nrhs = b.dimensions()[1],
                x = DataOf<T>(*x), b = DataOf<T>(b)](const RankContext& context) {
          return QrSolveRoutine<T>(context, factor, t, system, nrhs, x, b);
        };
      },
      &b);
}

PlatformResult FormQ(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                     ffi::AnyBuffer tiles, ffi::AnyBuffer overflow, ffi::AnyBuffer t,
                     ffi::Result<ffi::AnyBuffer> q, GeqrfAttributes attributes) {
  static constexpr char kName[] = "qr_form";
  const int64_t m = attributes.m;
  Status checked = CheckPrecision(kName, tiles, attributes);
  if (checked.ok()) checked = CheckT(kName, t, m, attributes.n, tiles);
  return OnFactors(kName, platform, coordinates, attributes, m, tiles, overflow, checked,
                   [&](auto zero) {
                     using T = decltype(zero);
                     return [factor = OperandOf<T>(attributes, m, *q, overflow, nullptr,
                                                   DataOf<T>(tiles), attributes.products),
                             t = DataOf<T>(t)](const RankContext& context) {
                       return QrFormRoutine<T>(context, factor, t);
                     };
                   });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgGeqrf, "geqrf", jaxmg::FactorizeQr, jaxmg::GeqrfAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()                         // a
                         .Ret<xla::ffi::AnyBuffer>()                         // tiles, overwrites a
                         .Ret<xla::ffi::AnyBuffer>()                         // overflow
                         .Ret<xla::ffi::AnyBuffer>()                         // tau
                         .Ret<xla::ffi::AnyBuffer>()                         // t
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // status
                     jaxmg::kNativeAlone, &jaxmg::AnswerWith<jaxmg::GeqrfNeeds>);

JAXMG_DEFINE_ROUTINE(JaxmgQrApply, "qr_apply", jaxmg::ApplyQ, jaxmg::QrAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()   // tiles
                         .Arg<xla::ffi::AnyBuffer>()   // overflow
                         .Arg<xla::ffi::AnyBuffer>()   // t
                         .Arg<xla::ffi::AnyBuffer>()   // b
                         .Ret<xla::ffi::AnyBuffer>(),  // x
                     jaxmg::kNativeAlone, &jaxmg::AnswerWith<jaxmg::QrApplyNeeds>);

JAXMG_DEFINE_ROUTINE(JaxmgQrApplyRows, "qr_apply_rows", jaxmg::ApplyQToRows, jaxmg::QrAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()   // tiles
                         .Arg<xla::ffi::AnyBuffer>()   // overflow
                         .Arg<xla::ffi::AnyBuffer>()   // t
                         .Arg<xla::ffi::AnyBuffer>()   // b, a block of rows
                         .Ret<xla::ffi::AnyBuffer>(),  // x
                     jaxmg::kNativeAlone);

JAXMG_DEFINE_ROUTINE(JaxmgQrSolve, "qr_solve", jaxmg::SolveQr, jaxmg::QrAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()   // tiles
                         .Arg<xla::ffi::AnyBuffer>()   // overflow
                         .Arg<xla::ffi::AnyBuffer>()   // t
                         .Arg<xla::ffi::AnyBuffer>()   // b
                         .Ret<xla::ffi::AnyBuffer>(),  // x
                     jaxmg::kNativeAlone, &jaxmg::AnswerWith<jaxmg::QrSolveNeeds>);

JAXMG_DEFINE_ROUTINE(JaxmgQrForm, "qr_form", jaxmg::FormQ, jaxmg::GeqrfAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::AnyBuffer>()   // tiles
                         .Arg<xla::ffi::AnyBuffer>()   // overflow
                         .Arg<xla::ffi::AnyBuffer>()   // t
                         .Ret<xla::ffi::AnyBuffer>(),  // Q's columns as rows, overwrites the tiles
                     jaxmg::kNativeAlone, &jaxmg::AnswerWith<jaxmg::QrFormNeeds>);
