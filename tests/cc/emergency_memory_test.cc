// The emergency memory for exceptions is complete again after allocations and frees in any order.
#include "xla_ffi/base/emergency_memory.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "tests/cc/support/testing.h"

namespace jaxmg {
namespace {

constexpr size_t kSlots = 8, kBytes = 64;

TEST(AllPiecesAreFreedInAnyOrder) {
  EmergencyMemory<kSlots, kBytes> memory;
  for (size_t stride : {1, 3, 5, 7}) {
    std::vector<void*> pieces;
    for (size_t i = 0; i < kSlots; ++i) pieces.push_back(memory.Allocate(kBytes));
    const std::set<void*> different(pieces.begin(), pieces.end());
    EXPECT(different.size() == kSlots && different.count(nullptr) == 0);
    for (void* piece : pieces) {
      EXPECT(reinterpret_cast<uintptr_t>(piece) % alignof(std::max_align_t) == 0);
    }
    EXPECT(memory.Allocate(1) == nullptr);
    for (size_t i = 0; i < kSlots; ++i) EXPECT(memory.Free(pieces[i * stride % kSlots]));
  }
}

TEST(AllocatesPiecesThatFitAndFreesItsOwnAlone) {
  struct {
    char before[kBytes];
    EmergencyMemory<kSlots, kBytes> memory;
    char behind[kBytes];
  } all;
  EXPECT(all.memory.Allocate(kBytes + 1) == nullptr);
  EXPECT(!all.memory.Free(nullptr));
  for (char& other : all.before) EXPECT(!all.memory.Free(&other));
  for (char& other : all.behind) EXPECT(!all.memory.Free(&other));
}

TEST(ThreadsDoNotShareAPiece) {
  EmergencyMemory<64, kBytes> memory;
  std::atomic<int> faults{0};
  std::vector<std::thread> threads;
  for (int mark = 1; mark <= 4; ++mark) {
    threads.emplace_back([&, mark] {
      for (int i = 0; i < 20000; ++i) {
        auto* first = static_cast<unsigned char*>(memory.Allocate(kBytes));
        auto* second = static_cast<unsigned char*>(memory.Allocate(kBytes));
        if (first == nullptr || second == nullptr) {
          ++faults;
          return;
        }
        std::memset(first, mark, kBytes);
        std::memset(second, mark, kBytes);
        for (size_t byte = 0; byte < kBytes; ++byte) {
          faults += first[byte] != mark || second[byte] != mark;
        }
        memory.Free(first);
        memory.Free(second);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(faults == 0) << faults;
}

}  // namespace
}  // namespace jaxmg
