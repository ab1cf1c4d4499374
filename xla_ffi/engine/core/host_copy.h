// Copies values that determine the host's next steps to the host.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_HOST_COPY_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_HOST_COPY_H_

#include <memory>

#include "xla_ffi/device/device.h"

namespace jaxmg {

// Copies `source`, in device memory, to `target`, which must come from AllocateOnHost, and waits
// for the copy.
inline Status CopyToHost(Device& device, const Bytes2D& target, const Bytes2D& source) {
  std::shared_ptr<Event> there;
  JAXMG_RETURN_IF_ERROR(device.NewEvent(&there));
  JAXMG_RETURN_IF_ERROR(device.Copy(Stream::kMain, target, source));
  JAXMG_RETURN_IF_ERROR(device.Record(Stream::kMain, there.get()));
  return device.AwaitOnHost(*there);
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_HOST_COPY_H_
