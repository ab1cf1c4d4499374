// EigenKernels: the operations on one device, other than products, that the stages of the
// eigensolver for Hermitian matrices consist of.
#ifndef JAXMG_XLA_FFI_DEVICE_EIGEN_EIGEN_KERNELS_H_
#define JAXMG_XLA_FFI_DEVICE_EIGEN_EIGEN_KERNELS_H_

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/device/eigen/chase_kernels.h"
#include "xla_ffi/device/eigen/secular_kernels.h"
#include "xla_ffi/device/panel_kernels.h"

namespace jaxmg {

// The kernels of one dtype; null if the device doesn't have them.
template <typename T>
struct EigenKernels {
  PanelKernels<T>* panel = nullptr;
  ChaseKernels<T>* chase = nullptr;
  SecularKernels<T>* secular = nullptr;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_EIGEN_EIGEN_KERNELS_H_
