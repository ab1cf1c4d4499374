#include "xla_ffi/device/host_ranges.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

namespace jaxmg {
namespace {

// Calls work(begin, end) for about equal parts of [0, count), each on its own thread. Does a part
// itself if the system has no more threads.
template <typename Work>
Status InParts(size_t count, int threads, const Work& work) {
  const size_t parts = std::max<size_t>(1, std::min<size_t>(threads < 1 ? 1 : threads, count));
  return Guarded([&]() -> Status {
    std::vector<std::thread> running;
    running.reserve(parts);
    for (size_t i = 1; i < parts; ++i) {
      const size_t begin = count / parts * i + std::min(i, count % parts);
      const size_t end = count / parts * (i + 1) + std::min(i + 1, count % parts);
      try {
        running.emplace_back([&work, begin, end] { work(begin, end); });
      } catch (const std::system_error&) {
        work(begin, end);
      }
    }
    work(size_t{0}, count / parts + std::min<size_t>(1, count % parts));
    for (std::thread& thread : running) thread.join();
    return Status::Ok();
  });
}

}  // namespace

Status TouchPages(void* address, size_t bytes, int threads) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char* const memory = static_cast<char*>(address);
  return InParts((bytes + page - 1) / page, threads, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) static_cast<volatile char*>(memory)[i * page] = 0;
  });
}

Status CopyOnHost(const HostRows& rows, int threads) {
  if (rows.rows == 0 || rows.row_bytes == 0) return Status::Ok();
  // Parts are pieces of rows, so that few long rows are copied by all threads, too.
  constexpr size_t kPiece = size_t{1} << 20;
  const size_t pieces = (rows.row_bytes + kPiece - 1) / kPiece;
  return InParts(rows.rows * pieces, threads, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const size_t row = i / pieces, first = i % pieces * kPiece;
      std::memcpy(static_cast<char*>(rows.target) + row * rows.target_pitch + first,
                  static_cast<const char*>(rows.source) + row * rows.source_pitch + first,
                  std::min(kPiece, rows.row_bytes - first));
    }
  });
}

}  // namespace jaxmg
