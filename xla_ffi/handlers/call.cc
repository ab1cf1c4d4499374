#include "xla_ffi/handlers/call.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace jaxmg {

namespace {

std::string_view NameOf(const XLA_FFI_Attrs& attributes, int64_t i) {
  return {attributes.names[i]->ptr, attributes.names[i]->len};
}

// The integers: what each is called, what a routine has to take to be given it, where it is kept.
struct Field {
  std::string_view name;
  unsigned takes;
  int64_t Attributes::* value;
};

constexpr unsigned kAlways = ~0u;
constexpr Field kFields[] = {{"check_b", kCheckB, &Attributes::check_b},
                             {"first", kSubset, &Attributes::first},
                             {"inverse", kInverse, &Attributes::inverse},
                             {"last", kSubset, &Attributes::last},
                             {"n", kN, &Attributes::n},
                             {"operation", kOperation, &Attributes::operation},
                             {"parts", kParts, &Attributes::parts},
                             {"products", kProducts, &Attributes::products},
                             {"ranks", kAlways, &Attributes::ranks},
                             {"tile", kAlways, &Attributes::tile},
                             {"vectors", kVectors, &Attributes::vectors}};

bool IsTaken(const Field& field, unsigned takes) {
  return field.takes == kAlways || (takes & field.takes) != 0;
}

}  // namespace

bool DecodeAttributes(const XLA_FFI_Attrs& attributes, unsigned takes, Attributes* decoded,
                      std::string* message) {
  auto wrong = [&](std::string_view name, const char* what) {
    *message = "attribute '" + std::string(name) + "' " + what;
    return false;
  };
  auto given = [&](std::string_view name) {
    for (int64_t i = 0; i < attributes.size; ++i) {
      if (NameOf(attributes, i) == name) return true;
    }
    return false;
  };
  for (int64_t i = 0; i < attributes.size; ++i) {
    const std::string_view name = NameOf(attributes, i);
    if (name == "backend") {
      if (attributes.types[i] != XLA_FFI_AttrType_STRING) return wrong(name, "is no string");
      const auto* text = static_cast<const XLA_FFI_ByteSpan*>(attributes.attrs[i]);
      decoded->backend = {text->ptr, text->len};
      continue;
    }
    if (name == "processes") {
      const auto* array = static_cast<const XLA_FFI_Array*>(attributes.attrs[i]);
      if (attributes.types[i] != XLA_FFI_AttrType_ARRAY || array->dtype != XLA_FFI_DataType_S64) {
        return wrong(name, "is no array of 64-bit integers");
      }
      decoded->processes = {static_cast<const int64_t*>(array->data), array->size};
      continue;
    }
    const auto field = std::find_if(std::begin(kFields), std::end(kFields), [&](const Field& f) {
      return f.name == name && IsTaken(f, takes);
    });
    if (field == std::end(kFields)) return wrong(name, "is unknown to this routine");
    const auto* scalar = static_cast<const XLA_FFI_Scalar*>(attributes.attrs[i]);
    if (attributes.types[i] != XLA_FFI_AttrType_SCALAR || scalar->dtype != XLA_FFI_DataType_S64) {
      return wrong(name, "is no 64-bit integer");
    }
    decoded->*field->value = *static_cast<const int64_t*>(scalar->value);
  }
  for (const char* name : {"backend", "processes"}) {
    if (!given(name)) return wrong(name, "is missing");
  }
  for (const Field& field : kFields) {
    if (IsTaken(field, takes) && !given(field.name)) return wrong(field.name, "is missing");
  }
  return true;
}

CallSite SiteOf(const char* routine, const Platform& platform,
                ffi::Buffer<ffi::DataType::S32>& place, ffi::AnyBuffer a,
                const Attributes& attributes) noexcept {
  CallSite site = {routine,
                   {platform.run_id, attributes.backend.data()},
                   static_cast<int>(attributes.ranks),
                   place.typed_data(),
                   attributes.n,
                   attributes.tile,
                   attributes.n > 0 && attributes.backend == "native",
                   attributes.processes.count > 0,
                   0,
                   nullptr,
                   {}};
  KeptSite kept = FindKeptSite(platform.api, platform.ctx);
  site.number = kept.number;
  if (!site.spans_processes) return site;
  site.shared = std::move(kept.shared);
  site.key.call_site = site.shared.get();
  const auto shape = a.dimensions();
  site.block = {static_cast<int64_t>(a.element_type()), shape.size() > 0 ? shape[0] : 0,
                shape.size() > 1 ? shape[1] : 0};
  return site;
}

