// The host as a device whose streams are threads. Work is enqueued, streams run concurrently, and
// events order them, as on a GPU. An algorithm with a missing wait sometimes computes wrong numbers
// on it, and ThreadSanitizer reports the race every time.
#ifndef JAXMG_TESTS_CC_SUPPORT_DEVICES_ASYNC_DEVICE_H_
#define JAXMG_TESTS_CC_SUPPORT_DEVICES_ASYNC_DEVICE_H_

#include <memory>

#include "xla_ffi/device/device.h"

namespace jaxmg::testing {

// Returns an AsyncDevice that computes with the functions of `real`. Its memory lives as long as
// the device, just as XLA's scratch memory lives until a handler returns.
std::unique_ptr<Device> NewAsyncDevice(std::unique_ptr<Device> real, const Tuning& tuning);

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_DEVICES_ASYNC_DEVICE_H_
