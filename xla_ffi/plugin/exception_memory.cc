// Memory for exceptions when the heap is exhausted. Replaces libc++abi's own fallback_malloc.cpp:
// the linker takes these four functions, so it doesn't link that object. Libc++abi's fallback has
// two faults. It has 512 bytes, which don't suffice if four ranks run out of memory at the same
// time. And if a piece is freed that precedes a free piece other than the first of its list, the
// list of free pieces becomes circular, so the next search in it never ends.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "xla_ffi/base/emergency_memory.h"

namespace __cxxabiv1 {
namespace {

// An exception with its header takes about 150 bytes.
jaxmg::EmergencyMemory<256, 512> emergency;

}  // namespace

void* __aligned_malloc_with_fallback(size_t size) {
  if (size == 0) size = 1;
  void* memory = std::malloc(size);
  return memory != nullptr ? memory : emergency.Allocate(size);
}

void* __calloc_with_fallback(size_t count, size_t size) {
  void* memory = std::calloc(count, size);
  if (memory != nullptr || (size != 0 && count > SIZE_MAX / size)) return memory;
  memory = emergency.Allocate(count * size);
  if (memory != nullptr) std::memset(memory, 0, count * size);
  return memory;
}

void __aligned_free_with_fallback(void* memory) {
  if (!emergency.Free(memory)) std::free(memory);
}

void __free_with_fallback(void* memory) {
  if (!emergency.Free(memory)) std::free(memory);
}

}  // namespace __cxxabiv1
