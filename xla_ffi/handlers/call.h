// What the handlers share: the operands and attributes that every call has, and the step from a
// buffer's dtype to a template.
#ifndef JAXMG_XLA_FFI_HANDLERS_CALL_H_
#define JAXMG_XLA_FFI_HANDLERS_CALL_H_

#include <complex>
#include <cstdint>
#include <string_view>

#include "xla_ffi/handlers/platform.h"

namespace jaxmg {

namespace ffi = xla::ffi;

// The attributes of every call; see docs/architecture.md for their meaning.
struct Attributes {
  int64_t n;
  int64_t ranks;
  int64_t tile;
  int64_t call;
  std::string_view backend;
};

// `place` is [rank, group]. Two calls of one program may carry the same attributes (JAX traces a
// function once and XLA inlines it twice) and run in any order, so a call is also told apart by
// where XLA keeps its attributes: one place for every call, shared by all devices of the process.
CallSite SiteOf(const char* routine, const Platform& platform,
                ffi::Buffer<ffi::DataType::S32>& place, const Attributes& attributes);

// A Status that names the routine unless the block of rows, its results and the attributes fit.
Status CheckBlock(const char* routine, ffi::AnyBuffer a, const Attributes& attributes);

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

// `target` becomes `source`; nothing to do where XLA gave both the same memory.
template <typename T>
Status CopyIfApart(const RankContext& context, T* target, const T* source, int64_t count) {
  if (target == source) return Status::Ok();
  return context.device.Copy(Stream::kMain, Block(target, count, count, 1),
                             Block(source, count, count, 1));
}

}  // namespace jaxmg

// Every handler: the platform, `place`, A and the work that replaces it, then what is its own.
#define JAXMG_BIND()                                    \
  xla::ffi::Ffi::Bind()                                 \
      .Ctx<jaxmg::Platform>()                           \
      .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>() /* place */

#define JAXMG_COMMON_ATTRIBUTES      \
  .Attr<int64_t>("n")                \
      .Attr<int64_t>("ranks")        \
      .Attr<int64_t>("tile")         \
      .Attr<int64_t>("call")         \
      .Attr<std::string_view>("backend")

#endif  // JAXMG_XLA_FFI_HANDLERS_CALL_H_
