#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>

#include "xla_ffi/device/shared_memory.h"

namespace jaxmg {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;
// Other processes must not truncate the file: reading beyond its end raises a signal.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Returns the system's available memory, or the largest size if the system doesn't report it.
size_t AvailableBytes() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (size_t kilobytes = 0; file >> name >> kilobytes; std::getline(file, unit)) {
    if (name == "MemAvailable:") return kilobytes << 10;
  }
  return SIZE_MAX;
}

Status NoMemory(size_t bytes, const char* why) {
  return Error(Code::kResourceExhausted, "out of memory: ", bytes,
               " bytes of shared memory: ", why);
}

class HostMemory : public MemorySource {
 public:
  Status Serve(int) override { return Status::Ok(); }
  Status Make(int, size_t* bytes, void** data, int* file) override {
    *bytes = (*bytes + kLargePage - 1) / kLargePage * kLargePage;
    return MakeHostSegment(*bytes, data, file);
  }
  Status Map(int file, size_t bytes, void** data) override {
    return MapHostSegment(file, bytes, data);
  }
  void Unmap(void* data, size_t bytes) noexcept override { munmap(data, bytes); }
  bool IsHost() const override { return true; }
  Status Register(void*, size_t) override { return Status::Ok(); }
};

}  // namespace

// Allocates all pages immediately, because writing a page without memory would terminate the
// process. Checks the available memory first, because the system would use all of it before it
// fails.
Status MakeHostSegment(size_t bytes, void** data, int* file) {
  if (bytes > AvailableBytes()) return NoMemory(bytes, "the system has less");
  const int made = memfd_create("jaxmg", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (made < 0) {
    return Error(Code::kUnavailable, "can't create shared memory: ", std::strerror(errno));
  }
  int failed = posix_fallocate(made, 0, static_cast<off_t>(bytes));
  if (failed == 0 && fcntl(made, F_ADD_SEALS, kSeals) != 0) failed = errno;
  if (failed == 0) {
    const Status mapped = MapHostSegment(made, bytes, data);
    if (mapped.ok()) {
      *file = made;
      return mapped;
    }
    failed = ENOMEM;
  }
  close(made);
  return NoMemory(bytes, std::strerror(failed));
}

Status MapHostSegment(int file, size_t bytes, void** data) {
  struct stat about = {};
  if (fstat(file, &about) != 0 || static_cast<size_t>(about.st_size) < bytes) {
    return Error(Code::kInternal, "a segment of another process has fewer than ", bytes, " bytes");
  }
  const int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return Error(Code::kInternal, "the size of another process's segment is not sealed");
  }
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) {
    return Error(Code::kResourceExhausted, "can't map ", bytes,
                 " bytes of shared memory: ", std::strerror(errno));
  }
  *data = mapped;
  return Status::Ok();
}

MemorySource& HostMemorySource() {
  static MemorySource* source = new HostMemory;
  return *source;
}

}  // namespace jaxmg
