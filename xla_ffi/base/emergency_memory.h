// EmergencyMemory: a little memory for exceptions when the heap has none.
#ifndef JAXMG_XLA_FFI_BASE_EMERGENCY_MEMORY_H_
#define JAXMG_XLA_FFI_BASE_EMERGENCY_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace jaxmg {

// `kSlots` pieces of `kBytes` bytes each, for any thread. It never waits, and is constant
// initialized: it is there before and after everything else.
template <size_t kSlots, size_t kBytes>
class EmergencyMemory {
 public:
  static_assert(kBytes % alignof(std::max_align_t) == 0, "every piece has to be aligned");

  // Null if `bytes` are more than a piece has, or none is free.
  void* Allocate(size_t bytes) noexcept {
    if (bytes > kBytes) return nullptr;
    for (size_t i = 0; i < kSlots; ++i) {
      if (!taken_[i].exchange(true, std::memory_order_acquire)) return memory_ + i * kBytes;
    }
    return nullptr;
  }

  // Whether this was one of the pieces; then it is free.
  bool Free(void* memory) noexcept {
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t first = reinterpret_cast<uintptr_t>(memory_);
    if (address < first || address >= first + sizeof(memory_)) return false;
    taken_[(address - first) / kBytes].store(false, std::memory_order_release);
    return true;
  }

 private:
  alignas(std::max_align_t) unsigned char memory_[kSlots * kBytes] = {};
  std::atomic<bool> taken_[kSlots] = {};
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_BASE_EMERGENCY_MEMORY_H_
