// Where exceptions live, in place of libc++abi's own fallback_malloc.cpp: the linker takes these
// four functions, so it leaves that object in its archive. Libc++abi's fallback has 512 bytes,
// fewer than the exceptions of four ranks that find no memory at one time, and its list of free
// pieces becomes a circle where a piece is put back before one that isn't the list's first: the
// next search in it never ends.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "xla_ffi/base/emergency_memory.h"

namespace __cxxabiv1 {
namespace {

// An exception with its header takes some 150 bytes.
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
