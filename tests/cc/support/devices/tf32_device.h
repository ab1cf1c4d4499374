// A device that computes products of float32 and complex64 with factors rounded to TF32.
#ifndef JAXMG_TESTS_CC_SUPPORT_DEVICES_TF32_DEVICE_H_
#define JAXMG_TESTS_CC_SUPPORT_DEVICES_TF32_DEVICE_H_

#include <memory>

#include "xla_ffi/device/device.h"

namespace jaxmg::testing {

// Returns `real` with another tuning and TF32 products. Any other operation at that precision
// fails.
std::unique_ptr<Device> WithTf32(Device& real, const Tuning& tuning);

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_DEVICES_TF32_DEVICE_H_
