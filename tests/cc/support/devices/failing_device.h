// FailingDevice: a device of which one call fails: an allocation, an event, a wait, a copy. A test
// lets each one fail in turn.
#ifndef JAXMG_TESTS_CC_SUPPORT_DEVICES_FAILING_DEVICE_H_
#define JAXMG_TESTS_CC_SUPPORT_DEVICES_FAILING_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/testing.h"

namespace jaxmg::testing {

// Which call fails, counted from 0, and the number of calls so far.
struct Fault {
  int64_t at, calls = 0;
  bool occurred() const { return calls > at; }
};

class FailingDevice : public ForwardingDevice {
 public:
  FailingDevice(Device& real, Fault& fault) : ForwardingDevice(real), real_(real), fault_(fault) {}

  Tuning tuning() const override { return real_.tuning(); }
  Status Allocate(size_t bytes, std::unique_ptr<Buffer>* buffer) override {
    return Fails() ? Error() : real_.Allocate(bytes, buffer);
  }
  Status AllocateOnHost(size_t bytes, std::unique_ptr<Buffer>* buffer) override {
    return Fails() ? Error() : real_.AllocateOnHost(bytes, buffer);
  }
  Status NewEvent(std::shared_ptr<Event>* event) override {
    return Fails() ? Error() : real_.NewEvent(event);
  }
  Status Record(Stream stream, Event* event) override {
    return Fails() ? Error() : real_.Record(stream, event);
  }
  Status Wait(Stream stream, const Event& event) override {
    return Fails() ? Error() : real_.Wait(stream, event);
  }
  Status AwaitOnHost(const Event& event) override {
    return Fails() ? Error() : real_.AwaitOnHost(event);
  }
  Status Copy(Stream stream, const Bytes2D& target, const Bytes2D& source) override {
    return Fails() ? Error() : real_.Copy(stream, target, source);
  }
  Status CopyWithin(Stream stream, const Bytes2D& target, const Bytes2D& source) override {
    return Fails() ? Error() : real_.CopyWithin(stream, target, source);
  }
  Status FillInt32(Stream stream, int32_t* data, int64_t count, int32_t value) override {
    return Fails() ? Error() : real_.FillInt32(stream, data, count, value);
  }
  Status ReserveHandles() override { return Fails() ? Error() : real_.ReserveHandles(); }
  Status ReserveTransfers() override { return Fails() ? Error() : real_.ReserveTransfers(); }

 private:
  bool Fails() { return fault_.calls++ == fault_.at; }
  static Status Error() { return jaxmg::Error(Code::kInternal, "failed on purpose"); }

  Device& real_;
  Fault& fault_;
};

// A FailingDevice that owns its device.
inline std::unique_ptr<Device> NewFailingDevice(std::unique_ptr<Device> real, Fault& fault) {
  struct Owner {
    std::unique_ptr<Device> device;
  };
  struct Owning : Owner, FailingDevice {
    Owning(std::unique_ptr<Device> device, Fault& fault)
        : Owner{std::move(device)}, FailingDevice(*this->Owner::device, fault) {}
  };
  return std::make_unique<Owning>(std::move(real), fault);
}

// Lets each call of rank 1's device fail once in `program`, until all are done. All ranks must
// fail; then `again` checks that what follows works.
template <typename Again>
void FailEachCall(int ranks, const RankProgram& program, const Again& again,
                  const DeviceMaker& make = OnHost) {
  const int failing = ranks > 1 ? 1 : 0;
  for (int64_t at = 0;; ++at) {
    Fault fault = {at};
    const auto outcomes = RunRanks(ranks, program, kPatience, [&](int rank) {
      return rank == failing ? NewFailingDevice(make(rank), fault) : make(rank);
    });
    if (!fault.occurred()) {
      for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
      EXPECT(at > 3) << "only " << at << " calls";
      return;
    }
    for (const Status& outcome : outcomes) {
      EXPECT(!outcome.ok() && outcome.message().find("on purpose") != std::string::npos)
          << "call " << at << ": " << outcome.message();
    }
    again();
  }
}

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_DEVICES_FAILING_DEVICE_H_
