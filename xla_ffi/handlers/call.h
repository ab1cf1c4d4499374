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
  int64_t vectors;                         // syevd alone
  int64_t inverse;                         // cyclic_1d alone
  int64_t tf32;                            // products in TF32; potrs and potri alone
  xla::ffi::Span<const int64_t> ordinals;  // of the mesh's devices, see CallSite; may be empty
};

inline Precision PrecisionOf(const Attributes& attributes) {
  return attributes.tf32 != 0 ? Precision::kTf32 : Precision::kHighest;
}

// `place` is [rank, group]. Two calls of one program may carry the same attributes (JAX traces a
// function once and XLA inlines it twice) and run in any order, so a call is also told apart by
// where XLA keeps its attributes: one place for every call, shared by all devices of the process.
CallSite SiteOf(const char* routine, const Platform& platform,
                ffi::Buffer<ffi::DataType::S32>& place, const Attributes& attributes);

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

// `target` becomes `source`; nothing to do where XLA gave both the same memory. The same outcome on
// every rank, so that none goes on to wait for one that has failed.
template <typename T>
Status CopyIfApart(const RankContext& context, T* target, const T* source, int64_t count) {
  Status status;
  if (target != source) {
    status = context.device.Copy(Stream::kMain, Block(target, count, count, 1),
                                 Block(source, count, count, 1));
  }
  return context.comm.Agree(status);
}

}  // namespace jaxmg

// Every handler begins so: the platform and `place`; and ends with .Attrs<jaxmg::Attributes>().
#define JAXMG_BIND()          \
  xla::ffi::Ffi::Bind()       \
      .Ctx<jaxmg::Platform>() \
      .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>() /* place */

// One that a routine does not have, or that an older caller does not give, keeps its zero.
template <>
struct xla::ffi::AttrDecoding<jaxmg::Attributes> {
  using Type = jaxmg::Attributes;
  static std::optional<Type> Decode(XLA_FFI_AttrType type, void* attributes,
                                    DiagnosticEngine& diagnostic);
};

#endif  // JAXMG_XLA_FFI_HANDLERS_CALL_H_
