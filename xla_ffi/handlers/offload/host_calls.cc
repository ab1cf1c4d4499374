// The handlers of matrices in host memory (engine/offload). The matrix is no operand: `call` has
// its id (registry.h), the index of a block column and, of host_solve, the direction. The last
// operand may be left out: memory for the part of the factor that stays on the device
// (host_cache.h), in one dimension. host_potrf then has it as its last result, too.
#include <complex>
#include <initializer_list>
#include <utility>

#include "xla_ffi/engine/offload/host_potrf.h"
#include "xla_ffi/engine/offload/host_potri.h"
#include "xla_ffi/engine/offload/host_solve.h"
#include "xla_ffi/handlers/call.h"
#include "xla_ffi/handlers/offload/registry.h"

namespace jaxmg {

struct HostAttributes : PrecisionAttributes {
  int64_t nrhs;
  int64_t width;  // of a block column

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    PrecisionAttributes::Visit(attributes, visit);
    visit("nrhs", attributes.nrhs);
    visit("width", attributes.width);
  }
};

namespace {

constexpr char kPotrf[] = "host_potrf";
constexpr char kPotri[] = "host_potri";
constexpr char kSolve[] = "host_solve";

HostShape ShapeOf(const HostAttributes& attributes) {
  return {attributes.n, attributes.nrhs, attributes.width, attributes.tile,
          static_cast<int>(attributes.ranks)};
}

bool Is(ffi::AnyBuffer buffer, int64_t rows, int64_t columns) {
  const auto shape = buffer.dimensions();
  return shape.size() == 2 && shape[0] == rows && shape[1] == columns;
}

// `data` is the operand with the matrix's dtype.
Status CheckHostCall(const char* name, ffi::Buffer<ffi::DataType::S32>& call, ffi::AnyBuffer data,
                     const HostAttributes& attributes) {
  if (attributes.ranks < 1 || attributes.ranks > 1 << 20) {
    return Error(Code::kInvalidArgument, name, ": ranks must be from 1 to 2^20; got ",
                 attributes.ranks);
  }
  JAXMG_RETURN_IF_ERROR(CheckHostShape(name, ShapeOf(attributes)));
  if (attributes.processes.count > 0) {
    return Error(Code::kInvalidArgument, name,
                 ": all devices must be in the process whose memory has the matrix");
  }
  if (call.element_count() * sizeof(int32_t) != sizeof(HostCall)) {
    return Error(Code::kInvalidArgument, name, ": call must have 4 elements");
  }
  JAXMG_RETURN_IF_ERROR(CheckPrecision(name, data, attributes));
  size_t backend = 0;
  return FindBackend(name, kNativeAlone, attributes.backend, &backend);
}

Status CheckRightHandSides(const char* name, ffi::AnyBuffer x, const HostAttributes& attributes) {
  if (Is(x, attributes.n, attributes.nrhs)) return Status::Ok();
  return Error(Code::kInvalidArgument, name, ": x must be (", attributes.n, ", ", attributes.nrhs,
               ")");
}

// Checks the buffers of a block column, of which `data` has the dtype.
Status CheckBuffers(const char* name, std::initializer_list<ffi::AnyBuffer> buffers,
                    ffi::AnyBuffer data, const HostShape& shape) {
  for (const ffi::AnyBuffer& buffer : buffers) {
    if (!Is(buffer, shape.rank_columns(), shape.ld()) ||
        buffer.element_type() != data.element_type()) {
      return Error(Code::kInvalidArgument, name, ": buffers must be (", shape.rank_columns(), ", ",
                   shape.ld(), "), of one dtype");
    }
  }
  return Status::Ok();
}

// The last operand, or the last result.
template <typename T>
struct CacheMemory {
  T* data = nullptr;
  int64_t elements = 0;
};

template <typename T>
Status TakeCache(const char* name, ffi::AnyBuffer buffer, ffi::AnyBuffer x, CacheMemory<T>* cache) {
  if (buffer.dimensions().size() != 1 || buffer.element_type() != x.element_type()) {
    return Error(Code::kInvalidArgument, name, ": the cache must have one dimension and x's dtype");
  }
  *cache = {DataOf<T>(buffer), static_cast<int64_t>(buffer.element_count())};
  return Status::Ok();
}

template <typename T>
Status TakeOperandCache(const char* name, const ffi::RemainingArgs& more, ffi::AnyBuffer x,
                        CacheMemory<T>* cache) {
  if (more.size() == 0) return Status::Ok();
  const auto buffer = more.get<ffi::AnyBuffer>(0);
  if (more.size() > 1 || !buffer.has_value()) {
    return Error(Code::kInvalidArgument, name, ": too many operands");
  }
  return TakeCache(name, *buffer, x, cache);
}

template <typename T>
Status TakeResultCache(const char* name, const ffi::RemainingRets& more, ffi::AnyBuffer x,
                       CacheMemory<T>* cache) {
  if (more.size() == 0) return Status::Ok();
  auto buffer = more.get<ffi::AnyBuffer>(0);
  if (more.size() > 1 || !buffer.has_value()) {
    return Error(Code::kInvalidArgument, name, ": too many results");
  }
  return TakeCache(name, **buffer, x, cache);
}

PlatformResult HostPotrf(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                         ffi::Buffer<ffi::DataType::S32> call, ffi::AnyBuffer even,
                         ffi::AnyBuffer odd, ffi::AnyBuffer b, ffi::RemainingArgs more,
                         ffi::Result<ffi::AnyBuffer> a0, ffi::Result<ffi::AnyBuffer> a1,
                         ffi::Result<ffi::AnyBuffer> x, ffi::Result<ffi::AnyBuffer> log_det,
                         ffi::ResultBuffer<ffi::DataType::S32> status,
                         ffi::RemainingRets more_results, HostAttributes attributes) {
  const HostShape shape = ShapeOf(attributes);
  Status checked = CheckHostCall(kPotrf, call, b, attributes);
  if (checked.ok()) checked = CheckRightHandSides(kPotrf, b, attributes);
  if (checked.ok()) checked = CheckBuffers(kPotrf, {even, odd}, b, shape);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kPotrf, b.element_type(), [&](auto zero) {
    using T = decltype(zero);
    CacheMemory<T> source, cache;
    Status taken = TakeOperandCache<T>(kPotrf, more, b, &source);
    if (taken.ok()) taken = TakeResultCache<T>(kPotrf, more_results, b, &cache);
    if (taken.ok() && source.elements != cache.elements) {
      taken = Error(Code::kInvalidArgument, kPotrf, ": the cache has ", source.elements,
                    " elements, but its result has ", cache.elements);
    }
    if (!taken.ok()) return Refuse(taken);
    HostPotrfOperand<T> operand = {shape,
                                   attributes.products,
                                   call.typed_data(),
                                   {DataOf<T>(*a0), DataOf<T>(*a1)},
                                   {DataOf<T>(even), DataOf<T>(odd)},
                                   DataOf<T>(*x),
                                   DataOf<T>(b),
                                   DataOf<Real<T>>(*log_det),
                                   status->typed_data(),
                                   &FindOpenHostMatrix,
                                   cache.data,
                                   source.data,
                                   cache.elements};
    return Launch(platform, SiteOf(kPotrf, platform, coordinates, even, attributes, attributes.n),
                  [operand = std::move(operand)](const RankContext& context) {
                    return HostPotrfRoutine<T>(context, operand);
                  });
  });
}

