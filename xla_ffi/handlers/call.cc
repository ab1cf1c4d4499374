#include "xla_ffi/handlers/call.h"

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "xla_ffi/comm/processes/connections/hub.h"
#include "xla_ffi/comm/processes/rendezvous/shared_rendezvous.h"

namespace jaxmg {

// All attributes of a call, undecoded.
struct RawAttributes {
  const XLA_FFI_Attrs* attributes;
};

// The result of a handler's instantiate stage, which XLA stores. `site` is null if all ranks of the
// call are in this process.
struct SiteStateOrError {
  Status status;
  std::shared_ptr<const SharedCallSite> site;
};

}  // namespace jaxmg

template <>
struct xla::ffi::AttrDecoding<jaxmg::RawAttributes> {
  using Type = jaxmg::RawAttributes;
  static std::optional<Type> Decode(XLA_FFI_AttrType, void* attributes, DiagnosticEngine&) {
    return Type{static_cast<const XLA_FFI_Attrs*>(attributes)};
  }
};

template <xla::ffi::ExecutionStage stage>
struct xla::ffi::ResultEncoding<stage, jaxmg::SiteStateOrError> {
  static XLA_FFI_Error* Encode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                               jaxmg::SiteStateOrError made) {
    if (made.status.ok()) {
      const bool needed = made.site != nullptr;  // otherwise the call works without it
      const jaxmg::Status kept = jaxmg::StoreSiteState(api, ctx, std::move(made.site));
      if (needed) made.status = kept;
    }
    return made.status.ok() ? nullptr : jaxmg::ToFfiError(api, made.status);
  }
};

