// Code that the handlers of kept factors of general matrices share: their attributes, and the
// launch of a rank program on a factor.
#ifndef JAXMG_XLA_FFI_HANDLERS_GENERAL_FACTOR_H_
#define JAXMG_XLA_FFI_HANDLERS_GENERAL_FACTOR_H_

#include "xla_ffi/handlers/call.h"

namespace jaxmg {

// Adds the number of rows, m.
template <typename Base>
struct WithRows : Base {
  int64_t m;

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    Base::Visit(attributes, visit);
    visit("m", attributes.m);
  }
};
// Adds which operation with the matrix is applied: the matrix, its transpose or its adjoint.
template <typename Base>
struct WithOperation : Base {
  Op operation;

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    Base::Visit(attributes, visit);
    visit("operation", attributes.operation);
  }
};

// Returns the operand in `a`, to which the routine first copies `source`, unless that is null.
template <typename T>
Operand<T> OperandOf(const SquareAttributes& attributes, int64_t m, ffi::AnyBuffer a,
                     ffi::AnyBuffer overflow, int32_t* status, const T* source,
                     Precision precision = Precision::kHighest) {
  return {m,         attributes.n, a.dimensions()[0],  attributes.tile, DataOf<T>(a), status,
          precision, source,       DataOf<T>(overflow)};
}

// Launches the rank program that program(T()) returns for the factors' dtype, if the call is valid.
// The rank program must hold the buffers' pointers, not the buffers, which may be destroyed before
// it runs.
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
