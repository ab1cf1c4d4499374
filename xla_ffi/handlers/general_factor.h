// What the handlers of kept factors of general matrices share: their attributes, and the launch of
// a rank program on a factor.
#ifndef JAXMG_XLA_FFI_HANDLERS_GENERAL_FACTOR_H_
#define JAXMG_XLA_FFI_HANDLERS_GENERAL_FACTOR_H_

#include "xla_ffi/handlers/call.h"

namespace jaxmg {

// Of a matrix of m rows.
template <typename Base>
struct WithRows : Base {
  int64_t m;

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    Base::Visit(attributes, visit);
    visit("m", attributes.m);
  }
};
// Of what is done with a matrix, its transpose or its adjoint.
template <typename Base>
struct WithOperation : Base {
  Op operation;

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    Base::Visit(attributes, visit);
    visit("operation", attributes.operation);
  }
};

// What a rank works on in `a`, and where that is copied from first.
template <typename T>
Operand<T> OperandOf(const SquareAttributes& attributes, int64_t m, ffi::AnyBuffer a,
                     ffi::AnyBuffer overflow, int32_t* status, const T* source,
                     Precision precision = Precision::kHighest) {
  return {m,         attributes.n, a.dimensions()[0],  attributes.tile, DataOf<T>(a), status,
          precision, source,       DataOf<T>(overflow)};
}

// Launches the rank program that `program` gives for the factors' dtype, if the call can be right.
// What that needs of buffers it has to take out of them: they may be gone when it runs.
template <typename Program>
PlatformResult OnFactors(const char* name, const Platform& platform,
                         ffi::Buffer<ffi::DataType::S32>& coordinates,
                         const SquareAttributes& attributes, int64_t m, ffi::AnyBuffer tiles,
                         ffi::AnyBuffer overflow, const Status& checked, const Program& program,
                         const ffi::AnyBuffer* b = nullptr) {
  const Status fitting = CheckTiles(name, tiles, overflow, m, attributes.n, attributes);
  if (!fitting.ok()) return Refuse(fitting);
  if (!checked.ok()) return Refuse(checked);
  return ForDtype(name, tiles.element_type(), [&](auto zero) {
    return Launch(platform, SiteOf(name, platform, coordinates, tiles, attributes, attributes.n, b),
                  program(zero));
  });
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_GENERAL_FACTOR_H_
