// What the handlers share: the operands and attributes that every call has, and the step from a
// buffer's dtype to a template.
#ifndef JAXMG_XLA_FFI_HANDLERS_CALL_H_
#define JAXMG_XLA_FFI_HANDLERS_CALL_H_

#include <complex>
#include <cstdint>
#include <optional>
#include <string_view>

#include "xla_ffi/handlers/backends.h"
#include "xla_ffi/handlers/platform.h"

namespace jaxmg {

namespace ffi = xla::ffi;

// The attributes of every call; see docs/architecture.md for their meaning.
struct Attributes {
  int64_t n;  // 0 where the routine has none
  int64_t ranks;
  int64_t tile;
  int64_t call;
  std::string_view backend;
  int64_t vectors;  // syevd alone
  int64_t inverse;  // cyclic_1d alone
  int64_t tf32;     // products in TF32; potrs and potri alone
  int64_t check_b;  // whether b may differ between ranks, which is a status; potrs alone
};

inline Precision PrecisionOf(const Attributes& attributes) {
  return attributes.tf32 != 0 ? Precision::kTf32 : Precision::kHighest;
}

// `place` is [rank, group]. Two calls of one program may carry the same attributes (JAX traces a
// function once and XLA inlines it twice) and run in any order, so a call is also told apart by
// where XLA keeps its attributes: one place for every call, shared by all devices of the process.
CallSite SiteOf(const char* routine, const Platform& platform,
                ffi::Buffer<ffi::DataType::S32>& place, const Attributes& attributes) noexcept;

// A Status that names the routine unless the block of rows and the attributes fit.
Status CheckCall(const char* routine, ffi::AnyBuffer a, const Attributes& attributes,
                 Backend* backend);

// f(T()) for the C++ type T of `dtype`.
template <typename F>
PlatformResult ForDtype(const char* routine, ffi::DataType dtype, F&& f) {
  switch (dtype) {
    case ffi::DataType::F32:
      return f(float());
    case ffi::DataType::F64:
      return f(double());
    case ffi::DataType::C64:
      return f(std::complex<float>());
    case ffi::DataType::C128:
      return f(std::complex<double>());
    default:
      return Refuse(Error(Code::kInvalidArgument, routine,
                          ": dtype must be float32, float64, complex64 or complex128"));
  }
}

template <typename T>
T* Data(ffi::AnyBuffer buffer) {
  return static_cast<T*>(buffer.untyped_data());
}

// The key of a call that could not be decoded. Takes no memory.
CallKey KeyOf(const XLA_FFI_CallFrame* frame) noexcept;

// Calls a handler. One that throws fails the call for all ranks: exceptions don't pass through XLA.
template <typename Handler>
XLA_FFI_Error* Protected(XLA_FFI_CallFrame* frame, Handler handler) noexcept {
  try {
    return handler(frame);
  } catch (...) {
    const Status status = CurrentException();
    FailCall(KeyOf(frame), status);
    return ToFfiError(frame->api, status);
  }
}

}  // namespace jaxmg

// Every handler begins so: the platform and `place`; and ends with .Attrs<jaxmg::Attributes>().
#define JAXMG_BIND()          \
  xla::ffi::Ffi::Bind()       \
      .Ctx<jaxmg::Platform>() \
      .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>() /* place */

// The symbol that handlers.h declares, for a function and its binding.
#define JAXMG_DEFINE_HANDLER(symbol, function, ...)                      \
  extern "C" XLA_FFI_Error* symbol(XLA_FFI_CallFrame* frame) {           \
    return jaxmg::Protected(frame, [](XLA_FFI_CallFrame* call) {         \
      static const auto* handler = (__VA_ARGS__).To(function).release(); \
      return handler->Call(call);                                        \
    });                                                                  \
  }

// One that a routine does not have, or that an older caller does not give, keeps its zero.
template <>
struct xla::ffi::AttrDecoding<jaxmg::Attributes> {
  using Type = jaxmg::Attributes;
  static std::optional<Type> Decode(XLA_FFI_AttrType type, void* attributes,
                                    DiagnosticEngine& diagnostic);
};

#endif  // JAXMG_XLA_FFI_HANDLERS_CALL_H_
