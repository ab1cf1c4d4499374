// EmergencyMemory: a small reserve of memory for exceptions when the heap is exhausted.
#ifndef JAXMG_XLA_FFI_BASE_EMERGENCY_MEMORY_H_
#define JAXMG_XLA_FFI_BASE_EMERGENCY_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace jaxmg {

// `kSlots` pieces of `kBytes` bytes each. Thread-safe and lock-free. Constant initialized, so that
// it is usable before and after all other objects.
template <size_t kSlots, size_t kBytes>
class EmergencyMemory {
 public:
  static_assert(kBytes % alignof(std::max_align_t) == 0, "every piece has to be aligned");

  // Returns null if `bytes` exceeds the size of a piece, or no piece is free.
  void* Allocate(size_t bytes) noexcept {
    if (bytes > kBytes) return nullptr;
    for (size_t i = 0; i < kSlots; ++i) {
      if (!taken_[i].exchange(true, std::memory_order_acquire)) return memory_ + i * kBytes;
    }
    return nullptr;
  }

  // Frees a piece; returns false if the pointer is not one of the pieces.
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
