// The handler of a tall matrix in host memory (engine/offload/host_rows.h). `call` has the id of
// its chunks (chunks.h). The layout has one rank: each device calls for itself.
#include "xla_ffi/engine/offload/host_rows.h"

#include <complex>
#include <utility>

#include "xla_ffi/handlers/call.h"
#include "xla_ffi/handlers/offload/chunks.h"

namespace jaxmg {

struct HostRowsAttributes : SquareAttributes {
  bool with_b;  // whether there are right-hand sides

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    SquareAttributes::Visit(attributes, visit);
    visit("with_b", attributes.with_b);
  }
};

namespace {

constexpr char kName[] = "host_rows";

bool Is(ffi::AnyBuffer buffer, ffi::AnyBuffer a, int64_t rows, int64_t columns) {
  const auto shape = buffer.dimensions();
  return shape.size() == 2 && shape[0] == rows && shape[1] == columns &&
         buffer.element_type() == a.element_type();
}

PlatformResult HostRows(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                        ffi::Buffer<ffi::DataType::S32> call, ffi::AnyBuffer a, ffi::AnyBuffer b,
                        ffi::AnyBuffer source_a, ffi::AnyBuffer source_b,
                        ffi::Result<ffi::AnyBuffer> next_a, ffi::Result<ffi::AnyBuffer> next_b,
                        ffi::Result<ffi::AnyBuffer> r, ffi::Result<ffi::AnyBuffer> c,
                        ffi::ResultBuffer<ffi::DataType::S32> power,
                        ffi::ResultBuffer<ffi::DataType::S32> powers,
                        HostRowsAttributes attributes) {
  const int64_t n = attributes.n, block = a.dimensions().size() == 2 ? a.dimensions()[0] : 0;
  size_t backend = 0;
  const Status checked = CheckBlock(kName, a, block, n, attributes, kNativeAlone, &backend);
  if (!checked.ok()) return Refuse(checked);
  const int64_t nrhs = b.dimensions().size() == 2 ? b.dimensions()[1] : 0;
  const bool fit = attributes.ranks == 1 && attributes.processes.count == 0 && block >= n &&
                   call.element_count() * sizeof(int32_t) == sizeof(HostRowsCall) &&
                   Is(b, a, attributes.with_b ? block : 0, nrhs) && Is(*r, a, n, n) &&
                   Is(*c, a, n, nrhs) && power->element_count() == 1 &&
                   static_cast<int64_t>(powers->element_count()) == nrhs;
  if (!fit) {
    return Refuse(Error(Code::kInvalidArgument, kName, ": with n = ", n, " and ", block,
                        " rows, it takes one rank, a call of 4 elements, and b (rows, nrhs); the "
                        "results are R (n, n), Q^H b (n, nrhs) and exponents, (1,) and (nrhs,)"));
  }
  const auto same = [&](ffi::AnyBuffer source, ffi::AnyBuffer next) {
    return source.element_type() == a.element_type() && next.element_type() == a.element_type() &&
           source.element_count() == next.element_count();
  };
  if (!same(source_a, *next_a) || !same(source_b, *next_b)) {
    return Refuse(Error(Code::kInvalidArgument, kName,
                        ": the buffers must have a's dtype, and results of their sizes"));
  }
  return ForDtype(kName, a.element_type(), [&](auto zero) {
    using T = decltype(zero);
    HostRowsOperand<T> operand = {{{n, block, 0, nrhs, attributes.with_b, false},
                                   DataOf<T>(a),
                                   DataOf<T>(b),
                                   nullptr,
                                   nullptr,
                                   DataOf<T>(*r),
                                   DataOf<T>(*c),
                                   power->typed_data(),
                                   powers->typed_data()},
                                  call.typed_data(),
                                  {DataOf<T>(*next_a), DataOf<T>(*next_b)},
                                  {static_cast<int64_t>(next_a->element_count()),
                                   static_cast<int64_t>(next_b->element_count())},
                                  {DataOf<T>(source_a), DataOf<T>(source_b)},
                                  &FindOpenHostChunks};
    return Launch(platform, SiteOf(kName, platform, coordinates, a, attributes, n, &b),
                  [operand = std::move(operand)](const RankContext& context) {
                    return HostRowsRoutine<T>(context, operand);
                  });
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgHostRows, jaxmg::kName, jaxmg::HostRows, jaxmg::HostRowsAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>()   // call
                         .Arg<xla::ffi::AnyBuffer>()                         // a
                         .Arg<xla::ffi::AnyBuffer>()                         // b
                         .Arg<xla::ffi::AnyBuffer>()                         // next a
                         .Arg<xla::ffi::AnyBuffer>()                         // next b
                         .Ret<xla::ffi::AnyBuffer>()                         // next a
                         .Ret<xla::ffi::AnyBuffer>()                         // next b
                         .Ret<xla::ffi::AnyBuffer>()                         // r
                         .Ret<xla::ffi::AnyBuffer>()                         // c
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>()   // power
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>(),  // powers
                     jaxmg::kNativeAlone);