std::string BlockText(const CallSite& site) {
  const auto [type, rows, columns] = site.block;
  const char* dtype = type == XLA_FFI_DataType_F32    ? "float32"
                      : type == XLA_FFI_DataType_F64  ? "float64"
                      : type == XLA_FFI_DataType_C64  ? "complex64"
                      : type == XLA_FFI_DataType_C128 ? "complex128"
                                                      : "another dtype";
  return std::string(dtype) + ", blocks of " + std::to_string(rows) + " x " +
         std::to_string(columns);
}

Status JoinSharedRendezvous(const CallSite& site, const Place& place, const WaitPolicy& patience,
                            bool on_host, int64_t mine, std::shared_ptr<InProcessGroup>* group,
                            int* sharing) noexcept {
  if (site.shared == nullptr) {
    return Status::Fixed(Code::kInternal, "XLA kept no state of a call with other processes");
  }
  SharedCall call = {site.shared, site.key.run, place.group, place.rank, "", on_host, mine};
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
    if (array->size > 0) return FindKeptSite(frame->api, frame->ctx).shared;
  }
  return nullptr;
}

Made MakeSite(const char* routine, unsigned takes, const Attributes& attributes) {
  const Processes& processes = attributes.processes;
  if (processes.count == 0) return {};
  if (attributes.ranks < 1 || processes.count % attributes.ranks != 0 ||
      processes.count > std::numeric_limits<int32_t>::max()) {
    return {Error(Code::kInvalidArgument, routine, ": ", processes.count,
                  " entries of processes for groups of ", attributes.ranks, " ranks")};
  }
  std::vector<int> indices;
  for (size_t i = 0; i < processes.count; ++i) {
    if (processes.data[i] < 0 || processes.data[i] > std::numeric_limits<int32_t>::max()) {
      return {Error(Code::kInvalidArgument, routine, ": there is no process ", processes.data[i])};
    }
    indices.push_back(static_cast<int>(processes.data[i]));
  }
  std::ostringstream text;
  text << routine << " (backend " << attributes.backend;
  for (const Field& field : kFields) {
    if (IsTaken(field, takes)) text << ", " << field.name << " " << attributes.*field.value;
  }
  text << ")";
  return {Status::Ok(), NewSharedCallSite(routine, text.str(), static_cast<int>(attributes.ranks),
                                          std::move(indices))};
}

Status CheckCall(const char* routine, ffi::AnyBuffer a, const Attributes& attributes,
                 Backend* backend) {
  const auto dimensions = a.dimensions();
  if (dimensions.size() != 2) {
    return Error(Code::kInvalidArgument, routine, ": a has ", dimensions.size(),
                 " dimensions, not 2");
  }
  if (attributes.ranks < 1 || attributes.tile < 0 || attributes.n < 1) {
    return Error(Code::kInvalidArgument, routine, ": n = ", attributes.n,
                 ", ranks = ", attributes.ranks, ", tile = ", attributes.tile);
  }
  if (dimensions[1] != attributes.n || dimensions[0] * attributes.ranks < attributes.n) {
    return Error(Code::kInvalidArgument, routine, ": a block of ", dimensions[0], " x ",
                 dimensions[1], " on each of ", attributes.ranks,
                 " ranks does not hold a matrix of order ", attributes.n);
  }
  JAXMG_RETURN_IF_ERROR(FindBackend(routine, attributes.backend, backend));
  const int64_t products = attributes.products;
  if (products < 0 || products > static_cast<int64_t>(Precision::kChosen)) {
    return Error(Code::kInvalidArgument, routine, ": products = ", products);
  }
  const bool lower = products > 0 && products < kNumPrecisions;
  if (lower && *backend != kNative) {
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

Status CheckSubset(const char* routine, const Attributes& attributes) {
  const int64_t first = attributes.first, last = attributes.last;
  if (first >= 0 && first < last && last <= attributes.n) return Status::Ok();
  return Error(Code::kInvalidArgument, routine, ": there are no eigenvalues [", first, ", ", last,
               ") of ", attributes.n);
}

}  // namespace jaxmg
