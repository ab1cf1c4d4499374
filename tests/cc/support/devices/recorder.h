// Recorder: records the operations of all streams of all ranks with their memory accesses, and
// finds races in them. For recording_device.h.
#ifndef JAXMG_TESTS_CC_SUPPORT_DEVICES_RECORDER_H_
#define JAXMG_TESTS_CC_SUPPORT_DEVICES_RECORDER_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "xla_ffi/device/device.h"

namespace jaxmg::testing {

// For each stream of each rank, the number of its operations that precede this point.
using VectorClock = std::vector<int64_t>;

struct MemoryAccess {
  Bytes2D block;
  bool writes;
};

struct Operation {
  int lane;  // rank * kNumStreams + stream
  std::string text;
  std::vector<MemoryAccess> accesses;
  VectorClock before;  // the entry of its own lane includes the operation
};

// The operations that all ranks of one call have enqueued.
class Recording {
 public:
  explicit Recording(int ranks) : lanes_(ranks * kNumStreams) {
    for (auto& lane : lanes_) lane.resize(lanes_.size());
  }

  // Names memory, so that descriptions of operations don't depend on addresses.
  void Name(const std::string& name, const void* data, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    memory_[static_cast<const char*>(data)] = {name, bytes};
  }
  std::string PlaceOf(const void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto next = memory_.upper_bound(static_cast<const char*>(data));
    if (next == memory_.begin()) return "?";
    const auto& [begin, named] = *--next;
    const size_t offset = static_cast<const char*>(data) - begin;
    return offset <= named.second ? named.first + "+" + std::to_string(offset) : "?";
  }

  VectorClock& clock(int lane) { return lanes_[lane]; }
  void Add(int lane, std::string text, std::vector<MemoryAccess> accesses) {
    ++lanes_[lane][lane];
    std::lock_guard<std::mutex> lock(mutex_);
    operations_.push_back({lane, std::move(text), std::move(accesses), lanes_[lane]});
  }

  const std::vector<Operation>& operations() const { return operations_; }

  static bool Before(const Operation& a, const Operation& b) {
    return b.before[a.lane] >= a.before[a.lane];
  }

  // Returns the number of operations named `name` that are unordered with an operation named
  // `other` of the same rank.
  int64_t CountConcurrent(const char* name, const char* other) const {
    const auto is = [](const Operation& a, const char* with) { return a.text.rfind(with, 0) == 0; };
    return std::count_if(operations_.begin(), operations_.end(), [&](const Operation& a) {
      return is(a, name) &&
             std::any_of(operations_.begin(), operations_.end(), [&](const Operation& b) {
               return is(b, other) && b.lane / kNumStreams == a.lane / kNumStreams &&
                      !Before(a, b) && !Before(b, a);
             });
    });
  }

  // Describes the first two unordered operations that access the same memory, at least one of them
  // writing.
  std::string FirstRace() const {
    for (size_t i = 0; i < operations_.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const Operation &a = operations_[i], &b = operations_[j];
        if (Before(a, b) || Before(b, a) || !Conflict(a, b)) continue;
        return Describe(a) + " and, unordered, " + Describe(b);
      }
    }
    return "";
  }

 private:
  static std::string Describe(const Operation& a) {
    return "rank " + std::to_string(a.lane / kNumStreams) + " stream " +
           std::to_string(a.lane % kNumStreams) + " " + a.text;
  }
  static bool Conflict(const Operation& a, const Operation& b) {
    for (const MemoryAccess& x : a.accesses) {
      for (const MemoryAccess& y : b.accesses) {
        if ((x.writes || y.writes) && Overlap(x.block, y.block)) return true;
      }
    }
    return false;
  }
  static bool Overlap(const Bytes2D& a, const Bytes2D& b) {
    if (a.columns * a.height == 0 || b.columns * b.height == 0) return false;
    auto begin = [](const Bytes2D& x, size_t c) {
      return static_cast<char*>(x.data) + c * x.pitch;
    };
    if (begin(a, a.columns - 1) + a.height <= begin(b, 0)) return false;
    if (begin(b, b.columns - 1) + b.height <= begin(a, 0)) return false;
    for (size_t i = 0; i < a.columns; ++i) {
      for (size_t j = 0; j < b.columns; ++j) {
        if (begin(a, i) < begin(b, j) + b.height && begin(b, j) < begin(a, i) + a.height)
          return true;
      }
    }
    return false;
  }

  std::mutex mutex_;
  std::vector<VectorClock> lanes_;
  std::map<const char*, std::pair<std::string, size_t>> memory_;
  std::vector<Operation> operations_;
};

// Records the operations of one rank.
class Recorder {
 public:
  Recorder(Recording& recording, int rank) : recording_(recording), rank_(rank) {}

  struct Point : Event {
    VectorClock before;
  };

  int lane(Stream stream) const { return rank_ * kNumStreams + static_cast<int>(stream); }
  int rank() const { return rank_; }
  Recording& recording() { return recording_; }

  void Record(Stream stream, Event* event) {
    static_cast<Point*>(event)->before = recording_.clock(lane(stream));
  }
  void Wait(Stream stream, const Event& event) {
    const VectorClock& before = static_cast<const Point&>(event).before;
    VectorClock& clock = recording_.clock(lane(stream));
    for (size_t i = 0; i < before.size(); ++i) clock[i] = std::max(clock[i], before[i]);
  }

  template <typename T>
  static MemoryAccess Read(const T* data, int64_t ld, int64_t rows, int64_t columns) {
    return {Block(data, ld, rows, columns), false};
  }
  template <typename T>
  static MemoryAccess Write(const T* data, int64_t ld, int64_t rows, int64_t columns) {
    return {Block(data, ld, rows, columns), true};
  }
  template <typename... Values>
  void Add(Stream stream, const char* name, std::vector<MemoryAccess> accesses,
           const Values&... values) {
    std::ostringstream text;
    text << name;
    for (const MemoryAccess& access : accesses) {
      const Bytes2D& b = access.block;
      text << " " << recording_.PlaceOf(b.data) << ":" << b.pitch << ":" << b.height << "x"
           << b.columns << (access.writes ? "!" : "");
    }
    ((text << " " << values), ...);
    recording_.Add(lane(stream), text.str(), std::move(accesses));
  }

 private:
  Recording& recording_;
  const int rank_;
};

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_DEVICES_RECORDER_H_
