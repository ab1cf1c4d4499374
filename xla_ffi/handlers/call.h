// Code that all handlers share: checks of the operands and attributes of every call, the call site,
// and the dispatch from a buffer's dtype to a template.
#ifndef JAXMG_XLA_FFI_HANDLERS_CALL_H_
#define JAXMG_XLA_FFI_HANDLERS_CALL_H_

#include <complex>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/handlers/attributes.h"
#include "xla_ffi/handlers/handlers.h"
#include "xla_ffi/handlers/platform/platform.h"
#include "xla_ffi/handlers/platform/site_state.h"

namespace jaxmg {

namespace ffi = xla::ffi;

// Makes the CallSite of a call. `coordinates` is [rank, group]. Several calls of a program may have
// equal attributes and run in any order, so a call is identified by the address at which XLA stores
// its attributes: it is unique per call and the same for all devices of the process.
//
// A call with ranks in other processes is identified by the state that XLA stores with the
// executable (site_state.h). The ranks compare the shape and dtype of `a`, and the shape of `b`
// unless it is null. `n` is the number of columns of the matrix, or 0.
CallSite SiteOf(const char* routine, const Platform& platform,
                ffi::Buffer<ffi::DataType::S32>& coordinates, ffi::AnyBuffer a,
                const CommonAttributes& attributes, int64_t n,
                const ffi::AnyBuffer* b = nullptr) noexcept;

// Returns the site of a call with ranks in other processes, and null for any other call. Allocates
// no memory.
std::shared_ptr<const SharedCallSite> SharedSiteOf(const XLA_FFI_CallFrame* frame) noexcept;

// Decodes the attributes of a call. Returns the error, or an empty string. Sets `text` to all that
// the ranks must agree on.
using AttributeReader = std::string (*)(const XLA_FFI_Attrs& attributes, CommonAttributes* common,
                                        std::string* text);
template <typename Attributes>
std::string ReadAttributes(const XLA_FFI_Attrs& attributes, CommonAttributes* common,
                           std::string* text) {
  Attributes values = {};
  const std::string error = Decode(attributes, &values);
  if (!error.empty()) return error;
  *common = values;
  *text = TextOf(values);
  return "";
}

// Returns the handler of a routine's instantiate stage: it stores the SiteState of a call whose
// ranks are in several processes. The caller owns it.
const ffi::Ffi* MakeInstantiateHandler(const char* routine, AttributeReader read);

// Checks that the block of rows holds a rank's part of an m x n matrix and that the attributes fit;
// an error names the routine. Sets *backend to the index of the solver in `backends`.
Status CheckBlock(const char* routine, ffi::AnyBuffer a, int64_t m, int64_t n,
                  const CommonAttributes& attributes, const Backends& backends, size_t* backend);
// As CheckBlock, for a square matrix.
Status CheckCall(const char* routine, ffi::AnyBuffer a, const SquareAttributes& attributes,
                 const Backends& backends, size_t* backend);
Status CheckCall(const char* routine, ffi::AnyBuffer a, const SquareAttributes& attributes);

// Checks that the block, the tile width and the overflow tile of a kept factor of an m x n matrix
// match the plan; an error names the routine.
Status CheckTiles(const char* routine, ffi::AnyBuffer tiles, ffi::AnyBuffer overflow, int64_t m,
                  int64_t n, const CommonAttributes& attributes);

// Checks that products of this dtype can be computed in this precision.
Status CheckPrecision(const char* routine, ffi::AnyBuffer a, const PrecisionAttributes& attributes);

// Checks that [first, last) is a range of eigenvalues.
Status CheckSubset(const char* routine, const SubsetAttributes& attributes);

// Calls f(T()) with the C++ type T of `dtype`.
template <typename F>
auto ForDtype(const char* routine, ffi::DataType dtype, F&& f) -> decltype(f(float())) {
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
      return {Error(Code::kInvalidArgument, routine,
                    ": dtype must be float32, float64, complex64 or complex128")};
  }
}

// As ForDtype, for real dtypes only.
template <typename F>
auto ForRealDtype(const char* routine, ffi::DataType dtype, F&& f) -> decltype(f(float())) {
  if (dtype == ffi::DataType::F32) return f(float());
  if (dtype == ffi::DataType::F64) return f(double());
  return {Error(Code::kInvalidArgument, routine, ": dtype must be float32 or float64")};
}

