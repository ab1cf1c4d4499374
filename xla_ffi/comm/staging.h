// Staging: copies of blocks that can't pass to other processes from where they lie, in memory from
// which they can. Of one rank, in one call, and used by its thread alone.
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
    Copy* best = nullptr;
    for (Copy& one : copies_) {
      if (!one.used && one.bytes >= bytes && (best == nullptr || one.bytes < best->bytes)) {
        best = &one;
      }
    }
    if (best == nullptr) {
      Copy made;
      JAXMG_RETURN_IF_ERROR((device.*allocate)(bytes, &made.buffer));
      made.bytes = bytes;
      copies_.push_back(std::move(made));
      best = &copies_.back();
    }
    for (const auto& taken : best->taken) JAXMG_RETURN_IF_ERROR(device.Wait(stream, *taken));
    best->taken.clear();
    best->used = true;
    *copy = std::shared_ptr<Copy>(best, [](Copy* one) { one->used = false; });
    const Bytes2D target = {best->buffer->data(), block->height, block->height, block->columns};
    JAXMG_RETURN_IF_ERROR(device.Copy(stream, target, *block));
    *block = target;
    return Status::Ok();
  }

 private:
  std::list<Copy> copies_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_STAGING_H_
