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

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/handlers/attributes.h"
#include "xla_ffi/handlers/handlers.h"
#include "xla_ffi/handlers/platform.h"
#include "xla_ffi/handlers/site_state.h"

namespace jaxmg {

namespace ffi = xla::ffi;

// `place` is [rank, group]. The calls of a program may carry the same attributes and run in any
// order, so they are told apart by where XLA keeps those: one place for every call, shared by all
// devices of the process.
//
// Those of a call with ranks in other processes are told apart by what XLA keeps for each since it
// made the executable. `a` is what the ranks compare of their blocks, `n` the columns of the
// matrix, or 0.
CallSite SiteOf(const char* routine, const Platform& platform,
                ffi::Buffer<ffi::DataType::S32>& place, ffi::AnyBuffer a,
                const CommonAttributes& attributes, int64_t n) noexcept;

// The site of a call with ranks in other processes; null of any other. Takes no memory.
std::shared_ptr<const SharedCallSite> SharedSiteOf(const XLA_FFI_CallFrame* frame) noexcept;

// What the instantiate stage of a handler gives XLA to keep: nothing where all ranks of the call
// are in this process.
struct Made {
  Status status;
  std::shared_ptr<const SharedCallSite> site;
};
// `text` has all that the ranks have to agree on.
Made MakeSite(const char* routine, const CommonAttributes& attributes, const std::string& text);

// A Status that names the routine unless the block of rows holds a rank's part of an m x n matrix,
// and the attributes fit. *backend: the index of the solver among `backends`.
Status CheckBlock(const char* routine, ffi::AnyBuffer a, int64_t m, int64_t n,
                  const CommonAttributes& attributes, const Backends& backends, size_t* backend);
// Of a square matrix.
Status CheckCall(const char* routine, ffi::AnyBuffer a, const SquareAttributes& attributes,
                 const Backends& backends, size_t* backend);
Status CheckCall(const char* routine, ffi::AnyBuffer a, const SquareAttributes& attributes);

// The same unless the block, the tile width and the overflow tile of a kept factor of an m x n
// matrix fit each other as the plan has them.
Status CheckTiles(const char* routine, ffi::AnyBuffer tiles, ffi::AnyBuffer overflow, int64_t m,
                  int64_t n, const CommonAttributes& attributes);

// The same unless products can be computed so.
Status CheckPrecision(const char* routine, ffi::AnyBuffer a, const PrecisionAttributes& attributes);
// Of a general matrix, whose rows can't all be scaled to the size that products of float16 parts
// need.
Status CheckGeneralPrecision(const char* routine, ffi::AnyBuffer a,
                             const PrecisionAttributes& attributes);

// The same unless there are the eigenvalues [first, last).
Status CheckSubset(const char* routine, const SubsetAttributes& attributes);

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
T* DataOf(ffi::AnyBuffer buffer) {
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

// Every handler begins so: the platform and `place`; JAXMG_DEFINE_ROUTINE adds the attributes.
#define JAXMG_BIND()          \
  xla::ffi::Ffi::Bind()       \
      .Ctx<jaxmg::Platform>() \
      .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>() /* place */

// The row of a routine that handlers.h lists, with its two handlers: those of the instantiate and
// of the execute stage. XLA gives the former the operands too for GPUs, and none for CPU devices.
// After the binding of the execute stage come what Routine has beside the handlers.
#define JAXMG_DEFINE_ROUTINE(symbol, name, function, attributes, binding, ...)                     \
  extern "C" XLA_FFI_Error* symbol##Instantiate(XLA_FFI_CallFrame* frame) {                        \
    return jaxmg::Protected(frame, [](XLA_FFI_CallFrame* call) {                                   \
      static const auto* handler =                                                                 \
          xla::ffi::Ffi::BindInstantiate()                                                         \
              .RemainingArgs()                                                                     \
              .RemainingRets()                                                                     \
              .Attrs<jaxmg::Exactly<attributes>>()                                                 \
              .To([](xla::ffi::RemainingArgs, xla::ffi::RemainingRets, const attributes& values) { \
                return jaxmg::MakeSite(name, values, jaxmg::TextOf(values));                       \
              })                                                                                   \
              .release();                                                                          \
      return handler->Call(call);                                                                  \
    });                                                                                            \
  }                                                                                                \
  extern "C" XLA_FFI_Error* symbol(XLA_FFI_CallFrame* frame) {                                     \
    return jaxmg::Protected(frame, [](XLA_FFI_CallFrame* call) {                                   \
      static const auto* handler =                                                                 \
          (binding).Attrs<jaxmg::Exactly<attributes>>().To(function).release();                    \
      return handler->Call(call);                                                                  \
    });                                                                                            \
  }                                                                                                \
  const jaxmg::Routine symbol##Routine = {name, symbol##Instantiate, symbol, __VA_ARGS__}

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