PlatformResult HostPotri(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                         ffi::Buffer<ffi::DataType::S32> call, ffi::AnyBuffer workspace,
                         ffi::AnyBuffer column, ffi::Result<ffi::AnyBuffer> a,
                         ffi::Result<ffi::AnyBuffer> z, HostAttributes attributes) {
  const HostShape shape = ShapeOf(attributes);
  Status checked = CheckHostCall(kPotri, call, workspace, attributes);
  if (checked.ok()) checked = CheckBuffers(kPotri, {workspace, column}, workspace, shape);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kPotri, workspace.element_type(), [&](auto zero) {
    using T = decltype(zero);
    // The operands are memory for the results; their elements aren't read.
    const HostPotriOperand<T> operand = {shape, call.typed_data(), DataOf<T>(*a), DataOf<T>(*z),
                                         &FindOpenHostMatrix};
    return Launch(
        platform, SiteOf(kPotri, platform, coordinates, workspace, attributes, attributes.n),
        [operand](const RankContext& context) { return HostPotriRoutine<T>(context, operand); });
  });
}

PlatformResult HostSolve(Platform platform, ffi::Buffer<ffi::DataType::S32> coordinates,
                         ffi::Buffer<ffi::DataType::S32> call, ffi::AnyBuffer b,
                         ffi::RemainingArgs more, ffi::Result<ffi::AnyBuffer> x,
                         HostAttributes attributes) {
  Status checked = CheckHostCall(kSolve, call, b, attributes);
  if (checked.ok()) checked = CheckRightHandSides(kSolve, b, attributes);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(kSolve, b.element_type(), [&](auto zero) {
    using T = decltype(zero);
    CacheMemory<T> cache;
    const Status taken = TakeOperandCache<T>(kSolve, more, b, &cache);
    if (!taken.ok()) return Refuse(taken);
    HostSolveOperand<T> operand = {ShapeOf(attributes), call.typed_data(),   DataOf<T>(*x),
                                   DataOf<T>(b),        &FindOpenHostMatrix, cache.data,
                                   cache.elements};
    return Launch(platform, SiteOf(kSolve, platform, coordinates, b, attributes, attributes.n),
                  [operand = std::move(operand)](const RankContext& context) {
                    return HostSolveRoutine<T>(context, operand);
                  });
  });
}

}  // namespace
}  // namespace jaxmg