template <typename T>
T* DataOf(ffi::AnyBuffer buffer) {
  return static_cast<T*>(buffer.untyped_data());
}

// Returns the operand of a routine on an m x n matrix; `a` is this rank's block. The routine works
// in `work`. Its products have the precision of the attributes, if these have one.
template <typename T, typename Attributes>
Operand<T> OperandOf(ffi::AnyBuffer a, ffi::AnyBuffer work, int32_t* status, int64_t m, int64_t n,
                     const Attributes& attributes) {
  Operand<T> operand = {m, n, a.dimensions()[0], attributes.tile, DataOf<T>(work), status};
  if constexpr (std::is_base_of_v<PrecisionAttributes, Attributes>) {
    operand.precision = attributes.products;
  }
  operand.source = DataOf<T>(a);
  operand.grid_rows = attributes.grid_rows;
  return operand;
}

// Returns the key of a call that could not be decoded. Allocates no memory.
CallKey KeyOf(const XLA_FFI_CallFrame* frame) noexcept;

// Calls a handler. If it throws, the call fails on all ranks: exceptions can't pass through XLA.
template <typename Handler>
XLA_FFI_Error* CallHandler(XLA_FFI_CallFrame* frame, Handler handler) noexcept {
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

// Calls a handler that needs no other rank.
template <typename Handler>
XLA_FFI_Error* CallHandlerAlone(XLA_FFI_CallFrame* frame, Handler handler) noexcept {
  try {
    return handler(frame);
  } catch (...) {
    return ToFfiError(frame->api, CurrentException());
  }
}

}  // namespace jaxmg

// The start of every binding: the platform and the rank coordinates. JAXMG_DEFINE_ROUTINE adds the
// attributes.
#define JAXMG_BIND()          \
  xla::ffi::Ffi::Bind()       \
      .Ctx<jaxmg::Platform>() \
      .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>() /* coordinates */

// Defines the row of a routine that handlers.h lists, and the routine's handlers for the
// instantiate and the execute stage. XLA passes operands to the instantiate stage on GPUs but not
// on CPU devices. The arguments after the execute stage's binding are the other members of Routine.
#define JAXMG_DEFINE_ROUTINE(symbol, name, function, attributes, binding, ...)           \
  extern "C" XLA_FFI_Error* symbol##Instantiate(XLA_FFI_CallFrame* frame) {              \
    return jaxmg::CallHandler(frame, [](XLA_FFI_CallFrame* call) {                       \
      static const xla::ffi::Ffi* handler =                                              \
          jaxmg::MakeInstantiateHandler(name, &jaxmg::ReadAttributes<attributes>);       \
      return handler->Call(call);                                                        \
    });                                                                                  \
  }                                                                                      \
  extern "C" XLA_FFI_Error* symbol(XLA_FFI_CallFrame* frame) {                           \
    return jaxmg::CallHandler(frame, [](XLA_FFI_CallFrame* call) {                       \
      static const auto* handler =                                                       \
          (binding).Attrs<jaxmg::StrictAttributes<attributes>>().To(function).release(); \
      return handler->Call(call);                                                        \
    });                                                                                  \
  }                                                                                      \
  const jaxmg::Routine symbol##Routine = {name, symbol##Instantiate, symbol, __VA_ARGS__}

// As JAXMG_DEFINE_ROUTINE, for a routine that each device runs by itself. It has no instantiate
// stage, and the binding names all of its arguments.
#define JAXMG_DEFINE_ROUTINE_ALONE(symbol, name, function, attributes, binding)          \
  extern "C" XLA_FFI_Error* symbol(XLA_FFI_CallFrame* frame) {                           \
    return jaxmg::CallHandlerAlone(frame, [](XLA_FFI_CallFrame* call) {                  \
      static const auto* handler =                                                       \
          (binding).Attrs<jaxmg::StrictAttributes<attributes>>().To(function).release(); \
      return handler->Call(call);                                                        \
    });                                                                                  \
  }                                                                                      \
  const jaxmg::Routine symbol##Routine = {name, nullptr, symbol, jaxmg::kNativeAlone}

#endif  // JAXMG_XLA_FFI_HANDLERS_CALL_H_
