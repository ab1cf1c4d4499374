// Preloaded into a process (LD_PRELOAD), makes chosen allocations and thread starts of one shared
// library fail. A call belongs to the library if its return address is in the library. The library
// must contain its own C++ runtime (the plugins do), so that its operator new is among the callers
// of malloc in it.
//
// A *point* is a place in the library's code that allocates, identified by all of the library's
// return addresses on the stack. They are the same in each call and each process, unlike the order
// in which ranks allocate. No function here allocates, and each may run on any thread.
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace {

constexpr const char* kKinds[] = {"malloc",        "calloc",         "realloc",
                                  "aligned_alloc", "posix_memalign", "pthread_create"};
enum Kind { kMalloc, kCalloc, kRealloc, kAlignedAlloc, kPosixMemalign, kPthreadCreate };

// The library is at the addresses [first_address, end_address).
std::atomic<uintptr_t> first_address{0}, end_address{0};

bool InLibrary(const void* address) {
  const uintptr_t value = reinterpret_cast<uintptr_t>(address);
  return value >= first_address.load(std::memory_order_relaxed) &&
         value < end_address.load(std::memory_order_relaxed);
}

struct Stack {
  static constexpr int kDepth = 32;
  explicit Stack(Kind kind) : point(1469598103934665603u ^ kind) {
    void* frames[kDepth];
    const int depth = backtrace(frames, kDepth);
    for (int i = 0; i < depth; ++i) {
      if (!InLibrary(frames[i])) continue;
      const uintptr_t offset = reinterpret_cast<uintptr_t>(frames[i]) - first_address;
      offsets[size++] = offset;
      point = (point ^ offset) * 1099511628211u;
    }
    if (point == 0) point = 1;
  }
  uint64_t point;
  uintptr_t offsets[kDepth];
  int size = 0;
};

struct Point {
  std::atomic<uint64_t> id{0};
  std::atomic<int64_t> calls{0};
  std::atomic<int> kind{0};
};
constexpr size_t kPoints = 8192;
Point points[kPoints];
std::atomic<bool> counting{false};

void Count(Kind kind, uint64_t id) {
  for (size_t i = id % kPoints;; i = (i + 1) % kPoints) {
    uint64_t found = 0;
    if (points[i].id.compare_exchange_strong(found, id) || found == id) {
      points[i].kind = kind;
      ++points[i].calls;
      return;
    }
  }
}

// At `armed_point` (0: at any point), `armed_length` calls fail from the `armed_first`-th on,
// counted from 1.
std::atomic<bool> armed{false};
std::atomic<uint64_t> armed_point{0};
std::atomic<int64_t> armed_first{0}, armed_length{0}, seen{0}, failed{0};

void Report(Kind kind, const Stack& stack) {
  char line[1024];
  int size = snprintf(line, sizeof(line), "failing: %s", kKinds[kind]);
  for (int i = 0; i < stack.size && size < 1000; ++i) {
    size += snprintf(line + size, sizeof(line) - size, " %#zx", stack.offsets[i]);
  }
  line[size++] = '\n';
  if (write(STDERR_FILENO, line, size) < 0) return;
}

// Returns whether the call that returns to `caller` must fail.
bool Fails(Kind kind, const void* caller) {
  const bool is_armed = armed, is_counting = counting;
  if (!(is_armed || is_counting) || !InLibrary(caller)) return false;
  const int error = errno;
  const Stack stack(kind);
  if (is_counting) Count(kind, stack.point);
  bool fails = false;
  if (is_armed && (armed_point == 0 || armed_point == stack.point)) {
    const int64_t call = ++seen;
    fails = call >= armed_first && call < armed_first + armed_length;
  }
  if (fails && failed++ == 0) Report(kind, stack);
  errno = fails ? ENOMEM : error;
  return fails;
}

// The library's allocations that aren't freed: a hash set of pointers with short probe windows.
constexpr size_t kSlots = 1 << 16, kWindow = 32;
std::atomic<void*> live_set[kSlots];
std::atomic<int64_t> live{0}, not_tracked{0};

std::atomic<void*>& Slot(const void* pointer, size_t i) {
  const uint64_t hash = reinterpret_cast<uintptr_t>(pointer) * 0x9E3779B97F4A7C15u;
  return live_set[((hash >> 40) + i) % kSlots];
}

void* Track(void* pointer, const void* caller) {
  if (pointer == nullptr || !InLibrary(caller)) return pointer;
  for (size_t i = 0; i < kWindow; ++i) {
    void* empty = nullptr;
    if (Slot(pointer, i).compare_exchange_strong(empty, pointer)) {
      ++live;
      return pointer;
    }
  }
  ++not_tracked;
  return pointer;
}

void Forget(void* pointer) {
  if (pointer == nullptr || live.load(std::memory_order_relaxed) == 0) return;
  for (size_t i = 0; i < kWindow; ++i) {
    void* found = pointer;
    if (Slot(pointer, i).load(std::memory_order_relaxed) == pointer &&
        Slot(pointer, i).compare_exchange_strong(found, nullptr)) {
      --live;
      return;
    }
  }
}

}  // namespace

