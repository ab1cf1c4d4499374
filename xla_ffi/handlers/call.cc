#include "xla_ffi/handlers/call.h"

#include <algorithm>
#include <iterator>
#include <string>

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
                             {"inverse", kInverse, &Attributes::inverse},
                             {"n", kN, &Attributes::n},
                             {"operation", kOperation, &Attributes::operation},
                             {"ranks", kAlways, &Attributes::ranks},
                             {"tf32", kTf32, &Attributes::tf32},
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
  if (!given("backend")) return wrong("backend", "is missing");
  for (const Field& field : kFields) {
    if (IsTaken(field, takes) && !given(field.name)) return wrong(field.name, "is missing");
  }
  return true;
}

CallSite SiteOf(const char* routine, const Platform& platform,
                ffi::Buffer<ffi::DataType::S32>& place, const Attributes& attributes) noexcept {
  return {routine,
          {platform.run_id, attributes.backend.data()},
          static_cast<int>(attributes.ranks),
          place.typed_data(),
          attributes.n,
          attributes.tile,
          attributes.n > 0 && attributes.backend == "native"};
}

CallKey KeyOf(const XLA_FFI_CallFrame* frame) noexcept {
  CallKey key = {};
  XLA_FFI_RunId_Get_Args args = {};
  args.struct_size = XLA_FFI_RunId_Get_Args_STRUCT_SIZE;
  args.ctx = frame->ctx;
  if (frame->api->XLA_FFI_RunId_Get(&args) == nullptr) key.run = args.run_id;
  for (int64_t i = 0; i < frame->attrs.size; ++i) {
    if (NameOf(frame->attrs, i) != "backend") continue;
    if (frame->attrs.types[i] != XLA_FFI_AttrType_STRING) continue;
    key.site = static_cast<const XLA_FFI_ByteSpan*>(frame->attrs.attrs[i])->ptr;
  }
  return key;
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
  if (attributes.tf32 != 0 && *backend != kNative) {
    return Error(Code::kInvalidArgument, routine, ": only backend 'native' computes in TF32");
  }
  const ffi::DataType dtype = a.element_type();
  if (attributes.tf32 != 0 && dtype != ffi::DataType::F32 && dtype != ffi::DataType::C64) {
    return Error(Code::kInvalidArgument, routine, ": TF32 is for float32 and complex64");
  }
  return Status::Ok();
}

}  // namespace jaxmg
