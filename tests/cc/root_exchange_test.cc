// RootExchange moves arrays to the first rank and back, by messages and by one rank for all.
#include "xla_ffi/engine/core/root_exchange.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/comm/communicator.h"
#include "xla_ffi/device/host/device.h"

namespace jaxmg {
namespace {

using namespace testing;

using Array = std::vector<int32_t>;

constexpr int32_t kUntouched = -1;

Array Numbers(int64_t count, int32_t first) {
  Array numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

RootPiece PieceOf(const Array& source, Array& target, int64_t part, int64_t whole) {
  const int64_t bytes = sizeof(int32_t);
  return {source.data(), target.data(), part * bytes, whole * bytes};
}

// The exchanges of all ranks. `Run` makes them, by one rank for all or each rank by itself.
struct Exchanged {
  std::vector<RootExchange> exchanges;
  void Run(bool for_all) {
    const int ranks = static_cast<int>(exchanges.size());
    if (for_all) {
      const auto device = NewHostDevice();
      SoloCommunicator solo;
      EXPECT(RootExchangeForAll({*device, solo}, exchanges).ok());
      return;
    }
    const auto outcomes = RunRanks(
        ranks,
        [&](const RankContext& context) {
          return RootExchangeRoutine(context, exchanges[context.comm.rank()]);
        },
        kPatience, [](int) { return NewAsyncDevice(NewHostDevice(), LikeGpu()); });
    for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  }
};

// `whole` in parts of `part` elements, one for each rank. Elements beyond its end are kUntouched.
std::vector<Array> PartsOf(const Array& whole, int64_t part, int ranks) {
  std::vector<Array> parts(ranks, Array(part, kUntouched));
  for (size_t i = 0; i < whole.size(); ++i) parts[i / part][i % part] = whole[i];
  return parts;
}

TEST(PartsComeToTheFirstRankAndBack) {
  for (const bool for_all : {false, true}) {
    for (const int ranks : {1, 2, 5}) {
      for (const int64_t part : {1, 3}) {
        for (int64_t whole = part + (ranks > 1); whole <= part * ranks; ++whole) {
          const Array array = Numbers(whole, 10);
          const std::vector<Array> parts = PartsOf(array, part, ranks);
          std::vector<Array> gathered(ranks, Array(whole, kUntouched));
          std::vector<Array> scattered(ranks, Array(part, kUntouched));
          Exchanged there, back;
          for (int rank = 0; rank < ranks; ++rank) {
            there.exchanges.push_back({true, {PieceOf(parts[rank], gathered[rank], part, whole)}});
            back.exchanges.push_back(
                {false, {PieceOf(gathered[rank], scattered[rank], part, whole)}});
          }
          there.Run(for_all);
          EXPECT(gathered[0] == array) << ranks << " " << part << " " << whole;
          for (int rank = 1; rank < ranks; ++rank) {
            EXPECT(gathered[rank] == Array(whole, kUntouched)) << rank;
          }
          back.Run(for_all);
          EXPECT(scattered == parts) << ranks << " " << part << " " << whole;
        }
      }
    }
  }
}

TEST(AllRanksGetTheFirstOnesArray) {
  for (const bool for_all : {false, true}) {
    constexpr int kRanks = 3;
    std::vector<Array> sources, targets(kRanks, Array(4, kUntouched));
    std::vector<Array> parts(kRanks, Array(2, kUntouched));
    Exchanged all;
    for (int rank = 0; rank < kRanks; ++rank) sources.push_back(Numbers(4, 100 * rank));
    for (int rank = 0; rank < kRanks; ++rank) {
      all.exchanges.push_back({false,
                               {PieceOf(sources[rank], targets[rank], 4, 4),
                                PieceOf(sources[rank], parts[rank], 2, 4)}});
    }
    all.Run(for_all);
    EXPECT(targets == std::vector<Array>(kRanks, sources[0]));
    EXPECT(parts == PartsOf(sources[0], 2, kRanks));
  }
}

TEST(TheLastRankGathersWhatOthersHaveLeftAndScatters) {
  constexpr int kRanks = 3, kPart = 2, kWhole = 5;
  const Array array = Numbers(kWhole, 10);
  for (int last = 0; last < kRanks; ++last) {
    std::vector<Array> parts = PartsOf(array, kPart, kRanks);
    std::vector<Array> gathered(kRanks, Array(kWhole, kUntouched));
    std::vector<Array> scattered(kRanks, Array(kPart, kUntouched));
    Array is_root(kRanks, kUntouched);
    std::vector<RootExchange> left;
    Exchanged back;
    for (int rank = 0; rank < kRanks; ++rank) {
      const RootPiece piece = PieceOf(parts[rank], gathered[rank], kPart, kWhole);
      left.push_back(LeaveSources({true, {piece}, &is_root[rank]}));
      parts[rank].assign(kPart, kUntouched);  // the rank has gone on
      back.exchanges.push_back(
          {false, {PieceOf(gathered[rank], scattered[rank], kPart, kWhole)}, &is_root[rank]});
    }
    const auto device = NewHostDevice();
    SoloCommunicator solo;
    EXPECT(RootGatherOnLast({*device, solo}, left, last).ok());
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT(is_root[rank] == (rank == last)) << last << " " << rank;
      EXPECT(gathered[rank] == (rank == last ? array : Array(kWhole, kUntouched))) << rank;
    }
    back.Run(/*for_all=*/true);
    EXPECT(scattered == PartsOf(array, kPart, kRanks)) << last;
  }
}

}  // namespace
}  // namespace jaxmg
