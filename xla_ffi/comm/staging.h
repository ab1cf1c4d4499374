// Staging: temporary device or host memory for blocks that can't be sent from, or received into,
// their final location. Belongs to one rank of one call; only that rank's thread uses it.
#ifndef JAXMG_XLA_FFI_COMM_STAGING_H_
#define JAXMG_XLA_FFI_COMM_STAGING_H_

#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "xla_ffi/device/device.h"

namespace jaxmg {

class Staging {
 public:
  // A buffer that is in use until all messages that refer to it have been taken.
  struct Copy {
    std::unique_ptr<Buffer> buffer;
    size_t bytes = 0;
    bool used = false;
    std::vector<std::shared_ptr<Event>> taken;  // after which no reader needs the contents
  };

  // Enqueues a copy of `*block` and sets `*block` to the copy. The copy can be reused when the last
  // owner of `*copy` releases it.
  using Allocate = Status (Device::*)(size_t bytes, std::unique_ptr<Buffer>* buffer);
  Status Stage(Device& device, Stream stream, Allocate allocate, Bytes2D* block,
               std::shared_ptr<Copy>* copy) {
    const size_t bytes = block->height * block->columns;
    Copy* best = FindSmallest(bytes, [](Copy&) { return true; });
    if (best == nullptr) JAXMG_RETURN_IF_ERROR(Add(device, allocate, bytes, &best));
    for (const auto& taken : best->taken) JAXMG_RETURN_IF_ERROR(device.Wait(stream, *taken));
    *copy = Use(best);
    const Bytes2D target = {best->buffer->data(), block->height, block->height, block->columns};
    JAXMG_RETURN_IF_ERROR(device.Copy(stream, target, *block));
    *block = target;
    return Status::Ok();
  }

  // Returns a buffer whose previous contents no device needs any more. Waits on the host for a
  // buffer to become free if a new one would bring the total above `most` bytes.
  Status Reserve(Device& device, size_t bytes, size_t most, std::shared_ptr<Copy>* room) {
    Status status;
    Copy* best = FindSmallest(bytes, [&](Copy& one) {
      bool passed = true;
      for (const auto& taken : one.taken) {
        if (passed && status.ok()) status = device.HasPassed(*taken, &passed);
      }
      return passed;
    });
    JAXMG_RETURN_IF_ERROR(status);
    if (best == nullptr && bytes_ + bytes > most) {
      best = FindSmallest(bytes, [](Copy&) { return true; });
    }
    if (best == nullptr) {
      JAXMG_RETURN_IF_ERROR(Add(device, &Device::Allocate, bytes, &best));
    }
    for (const auto& taken : best->taken) JAXMG_RETURN_IF_ERROR(device.AwaitOnHost(*taken));
    *room = Use(best);
    return Status::Ok();
  }

 private:
  template <typename Condition>
  Copy* FindSmallest(size_t bytes, const Condition& condition) {
    Copy* best = nullptr;
    for (Copy& one : copies_) {
      if (one.used || one.bytes < bytes || (best != nullptr && one.bytes >= best->bytes)) continue;
      if (condition(one)) best = &one;
    }
    return best;
  }

  Status Add(Device& device, Allocate allocate, size_t bytes, Copy** copy) {
    Copy added;
    JAXMG_RETURN_IF_ERROR((device.*allocate)(bytes, &added.buffer));
    added.bytes = bytes;
    copies_.push_back(std::move(added));
    bytes_ += bytes;
    *copy = &copies_.back();
    return Status::Ok();
  }

  static std::shared_ptr<Copy> Use(Copy* copy) {
    copy->taken.clear();
    copy->used = true;
    return std::shared_ptr<Copy>(copy, [](Copy* one) { one->used = false; });
  }

  std::list<Copy> copies_;
  size_t bytes_ = 0;  // of all buffers
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_STAGING_H_
