// OpenObjects: ids, and a Close that waits for those who use an object.
#include "xla_ffi/engine/offload/open_objects.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "tests/cc/support/testing.h"

namespace jaxmg {
namespace {

using namespace testing;

TEST(AnIdIsFoundUntilItIsClosed) {
  OpenObjects<int> all("number");
  const int32_t one = all.Open(5), two = all.Open(6);
  EXPECT(one != two);
  std::shared_ptr<const int> found;
  EXPECT(all.Find(two, &found).ok() && *found == 6);
  found.reset();
  EXPECT(all.Close(two).ok());
  const Status gone = all.Find(two, &found);
  EXPECT(gone.code() == Code::kInvalidArgument && all.Close(two).code() == Code::kInvalidArgument);
  EXPECT(gone.message().find("there is no number ") == 0) << gone.message();
  EXPECT(all.Find(one, &found).ok() && *found == 5);
  EXPECT(all.Open(7) != two);
}

TEST(CloseWaitsForUsers) {
  OpenObjects<int> all("number");
  const int32_t id = all.Open(5);
  std::shared_ptr<const int> first, second;
  EXPECT(all.Find(id, &first).ok() && all.Find(id, &second).ok());
  std::atomic<bool> closed{false};
  std::thread closing([&] {
    EXPECT(all.Close(id).ok());
    closed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  first.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT(!closed && *second == 5);
  second.reset();
  closing.join();
  EXPECT(closed);
}

}  // namespace
}  // namespace jaxmg
