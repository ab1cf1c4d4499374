// Staging: memory for blocks that can't pass to other processes from where they lie, or come to
// where they belong: copies in memory from which they can, and room for what comes. Of one rank, in
// one call, and used by its thread alone.
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
  // A copy that is in use until all messages of it have been taken.
  struct Copy {
    std::unique_ptr<Buffer> buffer;
    size_t bytes = 0;
    bool used = false;
    std::vector<std::shared_ptr<Event>> taken;
  };

  // Enqueues the copy; `*block` becomes it. `*copy` is given up by its last holder.
  using Allocate = Status (Device::*)(size_t bytes, std::unique_ptr<Buffer>* buffer);
  Status Stage(Device& device, Stream stream, Allocate allocate, Bytes2D* block,
               std::shared_ptr<Copy>* copy) {
    const size_t bytes = block->height * block->columns;
    Copy* best = Smallest(bytes, [](Copy&) { return true; });
    if (best == nullptr) JAXMG_RETURN_IF_ERROR(Make(device, allocate, bytes, &best));
    for (const auto& taken : best->taken) JAXMG_RETURN_IF_ERROR(device.Wait(stream, *taken));
    *copy = Use(best);
    const Bytes2D target = {best->buffer->data(), block->height, block->height, block->columns};
    JAXMG_RETURN_IF_ERROR(device.Copy(stream, target, *block));
    *block = target;
    return Status::Ok();
  }

  // Memory in which nothing is needed any more: the host waits for that where it would be more than
  // `most` bytes in all otherwise.
  Status Room(Device& device, size_t bytes, size_t most, std::shared_ptr<Copy>* room) {
    Status looked;
    Copy* best = Smallest(bytes, [&](Copy& one) {
      bool passed = true;
      for (const auto& taken : one.taken) {
        if (passed && looked.ok()) looked = device.HasPassed(*taken, &passed);
      }
      return passed;
    });
    JAXMG_RETURN_IF_ERROR(looked);
    if (best == nullptr && bytes_ + bytes > most) {
      best = Smallest(bytes, [](Copy&) { return true; });
    }
    if (best == nullptr) {
      JAXMG_RETURN_IF_ERROR(Make(device, &Device::Allocate, bytes, &best));
    }
    for (const auto& taken : best->taken) JAXMG_RETURN_IF_ERROR(device.AwaitOnHost(*taken));
    *room = Use(best);
    return Status::Ok();
  }

 private:
  template <typename Condition>
  Copy* Smallest(size_t bytes, const Condition& condition) {
    Copy* best = nullptr;
    for (Copy& one : copies_) {
      if (one.used || one.bytes < bytes || (best != nullptr && one.bytes >= best->bytes)) continue;
      if (condition(one)) best = &one;
    }
    return best;
  }

  Status Make(Device& device, Allocate allocate, size_t bytes, Copy** copy) {
    Copy made;
    JAXMG_RETURN_IF_ERROR((device.*allocate)(bytes, &made.buffer));
    made.bytes = bytes;
    copies_.push_back(std::move(made));
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
  size_t bytes_ = 0;  // of all
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_STAGING_H_