JAXMG_DEFINE_ROUTINE(JaxmgHostPotrf, jaxmg::kPotrf, jaxmg::HostPotrf, jaxmg::HostAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // call
                         .Arg<xla::ffi::AnyBuffer>()                        // a0
                         .Arg<xla::ffi::AnyBuffer>()                        // a1
                         .Arg<xla::ffi::AnyBuffer>()                        // x
                         .RemainingArgs()                                   // the cache
                         .Ret<xla::ffi::AnyBuffer>()                        // a0
                         .Ret<xla::ffi::AnyBuffer>()                        // a1
                         .Ret<xla::ffi::AnyBuffer>()                        // x
                         .Ret<xla::ffi::AnyBuffer>()                        // log_det
                         .Ret<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // status
                         .RemainingRets(),                                  // the cache
                     jaxmg::kNativeAlone);

JAXMG_DEFINE_ROUTINE(JaxmgHostPotri, jaxmg::kPotri, jaxmg::HostPotri, jaxmg::HostAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // call
                         .Arg<xla::ffi::AnyBuffer>()                        // a
                         .Arg<xla::ffi::AnyBuffer>()                        // z
                         .Ret<xla::ffi::AnyBuffer>()                        // a
                         .Ret<xla::ffi::AnyBuffer>(),                       // z
                     jaxmg::kNativeAlone);

JAXMG_DEFINE_ROUTINE(JaxmgHostSolve, jaxmg::kSolve, jaxmg::HostSolve, jaxmg::HostAttributes,
                     JAXMG_BIND()
                         .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>()  // call
                         .Arg<xla::ffi::AnyBuffer>()                        // x
                         .RemainingArgs()                                   // the cache
                         .Ret<xla::ffi::AnyBuffer>(),                       // x
                     jaxmg::kNativeAlone);
