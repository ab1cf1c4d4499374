#include "xla_ffi/device/timeline.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace jaxmg {
namespace {

constexpr const char* kStreamNames[kNumStreams] = {"main", "panel", "next", "copy", "side"};

const char* Path() {
  const char* path = std::getenv("JAXMG_TRACE");
  return path != nullptr && *path != '\0' ? path : nullptr;
}

}  // namespace

bool TimelineWanted() { return Path() != nullptr; }

void AppendTimeline(const std::string& routine, int64_t call, int rank,
                    const std::vector<TimelineRange>& ranges) {
  static std::mutex* mutex = new std::mutex;
  static bool reported = false;
  const char* path = Path();
  if (path == nullptr || ranges.empty()) return;
  std::lock_guard<std::mutex> lock(*mutex);
  std::FILE* file = std::fopen(path, "a");
  if (file == nullptr) {
    if (!reported) std::fprintf(stderr, "jaxmg: JAXMG_TRACE: can't write %s\n", path);
    reported = true;
    return;
  }
  if (std::fseek(file, 0, SEEK_END) == 0 && std::ftell(file) == 0) std::fputs("[\n", file);
  std::fprintf(file,
               R"({"ph":"M","name":"process_name","pid":%d,"args":{"name":"rank %d"}},)"
               "\n",
               rank, rank);
  for (int stream = 0; stream < kNumStreams; ++stream) {
    std::fprintf(file,
                 R"({"ph":"M","name":"thread_name","pid":%d,"tid":%d,"args":{"name":"%s"}},)"
                 "\n",
                 rank, stream, kStreamNames[stream]);
  }
  for (const TimelineRange& range : ranges) {
    std::fprintf(file,
                 R"({"ph":"X","name":"%s","cat":"%s","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,)"
                 R"("args":{"index":%lld,"call":%lld}},)"
                 "\n",
                 range.name, routine.c_str(), rank, static_cast<int>(range.stream),
                 range.begin * 1e6, (range.end - range.begin) * 1e6,
                 static_cast<long long>(range.index), static_cast<long long>(call));
  }
  std::fclose(file);
}

}  // namespace jaxmg
