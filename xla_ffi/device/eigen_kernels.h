// What the stages of an eigensolver do on one device beside products: each in a header of its own.
#ifndef JAXMG_XLA_FFI_DEVICE_EIGEN_KERNELS_H_
#define JAXMG_XLA_FFI_DEVICE_EIGEN_KERNELS_H_

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/device/chase_kernels.h"
#include "xla_ffi/device/panel_kernels.h"
#include "xla_ffi/device/secular_kernels.h"

namespace jaxmg {

// Of one dtype; null where the device has none.
template <typename T>
struct EigenKernels {
  PanelKernels<T>* panel = nullptr;
  ChaseKernels<T>* chase = nullptr;
  SecularKernels<T>* secular = nullptr;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_EIGEN_KERNELS_H_
