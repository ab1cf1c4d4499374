#include "xla_ffi/engine/offload/host_ring.h"

#include <algorithm>

#include "xla_ffi/device/host_ranges.h"

namespace jaxmg {
namespace {

// One slot is copied to while others are on their way.
constexpr size_t kSlots = 8;
constexpr size_t kAlignment = 64;

Bytes2D PartOf(const Bytes2D& block, size_t row, size_t rows, size_t column, size_t columns) {
  return {static_cast<char*>(block.data) + column * block.pitch + row, block.pitch, rows, columns};
}

}  // namespace

HostRing::HostRing(Device& device, const HostRingMemory& memory, int rank, int ranks)
    : device_(device), threads_(std::max(memory.threads / ranks, 1)) {
  const size_t mine = memory.bytes / ranks / kAlignment * kAlignment;
  bytes_ = mine / kSlots / kAlignment * kAlignment;
  if (bytes_ == 0) return;
  char* const data = static_cast<char*>(memory.data) + rank * mine;
  for (size_t i = 0; i < kSlots; ++i) slots_.push_back({data + i * bytes_, nullptr});
}

Status HostRing::Prepare() {
  for (Slot& slot : slots_) JAXMG_RETURN_IF_ERROR(device_.NewEvent(&slot.event));
  return Status::Ok();
}

template <typename Part>
Status HostRing::ForParts(const Bytes2D& target, const Bytes2D& source, const Part& part) {
  if (source.height == 0) return Status::Ok();
  const size_t most_rows = std::min(source.height, bytes_);
  const size_t most_columns = bytes_ / most_rows;
  for (size_t column = 0; column < source.columns; column += most_columns) {
    const size_t columns = std::min(most_columns, source.columns - column);
    for (size_t row = 0; row < source.height; row += most_rows) {
      const size_t rows = std::min(most_rows, source.height - row);
      JAXMG_RETURN_IF_ERROR(part(PartOf(target, row, rows, column, columns),
                                 PartOf(source, row, rows, column, columns)));
    }
  }
  return Status::Ok();
}

Status HostRing::Take(Slot** slot) {
  *slot = &slots_[next_++ % slots_.size()];
  return Complete(**slot);
}

Status HostRing::Complete(Slot& slot) {
  if (!slot.used) return Status::Ok();
  JAXMG_RETURN_IF_ERROR(device_.AwaitOnHost(*slot.event));
  slot.used = false;
  const Bytes2D target = slot.target;
  slot.target = {};
  if (target.data == nullptr) return Status::Ok();
  return CopyOnHost(
      {target.data, slot.data, target.columns, target.height, target.pitch, target.height},
      threads_);
}

Status HostRing::Load(Stream stream, const Bytes2D& target, const Bytes2D& source) {
  return ForParts(target, source, [&](const Bytes2D& to, const Bytes2D& from) -> Status {
    Slot* slot;
    JAXMG_RETURN_IF_ERROR(Take(&slot));
    JAXMG_RETURN_IF_ERROR(CopyOnHost(
        {slot->data, from.data, from.columns, from.height, from.height, from.pitch}, threads_));
    JAXMG_RETURN_IF_ERROR(
        device_.Copy(stream, to, {slot->data, from.height, from.height, from.columns}));
    slot->used = true;
    return device_.Record(stream, slot->event.get());
  });
}

Status HostRing::Store(Stream stream, const Bytes2D& target, const Bytes2D& source) {
  return ForParts(target, source, [&](const Bytes2D& to, const Bytes2D& from) -> Status {
    Slot* slot;
    JAXMG_RETURN_IF_ERROR(Take(&slot));
    JAXMG_RETURN_IF_ERROR(
        device_.Copy(stream, {slot->data, to.height, to.height, to.columns}, from));
    slot->used = true;
    slot->target = to;
    return device_.Record(stream, slot->event.get());
  });
}

Status HostRing::Drain() {
  // The oldest first, so that a host copies while the device still does.
  for (size_t i = 0; i < slots_.size(); ++i) {
    JAXMG_RETURN_IF_ERROR(Complete(slots_[next_++ % slots_.size()]));
  }
  return Status::Ok();
}

}  // namespace jaxmg
