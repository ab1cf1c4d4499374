// What the handlers share: the operands and attributes that every call has, and the step from a
// buffer's dtype to a template.
#ifndef JAXMG_XLA_FFI_HANDLERS_CALL_H_
#define JAXMG_XLA_FFI_HANDLERS_CALL_H_

#include <complex>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "xla_ffi/handlers/backends.h"
#include "xla_ffi/handlers/platform.h"
#include "xla_ffi/handlers/site_state.h"

namespace jaxmg {

namespace ffi = xla::ffi;

// The attributes of a call; see docs/architecture.md for their meaning. Those that a routine does
// not take are 0.
struct Processes {
  const int64_t* data;  // of rank r of group g: data[g * ranks + r]
  size_t count;         // 0: all ranks are in this process
};

struct Attributes {
  int64_t ranks;
  int64_t tile;
  std::string_view backend;
  int64_t n;
  int64_t vectors;
  int64_t inverse;
  int64_t products;  // Precision
  int64_t check_b;
  int64_t operation;
  int64_t parts;
  int64_t first;
  int64_t last;
  Processes processes;
};

// What a routine takes beside `ranks`, `tile`, `backend` and `processes`, which all do.
enum Takes : unsigned {
  kN = 1,
  kVectors = 2,
  kInverse = 4,
  kProducts = 8,
  kCheckB = 16,
  kOperation = 32,
  kSubset = 64,
  kParts = 128
};

// Exactly the attributes that a routine takes: one that is missing, unknown or of another type is
// an error that names it.
template <unsigned kTakes>
struct AttributesOf : Attributes {};

// `attributes` as XLA has them; *message names the first that is wrong.
bool DecodeAttributes(const XLA_FFI_Attrs& attributes, unsigned takes, Attributes* decoded,
                      std::string* message);

inline Precision PrecisionOf(const Attributes& attributes) {
  return static_cast<Precision>(attributes.products);
}

// `place` is [rank, group]. The calls of a program may carry the same attributes and run in any
// order, so they are told apart by where XLA keeps those: one place for every call, shared by all
// devices of the process.
//
// Those of a call with ranks in other processes are told apart by what XLA keeps for each since it
// made the executable. `a` is what the ranks compare of their blocks.
CallSite SiteOf(const char* routine, const Platform& platform,
                ffi::Buffer<ffi::DataType::S32>& place, ffi::AnyBuffer a,
                const Attributes& attributes) noexcept;

// The site of a call with ranks in other processes; null of any other. Takes no memory.
std::shared_ptr<const SharedCallSite> SharedSiteOf(const XLA_FFI_CallFrame* frame) noexcept;

// What the instantiate stage of a handler gives XLA to keep: nothing where all ranks of the call
// are in this process.
struct Made {
  Status status;
  std::shared_ptr<const SharedCallSite> site;
};
Made MakeSite(const char* routine, unsigned takes, const Attributes& attributes);

// A Status that names the routine unless the block of rows and the attributes fit.
Status CheckCall(const char* routine, ffi::AnyBuffer a, const Attributes& attributes,
                 Backend* backend);

// The same unless there are the eigenvalues [first, last).
Status CheckSubset(const char* routine, const Attributes& attributes);

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
    if (frame->stage == XLA_FFI_ExecutionStage_EXECUTE) {
      CallSite site = {};
      site.key = KeyOf(frame);
      site.shared = SharedSiteOf(frame);
      FailCall(site, status);
    }
    return ToFfiError(frame->api, status);
  }
}

}  // namespace jaxmg

// Every handler begins so: the platform and `place`; JAXMG_DEFINE_HANDLER adds the
// attributes.
#define JAXMG_BIND()          \
  xla::ffi::Ffi::Bind()       \
      .Ctx<jaxmg::Platform>() \
      .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>() /* place */

// The symbols that handlers.h declares, for a function, what it takes and its binding: that of the
// instantiate stage, and the handler. XLA gives the former the operands too for GPUs, and none for
// CPU devices.
#define JAXMG_DEFINE_HANDLER(symbol, name, function, takes, ...)                                \
  extern "C" XLA_FFI_Error* symbol##Instantiate(XLA_FFI_CallFrame* frame) {                     \
    return jaxmg::Protected(frame, [](XLA_FFI_CallFrame* call) {                                \
      static const auto* handler = xla::ffi::Ffi::BindInstantiate()                             \
                                       .RemainingArgs()                                         \
                                       .RemainingRets()                                         \
                                       .Attrs<jaxmg::AttributesOf<(takes)>>()                   \
                                       .To([](xla::ffi::RemainingArgs, xla::ffi::RemainingRets, \
                                              const jaxmg::Attributes& attributes) {            \
                                         return jaxmg::MakeSite(name, takes, attributes);       \
                                       })                                                       \
                                       .release();                                              \
      return handler->Call(call);                                                               \
    });                                                                                         \
  }                                                                                             \
  extern "C" XLA_FFI_Error* symbol(XLA_FFI_CallFrame* frame) {                                  \
    return jaxmg::Protected(frame, [](XLA_FFI_CallFrame* call) {                                \
      static const auto* handler =                                                              \
          (__VA_ARGS__).Attrs<jaxmg::AttributesOf<(takes)>>().To(function).release();           \
      return handler->Call(call);                                                               \
    });                                                                                         \
  }

template <unsigned kTakes>
struct xla::ffi::AttrDecoding<jaxmg::AttributesOf<kTakes>> {
  using Type = jaxmg::AttributesOf<kTakes>;
  static std::optional<Type> Decode(XLA_FFI_AttrType, void* attributes,
                                    DiagnosticEngine& diagnostic) {
    Type decoded = {};
    std::string message;
    if (jaxmg::DecodeAttributes(*static_cast<const XLA_FFI_Attrs*>(attributes), kTakes, &decoded,
                                &message)) {
      return decoded;
    }
    diagnostic.Emit(message);
    return std::nullopt;
  }
};

template <xla::ffi::ExecutionStage stage>
struct xla::ffi::ResultEncoding<stage, jaxmg::Made> {
  static XLA_FFI_Error* Encode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                               jaxmg::Made made) {
    if (made.status.ok()) {
      const bool needed = made.site != nullptr;  // else it is better kept, and can be missed
      const jaxmg::Status kept = jaxmg::KeepSite(api, ctx, std::move(made.site));
      if (needed) made.status = kept;
    }
    return made.status.ok() ? nullptr : jaxmg::ToFfiError(api, made.status);
  }
};

#endif  // JAXMG_XLA_FFI_HANDLERS_CALL_H_