namespace jaxmg {

namespace {

std::string_view NameOf(const XLA_FFI_Attrs& attributes, int64_t i) {
  return {attributes.names[i]->ptr, attributes.names[i]->len};
}

}  // namespace

CallSite SiteOf(const char* routine, const Platform& platform,
                ffi::Buffer<ffi::DataType::S32>& coordinates, ffi::AnyBuffer a,
                const CommonAttributes& attributes, int64_t n, const ffi::AnyBuffer* b) noexcept {
  CallSite site = {routine,
                   {platform.run_id, attributes.backend.data()},
                   static_cast<int>(attributes.ranks),
                   coordinates.typed_data(),
                   n,
                   attributes.tile,
                   n > 0 && attributes.backend == kNative,
                   attributes.processes.count > 0,
                   0,
                   nullptr,
                   {},
                   platform.ordinal};
  SiteState state = FindSiteState(platform.api, platform.ctx);
  site.number = state.number;
  if (!site.spans_processes) return site;
  site.shared = std::move(state.shared);
  site.key.call_site = site.shared.get();
  const auto shape = a.dimensions();
  site.block = {static_cast<int64_t>(a.element_type()), shape.size() > 0 ? shape[0] : 0,
                shape.size() > 1 ? shape[1] : 0};
  if (b != nullptr && b->dimensions().size() == 2) {
    site.b = {b->dimensions()[0], b->dimensions()[1]};
  }
  return site;
}

std::string BlockText(const CallSite& site) {
  const auto [type, rows, columns] = site.block;
  const char* dtype = type == XLA_FFI_DataType_F32    ? "float32"
                      : type == XLA_FFI_DataType_F64  ? "float64"
                      : type == XLA_FFI_DataType_C64  ? "complex64"
                      : type == XLA_FFI_DataType_C128 ? "complex128"
                                                      : "another dtype";
  const auto size = [](int64_t m, int64_t n) {
    return std::to_string(m) + " x " + std::to_string(n);
  };
  std::string text = std::string(dtype) + ", blocks of " + size(rows, columns);
  if (site.b[0] >= 0) text += ", b of " + size(site.b[0], site.b[1]);
  return text;
}

Status JoinSharedRendezvous(const CallSite& site, const RankCoordinates& coordinates,
                            const WaitPolicy& patience, bool on_host,
                            std::shared_ptr<InProcessGroup>* group, int* sharing) noexcept {
  if (site.shared == nullptr) {
    return Status::Fixed(Code::kInternal, "XLA kept no state of a call with other processes");
  }
  SharedCall call = {site.shared, site.key.run, coordinates.group, coordinates.rank,
                     "",          on_host,      site.device};
  const Status described = Guarded([&] {
    call.block = BlockText(site);
    return Status::Ok();
  });
  if (!described.ok()) {
    FailCall(site, described);
    return described;
  }
  int here = 0;
  return JoinSharedRendezvous(call, patience, group, sharing == nullptr ? &here : sharing);
}

void FailCall(const CallSite& site, const Status& status) noexcept {
  FailCall(site.key, status);
  if (site.shared != nullptr) FailSharedCall(*site.shared, site.key.run, status);
}

void FailWaitingCall(const void* site, const Status& status) noexcept {
  FailCall(*static_cast<const CallSite*>(site), status);
}

std::string WhereInterrupted(const void* site) {
  if (!static_cast<const CallSite*>(site)->spans_processes) return "";
  Hub& hub = Hub::Instance();
  return " in " + hub.Describe(hub.me());
}

CallKey KeyOf(const XLA_FFI_CallFrame* frame) noexcept {
  CallKey key = {};
  XLA_FFI_RunId_Get_Args args = {};
  args.struct_size = XLA_FFI_RunId_Get_Args_STRUCT_SIZE;
  args.ctx = frame->ctx;
  if (frame->api->XLA_FFI_RunId_Get(&args) == nullptr) key.run = args.run_id;
  if (const auto shared = SharedSiteOf(frame)) {
    key.call_site = shared.get();
    return key;
  }
  for (int64_t i = 0; i < frame->attrs.size; ++i) {
    if (NameOf(frame->attrs, i) != "backend") continue;
    if (frame->attrs.types[i] != XLA_FFI_AttrType_STRING) continue;
    key.call_site = static_cast<const XLA_FFI_ByteSpan*>(frame->attrs.attrs[i])->ptr;
  }
  return key;
}

std::shared_ptr<const SharedCallSite> SharedSiteOf(const XLA_FFI_CallFrame* frame) noexcept {
  for (int64_t i = 0; i < frame->attrs.size; ++i) {
    if (NameOf(frame->attrs, i) != "processes") continue;
    if (frame->attrs.types[i] != XLA_FFI_AttrType_ARRAY) continue;
    const auto* array = static_cast<const XLA_FFI_Array*>(frame->attrs.attrs[i]);
    if (array->size > 0) return FindSiteState(frame->api, frame->ctx).shared;
  }
  return nullptr;
}

namespace {

// The public names of the routines that make or use a kept LU or LDL factor.
const char* NameInErrors(const char* routine) {
  static constexpr std::pair<std::string_view, const char*> kNames[] = {
      {"getrf", "lu_factor"},
      {"lu_apply", "LUFactor.solve"},
      {"lu_solve_rows", "LUFactor.solve by rows"},
      {"lu_invert", "LUFactor.inv"},
      {"lu_diagonal", "LUFactor.diagonal"},
      {"lu_tiles", "LUFactor.from_packed"},
      {"lu_rows", "LUFactor.packed"},
      {"hetrf", "ldl_factor"},
      {"ldl_solve", "LDLFactor.solve"},
      {"ldl_inertia", "LDLFactor.inertia"},
  };
  for (const auto& [native, name] : kNames) {
    if (native == routine) return name;
  }
  return routine;
}

// `text` describes everything that the ranks must agree on.
SiteStateOrError MakeSiteState(const char* name, const CommonAttributes& attributes,
                               const std::string& text) {
  const char* routine = NameInErrors(name);
  const Processes& processes = attributes.processes;
  if (processes.count == 0) return {};
  if (attributes.ranks < 1 || processes.count % attributes.ranks != 0 ||
      processes.count > std::numeric_limits<int32_t>::max()) {
    return {Error(Code::kInvalidArgument, routine, ": processes has ", processes.count,
                  " entries; needs a multiple of ranks = ", attributes.ranks,
                  ", at most 2^31 - 1")};
  }
  std::vector<int> indices;
  for (size_t i = 0; i < processes.count; ++i) {
    if (processes.data[i] < 0 || processes.data[i] > std::numeric_limits<int32_t>::max()) {
      return {Error(Code::kInvalidArgument, routine, ": processes has an invalid entry, ",
                    processes.data[i])};
    }
    indices.push_back(static_cast<int>(processes.data[i]));
  }
  const std::string call = std::string(routine) + " (" + text + ")";
  return {Status::Ok(),
          NewSharedCallSite(routine, call, static_cast<int>(attributes.ranks), std::move(indices))};
}

}  // namespace

const ffi::Ffi* MakeInstantiateHandler(const char* routine, AttributeReader read) {
  return ffi::Ffi::BindInstantiate()
      .RemainingArgs()
      .RemainingRets()
      .Attrs<RawAttributes>()
      .To([routine, read](ffi::RemainingArgs, ffi::RemainingRets,
                          const RawAttributes& raw) -> SiteStateOrError {
        CommonAttributes common = {};
        std::string text;
        const std::string error = read(*raw.attributes, &common, &text);
        if (!error.empty()) return {Error(Code::kInvalidArgument, routine, ": ", error)};
        return MakeSiteState(routine, common, text);
      })
      .release();
}

Status CheckBlock(const char* routine, ffi::AnyBuffer a, int64_t m, int64_t n,
                  const CommonAttributes& attributes, const Backends& backends, size_t* backend) {
  const auto dimensions = a.dimensions();
  if (dimensions.size() != 2) {
    return Error(Code::kInvalidArgument, routine, ": a has ", dimensions.size(),
                 " dimensions, not 2");
  }
  if (attributes.ranks < 1 || attributes.tile < 0 || attributes.grid_rows < 0 || m < 1 || n < 1) {
    return Error(Code::kInvalidArgument, routine, ": invalid sizes: ", m, " x ", n,
                 ", ranks = ", attributes.ranks, ", tile = ", attributes.tile,
                 ", grid_rows = ", attributes.grid_rows);
  }
  if (dimensions[1] != n || dimensions[0] * attributes.ranks < m) {
    return Error(Code::kInvalidArgument, routine, ": a block of ", dimensions[0], " x ",
                 dimensions[1], " on each of ", attributes.ranks,
                 " ranks does not hold a matrix of ", m, " x ", n);
  }
  return FindBackend(routine, backends, attributes.backend, backend);
}

Status CheckCall(const char* routine, ffi::AnyBuffer a, const SquareAttributes& attributes,
                 const Backends& backends, size_t* backend) {
  return CheckBlock(routine, a, attributes.n, attributes.n, attributes, backends, backend);
}

Status CheckCall(const char* routine, ffi::AnyBuffer a, const SquareAttributes& attributes) {
  size_t backend = 0;
  return CheckCall(routine, a, attributes, kNativeAlone, &backend);
}

Status CheckTiles(const char* routine, ffi::AnyBuffer tiles, ffi::AnyBuffer overflow, int64_t m,
                  int64_t n, const CommonAttributes& attributes) {
  size_t backend = 0;
  JAXMG_RETURN_IF_ERROR(CheckBlock(routine, tiles, m, n, attributes, kNativeAlone, &backend));
  const int64_t block = tiles.dimensions()[0];
  if (attributes.tile != Tiles::EvenWidth(block, attributes.tile)) {
    return Error(Code::kInvalidArgument, routine, ": tile = ", attributes.tile,
                 " is not a tile width that blocks of ", block, " rows can have");
  }
  const bool overflows =
      Tiles(m, block, static_cast<int>(attributes.ranks), attributes.tile).has_overflow();
  const int64_t rows = overflows ? attributes.tile : 0;
  const auto shape = overflow.dimensions();
  if (shape.size() != 2 || shape[0] != rows || shape[1] != n ||
      overflow.element_type() != tiles.element_type()) {
    return Error(Code::kInvalidArgument, routine, ": the overflow tile must be (", rows, ", ", n,
                 "), of the tiles' dtype");
  }
  return Status::Ok();
}

Status CheckPrecision(const char* routine, ffi::AnyBuffer a,
                      const PrecisionAttributes& attributes) {
  const Precision products = attributes.products;
  const bool lower = products != Precision::kHighest && products != Precision::kChosen;
  if (lower && attributes.backend != kNative) {
    return Error(Code::kInvalidArgument, routine,
                 ": only backend 'native' computes products in lower precision");
  }
  const ffi::DataType dtype = a.element_type();
  if (lower && dtype != ffi::DataType::F32 && dtype != ffi::DataType::C64) {
    return Error(Code::kInvalidArgument, routine,
                 ": products in lower precision are for float32 and complex64");
  }
  return Status::Ok();
}

Status CheckSubset(const char* routine, const SubsetAttributes& attributes) {
  const int64_t first = attributes.first, last = attributes.last;
  if (first >= 0 && first < last && last <= attributes.n) return Status::Ok();
  return Error(Code::kInvalidArgument, routine, ": there are no eigenvalues [", first, ", ", last,
               ") of ", attributes.n);
}

}  // namespace jaxmg
