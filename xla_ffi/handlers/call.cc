#include "xla_ffi/handlers/call.h"

#include <string>
#include <type_traits>

namespace jaxmg {

CallSite SiteOf(const char* routine, const Platform& platform,
                ffi::Buffer<ffi::DataType::S32>& place, const Attributes& attributes) noexcept {
  return {routine,
          {platform.run_id, attributes.call, attributes.backend.data()},
          static_cast<int>(attributes.ranks),
          place.typed_data(),
          attributes.n > 0 && attributes.backend == "native"};
}

CallKey KeyOf(const XLA_FFI_CallFrame* frame) noexcept {
  CallKey key = {};
  XLA_FFI_RunId_Get_Args args = {};
  args.struct_size = XLA_FFI_RunId_Get_Args_STRUCT_SIZE;
  args.ctx = frame->ctx;
  if (frame->api->XLA_FFI_RunId_Get(&args) == nullptr) key.run = args.run_id;
  const XLA_FFI_Attrs& attributes = frame->attrs;
  for (int64_t i = 0; i < attributes.size; ++i) {
    const std::string_view name(attributes.names[i]->ptr, attributes.names[i]->len);
    if (name == "call" && attributes.types[i] == XLA_FFI_AttrType_SCALAR) {
      const auto* scalar = static_cast<const XLA_FFI_Scalar*>(attributes.attrs[i]);
      if (scalar->dtype == XLA_FFI_DataType_S64) {
        key.call = *static_cast<const int64_t*>(scalar->value);
      }
    } else if (name == "backend" && attributes.types[i] == XLA_FFI_AttrType_STRING) {
      key.site = static_cast<const XLA_FFI_ByteSpan*>(attributes.attrs[i])->ptr;
    }
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
  if (attributes.tf32 != 0 && *backend != Backend::kNative) {
    return Error(Code::kInvalidArgument, routine, ": only backend 'native' computes in TF32");
  }
  return Status::Ok();
}

}  // namespace jaxmg

namespace xla::ffi {

std::optional<jaxmg::Attributes> AttrDecoding<jaxmg::Attributes>::Decode(
    XLA_FFI_AttrType type, void* attributes, DiagnosticEngine& diagnostic) {
  if (type != XLA_FFI_AttrType_DICTIONARY) return diagnostic.Emit("expected a dictionary");
  const Dictionary dictionary(reinterpret_cast<const XLA_FFI_Attrs*>(attributes));
  Type decoded = {};
  size_t known = 0;
  auto read = [&](const char* name, auto& value) {
    if (!dictionary.contains(name)) return true;
    ++known;
    auto found = dictionary.get<std::decay_t<decltype(value)>>(name);
    if (found.has_error()) {
      diagnostic.Emit("attribute ") << name << ": " << found.error().message();
      return false;
    }
    value = *found;
    return true;
  };
  const bool all = read("n", decoded.n) && read("ranks", decoded.ranks) &&
                   read("tile", decoded.tile) && read("call", decoded.call) &&
                   read("backend", decoded.backend) && read("vectors", decoded.vectors) &&
                   read("inverse", decoded.inverse) && read("tf32", decoded.tf32) &&
                   read("check_b", decoded.check_b);
  if (!all) return std::nullopt;
  if (known != dictionary.size()) {
    return diagnostic.Emit(
        "an attribute that this plugin does not know: its version is not jaxmg's");
  }
  return decoded;
}

}  // namespace xla::ffi