extern "C" {

// glibc's own functions, under names that no library overrides.
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

#define CALLER __builtin_return_address(0)

void* malloc(size_t bytes) {
  if (Fails(kMalloc, CALLER)) return nullptr;
  return Track(__libc_malloc(bytes), CALLER);
}

void* calloc(size_t count, size_t bytes) {
  if (Fails(kCalloc, CALLER)) return nullptr;
  return Track(__libc_calloc(count, bytes), CALLER);
}

void* realloc(void* old, size_t bytes) {
  if (Fails(kRealloc, CALLER)) return nullptr;
  void* moved = __libc_realloc(old, bytes);
  if (moved == nullptr && bytes != 0) return nullptr;
  Forget(old);
  return Track(moved, CALLER);
}

void* aligned_alloc(size_t alignment, size_t bytes) {
  if (Fails(kAlignedAlloc, CALLER)) return nullptr;
  return Track(__libc_memalign(alignment, bytes), CALLER);
}

int posix_memalign(void** pointer, size_t alignment, size_t bytes) {
  if (Fails(kPosixMemalign, CALLER)) return ENOMEM;
  void* made = __libc_memalign(alignment, bytes);
  if (made == nullptr) return ENOMEM;
  *pointer = Track(made, CALLER);
  return 0;
}

void free(void* pointer) {
  Forget(pointer);
  __libc_free(pointer);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) {
  if (Fails(kPthreadCreate, CALLER)) return EAGAIN;
  // Looked up in each call: a static variable in a function would require the C++ runtime.
  const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return real(thread, attributes, start, argument);
}

// The driver calls the following functions through ctypes.

// Sets the library to `path`; returns false if it isn't loaded.
bool failing_library(const char* path) {
  auto visit = [](dl_phdr_info* info, size_t, void* wanted) {
    if (strcmp(info->dlpi_name, static_cast<const char*>(wanted)) != 0) return 0;
    uintptr_t end = 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& header = info->dlpi_phdr[i];
      const uintptr_t segment_end = header.p_vaddr + header.p_memsz;
      if (header.p_type == PT_LOAD && segment_end > end) end = segment_end;
    }
    end_address = info->dlpi_addr + end;
    first_address = info->dlpi_addr;
    return 1;
  };
  void* frame[1];
  backtrace(frame, 1);  // loads the unwinder, which allocates
  return dl_iterate_phdr(visit, const_cast<char*>(path)) == 1;
}

// Counts the calls of each point until failing_counted.
void failing_count() {
  for (Point& point : points) {
    point.id = 0;
    point.calls = 0;
  }
  counting = true;
}

// Copies the points since failing_count and their numbers of calls; returns the number of points.
size_t failing_counted(uint64_t* ids, int64_t* calls, int* kinds, size_t capacity) {
  counting = false;
  size_t count = 0;
  for (const Point& point : points) {
    if (point.id == 0 || count == capacity) continue;
    ids[count] = point.id;
    calls[count] = point.calls;
    kinds[count] = point.kind;
    ++count;
  }
  return count;
}

const char* failing_kind(int kind) { return kKinds[kind]; }

// Makes `length` calls fail at `point` (0: at any), from the `first`-th on. Prints the stack of the
// first failure to stderr, as offsets into the library.
void failing_arm(uint64_t point, int64_t first, int64_t length) {
  armed = false;
  armed_point = point;
  armed_first = first;
  armed_length = length;
  seen = failed = 0;
  armed = true;
}

// Ends the failures of failing_arm; returns the number of calls that have failed.
int64_t failing_disarm() {
  armed = false;
  return failed;
}

// Returns the number of the library's allocations that aren't freed; -1 if there were too many to
// track.
int64_t failing_live() { return not_tracked == 0 ? live.load() : -1; }

}  // extern "C"
