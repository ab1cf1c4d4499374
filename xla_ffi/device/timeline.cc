#include "xla_ffi/device/timeline.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace jaxmg {
namespace {

constexpr const char* kStreamNames[kNumStreams] = {"main", "panel", "next", "copy",
                                                   "side", "load",  "store"};

const char* Path() {
  const char* path = std::getenv("JAXMG_TRACE");
  return path != nullptr && *path != '\0' ? path : nullptr;
}

template <typename... Arguments>
void Append(std::string* text, const char* format, Arguments... arguments) {
  char line[512];
  const int length = std::snprintf(line, sizeof(line), format, arguments...);
  if (length > 0) text->append(line, std::min<size_t>(length, sizeof(line) - 1));
}

std::string Events(const char* routine, int64_t run, const void* site, int rank,
                   const std::vector<TimelineRange>& ranges) {
  std::string text;
  Append(&text,
         R"({"ph":"M","name":"process_name","pid":%d,"args":{"name":"rank %d"}},)"
         "\n",
         rank, rank);
  for (int stream = 0; stream < kNumStreams; ++stream) {
    Append(&text,
           R"({"ph":"M","name":"thread_name","pid":%d,"tid":%d,"args":{"name":"%s"}},)"
           "\n",
           rank, stream, kStreamNames[stream]);
  }
  for (const TimelineRange& range : ranges) {
    Append(&text,
           R"({"ph":"X","name":"%s","cat":"%s","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,)"
           R"("args":{"index":%lld,"run":%lld,"call":%lld}},)"
           "\n",
           range.name, routine, rank, static_cast<int>(range.stream), range.begin * 1e6,
           (range.end - range.begin) * 1e6, static_cast<long long>(range.index),
           static_cast<long long>(run), static_cast<long long>(reinterpret_cast<intptr_t>(site)));
  }
  return text;
}

bool Write(int file, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(file, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    done += written;
  }
  return true;
}

// Appends the text, after an opening bracket if it is the first, otherwise after a new line,
// because the last text may be incomplete. Doesn't block on a pipe without a reader.
bool AppendTo(const char* path, const std::string& text) {
  static bool begun = false;  // for pipes, which have no size
  const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666);
  if (file < 0) return false;
  struct stat facts;
  const bool regular = fstat(file, &facts) == 0 && S_ISREG(facts.st_mode);
  const bool first = regular ? facts.st_size == 0 : !begun;
  const char* before = first ? "[\n" : regular ? "\n" : "";
  begun = begun || !regular;
  const bool ok = Write(file, before + text);
  const int error = errno;
  close(file);
  errno = error;
  return ok;
}

}  // namespace

bool TimelineWanted() { return Path() != nullptr; }

void AppendTimeline(const char* routine, int64_t run, const void* site, int rank,
                    Device& device) noexcept {
  static std::mutex mutex;
  static char reported[4096] = "";  // the last path that could not be written
  const char* path = Path();
  if (path == nullptr) return;
  const Status status = Guarded([&] {
    const std::vector<TimelineRange> ranges = device.TakeRanges();
    if (ranges.empty()) return Status::Ok();
    const std::string text = Events(routine, run, site, rank, ranges);
    std::lock_guard<std::mutex> lock(mutex);
    if (AppendTo(path, text)) return Status::Ok();
    return Error(Code::kUnavailable, std::strerror(errno));
  });
  std::lock_guard<std::mutex> lock(mutex);
  if (status.ok() || std::strncmp(reported, path, sizeof(reported) - 1) == 0) return;
  std::fprintf(stderr, "jaxmg: JAXMG_TRACE: can't write %s: %s\n", path, status.text());
  std::strncpy(reported, path, sizeof(reported) - 1);
}

}  // namespace jaxmg
