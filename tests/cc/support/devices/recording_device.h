// RecordingDevice: computes immediately, like the host, and records each operation with its stream,
// the memory that it reads and writes, and the operations that events order before it. Two
// unordered operations may run concurrently on a device with streams. So a missing wait shows up in
// every run, independent of the timing of threads.
#ifndef JAXMG_TESTS_CC_SUPPORT_DEVICES_RECORDING_DEVICE_H_
#define JAXMG_TESTS_CC_SUPPORT_DEVICES_RECORDING_DEVICE_H_

#include <cstdint>
#include <memory>

#include "tests/cc/support/devices/recorder.h"
#include "xla_ffi/device/device.h"

namespace jaxmg::testing {

class RecordingDevice : public Device {
 public:
  // Number of events, records and waits: the host's work other than operations.
  virtual int64_t events() const = 0;
};

// Returns a device that records the operations of one rank; `real` computes them.
std::unique_ptr<RecordingDevice> NewRecordingDevice(std::unique_ptr<Device> real,
                                                    const Tuning& tuning, Recording& recording,
                                                    int rank);

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_DEVICES_RECORDING_DEVICE_H_
