// Counts the objects that a test's process has allocated and not freed, by operators new and delete
// of its own. Included by the one source of a test.
#ifndef JAXMG_TESTS_CC_SUPPORT_LIVING_OBJECTS_H_
#define JAXMG_TESTS_CC_SUPPORT_LIVING_OBJECTS_H_

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

static std::atomic<int64_t> alive{0};

void* operator new(size_t size) {
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  ++alive;
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory != nullptr) --alive;
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

#endif  // JAXMG_TESTS_CC_SUPPORT_LIVING_OBJECTS_H_
