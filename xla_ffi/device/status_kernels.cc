#include "xla_ffi/device/status_kernels.h"

#include "xla_ffi/device/device.h"

namespace jaxmg {

Status StatusKernels::InitRecord(Device& device, Stream stream, int32_t* record, int one_at,
                                 int32_t one) {
  JAXMG_RETURN_IF_ERROR(InitInfo(stream, record));
  JAXMG_RETURN_IF_ERROR(device.FillInt32(stream, record + 1, kRecordWords - 1, 0));
  return device.FillInt32(stream, record + one_at, 1, one);
}

}  // namespace jaxmg
