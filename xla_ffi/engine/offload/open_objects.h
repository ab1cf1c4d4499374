// OpenObjects: objects that calls find by an id. Python opens an object before its first call and
// closes it after the last one.
#ifndef JAXMG_XLA_FFI_ENGINE_OFFLOAD_OPEN_OBJECTS_H_
#define JAXMG_XLA_FFI_ENGINE_OFFLOAD_OPEN_OBJECTS_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "xla_ffi/base/status.h"

namespace jaxmg {

// Thread-safe. An id is never used again; one that isn't open is an error.
template <typename T>
class OpenObjects {
 public:
  // `what` names an object in errors; it has static lifetime.
  explicit OpenObjects(const char* what) : what_(what) {}

  int32_t Open(T object) {
    auto entry = std::make_shared<Entry>(std::move(object));
    std::lock_guard<std::mutex> lock(mutex_);
    entries_.emplace(next_, std::move(entry));
    return next_++;
  }

  // No later call finds the object. Waits until those that have found it don't use it any more.
  Status Close(int32_t id) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return NotOpen(id);
    const std::shared_ptr<Entry> entry = found->second;
    entries_.erase(found);
    unused_.wait(lock, [&] { return entry->users == 0; });
    return Status::Ok();
  }

  // The object is in use until *object is destroyed.
  Status Find(int32_t id, std::shared_ptr<const T>* object) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return NotOpen(id);
    const std::shared_ptr<Entry> entry = found->second;
    ++entry->users;
    lock.unlock();  // without memory the constructor calls Release
    *object = std::shared_ptr<const T>(&entry->object, Release{this, entry});
    return Status::Ok();
  }

 private:
  struct Entry {
    explicit Entry(T object) : object(std::move(object)) {}
    const T object;
    int users = 0;
  };

  struct Release {
    OpenObjects* all;
    std::shared_ptr<Entry> entry;
    void operator()(const T*) {
      std::lock_guard<std::mutex> lock(all->mutex_);
      --entry->users;
      all->unused_.notify_all();
    }
  };

  Status NotOpen(int32_t id) const {
    return Error(Code::kInvalidArgument, "there is no ", what_, " ", id, " in host memory");
  }

  const char* const what_;
  std::mutex mutex_;
  std::condition_variable unused_;
  std::map<int32_t, std::shared_ptr<Entry>> entries_;
  int32_t next_ = 1;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_OFFLOAD_OPEN_OBJECTS_H_
