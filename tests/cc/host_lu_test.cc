// LU factorizations in host memory (engine/offload) on threads, with textbook LAPACK, beside a
// plain factorization: every order, widths and tiles that divide nothing, ranks that have no
// columns, singular matrices, NaN; all substitutions; Getrf of columns that are a part of longer
// ones; the plan; calls that are invalid.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/cc/support/devices/failing_device.h"
#include "tests/cc/support/devices/recording_device.h"
#include "tests/cc/support/distributed.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/routine_cases.h"
#include "tests/cc/support/spread_factor.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/tunings.h"
#include "xla_ffi/engine/offload/host_cache.h"
#include "xla_ffi/engine/offload/host_plan.h"

namespace jaxmg {
namespace {

using namespace testing;

constexpr int32_t kId = 5;

// The plain factorization of a column-major matrix.
template <typename T>
struct Plain {
  explicit Plain(std::vector<T> matrix, int64_t n) : m(std::move(matrix)) {
    for (int64_t k = 0; k < n; ++k) {
      int64_t best = k;
      for (int64_t i = k; i < n; ++i) {
        if (std::abs(m[k * n + i]) > std::abs(m[k * n + best])) best = i;
      }
      pivots.push_back(best);
      for (int64_t j = 0; j < n; ++j) std::swap(m[j * n + k], m[j * n + best]);
      const T pivot = m[k * n + k];
      if (pivot == T(0)) {
        if (info == 0) info = k + 1;
        sign = 0;
        continue;
      }
      log_abs += std::log(std::abs(pivot));
      sign *= pivot / std::abs(pivot) * T(best == k ? 1 : -1);
      for (int64_t i = k + 1; i < n; ++i) m[k * n + i] /= pivot;
      for (int64_t j = k + 1; j < n; ++j) {
        for (int64_t i = k + 1; i < n; ++i) m[j * n + i] -= m[k * n + i] * m[j * n + k];
      }
    }
  }

  std::vector<T> m;
  std::vector<int64_t> pivots;
  int64_t info = 0;
  double log_abs = 0;
  T sign = 1;
};

// A general matrix in host memory with its factors in the same place or elsewhere; the ranks'
// buffers, right-hand sides and pivots.
template <typename T>
class Offloaded {
 public:
  // kSpread: as for ranks each in a process of its own, which has only its tile columns.
  enum Place { kSame, kSquare, kSpread };

  Offloaded(const HostShape& given, int place, std::vector<T> matrix)
      : shape(Whole(given)),
        a(std::move(matrix)),
        source_(a),
        factor_(place == kSame ? 0 : a.size()) {
    const int64_t n = shape.n;
    b = RandomMatrix<T>(n * shape.nrhs, 3);
    host_.dtype = DtypeName<T>();
    host_.shape = shape;
    for (int64_t j = 0; j < shape.blocks(); ++j) {
      host_.source.push_back({&source_[shape.first(j) * n], n});
      T* const data = place == kSame ? source_.data() : factor_.data();
      host_.factor.push_back({data + shape.first(j) * n, n});
    }
    if (place == kSpread) {
      spread_.emplace(shape, factor_.data());
      shape.spread = true;
    }
    // A RecordingDevice takes interchanged rows for as many as are between two columns.
    const auto size = static_cast<size_t>((shape.rank_columns() + 1) * shape.ld());
    for (int rank = 0; rank < shape.ranks; ++rank) {
      even.emplace_back(size, NaN<T>());
      odd.emplace_back(size, NaN<T>());
      x.push_back(b);
      pivots.emplace_back(n, -1);
      calls.push_back({kId, 0, 0, 0});
      // None, a part or all of L stays on the devices.
      const int64_t all = HostCache<T>::All(shape, rank);
      const int64_t parts[] = {0, all / 3, all};
      cache.emplace_back(parts[(n + shape.width) % 3], NaN<T>());
    }
    status.assign(shape.ranks, -7);
    log_abs.resize(shape.ranks);
    sign.resize(shape.ranks);
  }
  Offloaded(const HostShape& given, int place)
      : Offloaded(given, place, RandomMatrix<T>(given.n * given.n, given.n)) {}

  HostGetrfOperand<T> getrf(int rank) {
    return {shape,
            Precision::kHighest,
            reinterpret_cast<const int32_t*>(&calls[rank]),
            {even[rank].data(), odd[rank].data()},
            {even[rank].data(), odd[rank].data()},
            x[rank].data(),
            x[rank].data(),
            pivots[rank].data(),
            pivots[rank].data(),
            &log_abs[rank],
            &sign[rank],
            &status[rank],
            Finds(rank),
            cache[rank].data(),
            cache[rank].data(),
            static_cast<int64_t>(cache[rank].size())};
  }
  HostGetrsOperand<T> getrs(int rank) {
    return {shape,
            reinterpret_cast<const int32_t*>(&calls[rank]),
            x[rank].data(),
            nullptr,
            pivots[rank].data(),
            Finds(rank),
            cache[rank].data(),
            static_cast<int64_t>(cache[rank].size())};
  }

  // Without a source in host memory, a caller fills the buffer of block column j.
  void Fill(int64_t j) {
    const Tiles tiles = shape.tiles(j);
    for (int64_t p = 0; p < tiles.nonempty(); ++p) {
      T* buffer = (j % 2 == 0 ? even : odd)[tiles.owner(p)].data() +
                  tiles.slot(p) * shape.tile * shape.ld();
      for (int64_t c = 0; c < tiles.width(p); ++c) {
        std::copy_n(&a[(shape.first(j) + tiles.offset(p) + c) * shape.n], shape.n,
                    buffer + c * shape.ld());
      }
    }
  }

  void Call(int64_t block, LuSweep sweep = LuSweep::kUpper) {
    for (HostCall& call : calls) {
      call = {kId, static_cast<int32_t>(block), static_cast<int32_t>(sweep), 0};
    }
  }

  // Factors. Sets the status of the whole matrix, and the determinant.
  void Factor(const Tuning* tuning, bool fills = false) {
    if (fills) host_.source.clear();
    for (int64_t j = 0; j < shape.blocks(); ++j) {
      if (fills) Fill(j);
      Call(j);
      RunAll(tuning, [&](const RankContext& context) {
        return HostGetrfRoutine<T>(context, getrf(context.comm.rank()));
      });
      for (int rank = 1; rank < shape.ranks; ++rank) {
        EXPECT(status[rank] == status[0] && (status[0] < 0 || pivots[rank] == pivots[0]))
            << text() << "ranks differ after block column " << j;
        EXPECT(info != 0 || status[0] != 0 ||
               (x[rank] == x[0] && log_abs[rank] == log_abs[0] && sign[rank] == sign[0]))
            << text() << "ranks differ after block column " << j;
      }
      if (status[0] > 0 && info == 0) info = shape.first(j) + status[0];
      if (status[0] < 0) info = status[0];
      if (info < 0) return;
      sum += log_abs[0];
      phase *= sign[0];
    }
  }

  void Sweep(const Tuning* tuning, LuSweep sweep) {
    const bool up = sweep == LuSweep::kUpper || sweep == LuSweep::kLowerTrans ||
                    sweep == LuSweep::kLowerConjTrans;
    for (int64_t s = 0; s < shape.blocks(); ++s) {
      Call(up ? s : shape.blocks() - 1 - s, sweep);
      RunAll(tuning, [&](const RankContext& context) {
        return HostGetrsRoutine<T>(context, getrs(context.comm.rank()));
      });
    }
    for (int rank = 1; rank < shape.ranks; ++rank) EXPECT(info != 0 || x[rank] == x[0]) << text();
  }

  void Restart() { x.assign(shape.ranks, b); }

  template <typename Program>
  void RunAll(const Tuning* tuning, const Program& program) {
    const auto outcomes = RunOnDevices(shape.ranks, [&](const RankContext& context) {
      if (tuning == nullptr) return program(context);
      Tuned tuned(context.device, *tuning);
      return program(RankContext{tuned, context.comm});
    });
    for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << text() << outcome.message();
  }

  // Returns the relative distance of op(A) x from b.
  double Error(Op op) const {
    double residual = 0, size = 0, norm = 0;
    for (const T& value : a) norm += std::norm(value);
    for (int64_t r = 0; r < shape.nrhs; ++r) {
      for (int64_t i = 0; i < shape.n; ++i) {
        T total = -b[i * shape.nrhs + r];
        for (int64_t j = 0; j < shape.n; ++j) {
          const T value = op == Op::kNone ? a[i * shape.n + j] : a[j * shape.n + i];
          total += (op == Op::kConjTrans ? Conj(value) : value) * x[0][j * shape.nrhs + r];
        }
        residual += std::norm(total);
        size += std::norm(x[0][i * shape.nrhs + r]);
      }
    }
    return size == 0 ? 0 : std::sqrt(residual) / std::sqrt(norm * size);
  }

  std::string text() const {
    return "n " + std::to_string(shape.n) + " nrhs " + std::to_string(shape.nrhs) + " width " +
           std::to_string(shape.width) + " tile " + std::to_string(shape.tile) + " ranks " +
           std::to_string(shape.ranks) + ": ";
  }
  HostMatrix& host() { return host_; }

  HostShape shape;
  std::vector<T> a, b;
  std::vector<std::vector<T>> even, odd, x, cache;
  std::vector<std::vector<int32_t>> pivots;
  std::vector<HostCall> calls;
  std::vector<int32_t> status;
  std::vector<Real<T>> log_abs;
  std::vector<T> sign;
  int64_t info = 0;
  double sum = 0;
  T phase = 1;

 private:
  static HostShape Whole(HostShape shape) {
    shape.whole = true;
    return shape;
  }
  FindHostMatrix Finds(int rank) const {
    auto kept = std::make_shared<const HostMatrix>(spread_ ? spread_->Of(rank, host_) : host_);
    return [kept](int32_t id, std::shared_ptr<const HostMatrix>* found) {
      if (id != kId) return jaxmg::Error(Code::kInvalidArgument, "there is no matrix ", id);
      *found = kept;
      return Status::Ok();
    };
  }

  std::vector<T> source_, factor_;
  std::optional<SpreadFactor<T>> spread_;
  HostMatrix host_;
};

template <typename T>
void CheckShape(const HostShape& shape, int place, const Tuning* tuning, bool fills = false) {
  Offloaded<T> offloaded(shape, place);
  offloaded.Factor(tuning, fills);
  const Plain<T> plain(offloaded.a, shape.n);
  const double limit = 20 * shape.n * kEps<T>;
  EXPECT(offloaded.info == 0) << offloaded.text() << offloaded.info;
  EXPECT(std::abs(offloaded.sum - plain.log_abs) <= 50 * limit * (1 + std::abs(plain.log_abs)))
      << offloaded.text() << offloaded.sum << " is not " << plain.log_abs;
  EXPECT(std::abs(offloaded.phase - plain.sign) <= 50 * limit) << offloaded.text();
  if constexpr (std::is_same_v<T, double>) {
    for (int64_t i = 0; i < shape.n; ++i) {
      const int64_t row = i / shape.width * shape.width + offloaded.pivots[0][i];
      EXPECT(row == plain.pivots[i]) << offloaded.text() << "pivot " << i << " is " << row;
    }
  }
  const auto solved = [&](Op op, const char* how) {
    const double error = offloaded.Error(op);
    EXPECT(error <= limit) << offloaded.text() << "backward error " << error << how;
  };
  offloaded.Sweep(tuning, LuSweep::kLower);
  solved(Op::kNone, "");
  // Factors that are kept solve for other right-hand sides.
  offloaded.Restart();
  offloaded.Sweep(tuning, LuSweep::kUpper);
  offloaded.Sweep(tuning, LuSweep::kLower);
  solved(Op::kNone, " with kept factors");
  offloaded.Restart();
  offloaded.Sweep(tuning, LuSweep::kLowerTrans);
  offloaded.Sweep(tuning, LuSweep::kUpperTrans);
  solved(Op::kTrans, " with the transpose");
  offloaded.Restart();
  offloaded.Sweep(tuning, LuSweep::kLowerConjTrans);
  offloaded.Sweep(tuning, LuSweep::kUpperConjTrans);
  solved(Op::kConjTrans, " with the adjoint");
}

// The widths of block columns of a given number of tiles on each rank.
HostShape ShapeOf(int64_t n, int64_t nrhs, int64_t tile, int64_t slots, int ranks) {
  return {n, nrhs, std::min(n, tile * slots * ranks), tile, ranks};
}

TEST(EveryOrderIsFactoredFromHostMemory) {
  const Tuning gpu = LikeGpu();
  for (int64_t n = 1; n <= 60; ++n) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      const int64_t tile = 1 + (n * 3 + ranks) % 7, slots = 1 + (n + ranks) % 4;
      const int64_t nrhs = std::vector<int64_t>{0, 1, 3}[(n + ranks) % 3];
      const HostShape shape = ShapeOf(n, nrhs, tile, slots, ranks);
      const Tuning* tuning = n % 2 == 0 ? &gpu : nullptr;
      const int place = static_cast<int>(n + 2 * ranks) % 3;
      const bool fills = (n + 2 * ranks) % 5 == 0;
      CheckShape<double>(shape, place, tuning, fills);
      CheckShape<std::complex<float>>(shape, (place + 1) % 3, tuning);
      if (n % 3 != 0) continue;
      CheckShape<float>(shape, place, tuning);
      CheckShape<std::complex<double>>(shape, (place + 2) % 3, tuning, fills);
    }
  }
}

TEST(EveryWidthIsFactoredFromHostMemory) {
  Tuning gpu = LikeGpu(), copied;
  gpu.offload.chunk = 6;
  gpu.lu.swap_bytes = 1 << 10;
  copied.offload.chunk = 1;
  for (int64_t n : {31, 47}) {
    for (int64_t tile : {1, 2, 5, 8, 100}) {
      for (int64_t slots : {1, 2, 3, 5}) {
        for (int ranks : {1, 2, 3}) {
          const HostShape shape = ShapeOf(n, 2, std::min(tile, n), slots, ranks);
          CheckShape<double>(shape, 0, &gpu);
          CheckShape<double>(shape, 1, &copied, /*fills=*/true);
          CheckShape<std::complex<double>>(shape, 1, nullptr);
          CheckShape<double>(shape, 2, &gpu);
          CheckShape<std::complex<float>>(shape, 2, &copied, /*fills=*/true);
        }
      }
    }
  }
}

TEST(StreamsOfFactorsInHostMemoryWaitForEachOther) {
  Tuning gpu = LikeGpu();
  gpu.offload.chunk = 4;
  for (const Tuning& tuning : {gpu, NewHostDevice()->tuning()}) {
    OnStreams(tuning, [&] {
      for (int ranks : {1, 2, 3}) {
        for (int64_t slots : {1, 2, 4}) {
          CheckShape<double>(ShapeOf(45, 3, 4, slots, ranks), ranks % 2, nullptr);
          CheckShape<double>(ShapeOf(37, 1, 3, slots, ranks), 1 - ranks % 2, nullptr, true);
          CheckShape<double>(ShapeOf(44, 2, 4, slots, ranks), 2, nullptr);
        }
      }
    });
  }
}

TEST(EveryAccessToFactorsInHostMemoryIsOrdered) {
  Tuning gpu = LikeGpu(), host = NewHostDevice()->tuning();
  gpu.offload.chunk = 4;
  for (const Tuning& tuning : {gpu, host}) {
    for (int ranks : {1, 2, 3}) {
      for (int64_t slots : {1, 2, 4, -2}) {
        Offloaded<double> offloaded(ShapeOf(50, 2, 4, std::abs(slots), ranks), slots < 0 ? 2 : 0);
        const int64_t blocks = offloaded.shape.blocks();
        // All calls together: a call may leave nothing behind that the next one doesn't wait for.
        Recording recording(ranks);
        const auto outcomes = RunRanks(
            ranks,
            [&](const RankContext& context) -> Status {
              const int rank = context.comm.rank();
              for (int64_t step = 0; step < 5 * blocks; ++step) {
                const int64_t pass = step / blocks, j = step % blocks;
                const LuSweep sweeps[] = {LuSweep::kUpper, LuSweep::kLower, LuSweep::kUpper,
                                          LuSweep::kLowerTrans, LuSweep::kUpperTrans};
                const bool down = pass == 1 || pass == 4;
                offloaded.calls[rank] = {kId, static_cast<int32_t>(down ? blocks - 1 - j : j),
                                         static_cast<int32_t>(sweeps[pass]), 0};
                JAXMG_RETURN_IF_ERROR(
                    pass == 0 ? HostGetrfRoutine<double>(context, offloaded.getrf(rank))
                              : HostGetrsRoutine<double>(context, offloaded.getrs(rank)));
              }
              return Status::Ok();
            },
            kPatience,
            [&](int rank) { return NewRecordingDevice(NewHostDevice(), tuning, recording, rank); });
        for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
        const std::string race = recording.FirstRace();
        EXPECT(race.empty()) << offloaded.text() << race;
      }
    }
  }
}

TEST(SingularMatricesAndNaNInHostMemory) {
  for (int ranks : {1, 2, 3}) {
    for (int64_t bad : {0, 1, 5, 11, 12, 23, 29}) {
      const HostShape shape = ShapeOf(30, 1, 2, 2, ranks);
      // Row `bad` of A is a column of M: all zero, so its pivot is the first that is.
      std::vector<double> a = RandomMatrix<double>(30 * 30, 9);
      std::fill_n(&a[bad * 30], 30, 0.0);
      Offloaded<double> singular(shape, false, a);
      singular.Factor(nullptr);
      EXPECT(singular.info == bad + 1) << singular.text() << singular.info;
      EXPECT(singular.phase == 0 && std::isinf(singular.sum) && singular.sum < 0);
      singular.Sweep(nullptr, LuSweep::kLower);
      bool finite = true;
      for (double value : singular.x[0]) finite = finite && std::isfinite(value);
      EXPECT(!finite) << singular.text();
      a = RandomMatrix<double>(30 * 30, 9);
      a[bad * 30 + 17] = std::numeric_limits<double>::quiet_NaN();
      Offloaded<double> unknown(shape, false, a);
      unknown.Factor(nullptr);
      EXPECT(unknown.info == kNotFinite) << unknown.text() << unknown.info;
      for (double value : unknown.x[0]) EXPECT(std::isnan(value));
      EXPECT(std::isnan(unknown.log_abs[0]) && std::isnan(unknown.sign[0]));
    }
  }
}

// Columns that are a part of longer ones have the factors of columns of their own.
template <typename T>
void CheckPart(int64_t columns, int64_t rows, int64_t above, int64_t below, int ranks, int64_t tile,
               const Tuning& tuning) {
  const int64_t all = above + rows + below;
  const std::vector<T> whole = RandomMatrix<T>(all * columns, 11);
  std::vector<T> part;
  for (int64_t c = 0; c < columns; ++c) {
    part.insert(part.end(), &whole[c * all + above], &whole[c * all + above] + rows);
  }
  Distributed<T> longer({all, columns, ranks, tile}, whole),
      own({rows, columns, ranks, tile}, part);
  std::vector<std::vector<int32_t>> pivots(2 * ranks, std::vector<int32_t>(columns));
  std::vector<std::vector<T>> workspace(2 * ranks);
  std::vector<int32_t> info(2 * ranks, kNoInfo);
  for (bool is_part : {false, true}) {
    const auto outcomes = RunOnDevices(ranks, [&](const RankContext& context) {
      Tuned tuned(context.device, tuning);
      const int rank = context.comm.rank(), at = is_part ? ranks + rank : rank;
      Matrix<T> matrix = is_part ? longer.matrix(rank) : own.matrix(rank);
      if (is_part) {
        matrix.data += above;
        matrix.overflow += above;
      }
      workspace[at].resize(GetrfWorkspace<T>(matrix.tiles, rows, tuning) + 1);
      return Getrf(RankContext{tuned, context.comm}, Precision::kHighest, matrix,
                   RightHandSides<T>{0, nullptr, nullptr}, workspace[at].data(), pivots[at].data(),
                   &info[at], {}, is_part ? rows : 0);
    });
    for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  }
  EXPECT(pivots[0] == pivots[ranks]);
  const std::vector<T> found = longer.Gather(), expected = own.Gather();
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < all; ++r) {
      const bool inside = r >= above && r < above + rows;
      EXPECT(found[c * all + r] == (inside ? expected[c * rows + r - above] : whole[c * all + r]))
          << "row " << r << ", column " << c << " of " << all << " x " << columns;
    }
  }
}

TEST(GetrfTakesColumnsOfAPart) {
  Tuning swaps = LikeGpu();
  swaps.lu.swap_bytes = 1 << 9;
  for (const Tuning& tuning : {LikeGpu(), swaps, NewHostDevice()->tuning()}) {
    for (int ranks : {1, 2, 3}) {
      for (int64_t columns : {1, 7, 16}) {
        for (int64_t more : {0, 1, 9}) {
          CheckPart<double>(columns, columns + more, 3, 2, ranks, 1 + more % 4, tuning);
          CheckPart<std::complex<float>>(columns, columns + more, 0, 5, ranks, 64, tuning);
        }
      }
    }
  }
}

TEST(InvalidCallsOnFactorsFailOnAllRanks) {
  Offloaded<double> offloaded(ShapeOf(20, 1, 2, 2, 2), false);
  const auto expect = [&](const std::string& text, bool factors = true, bool solves = true) {
    for (bool solve : {false, true}) {
      if (!(solve ? solves : factors)) continue;
      const auto outcomes = RunRanks(2, [&](const RankContext& context) {
        const int rank = context.comm.rank();
        return solve ? HostGetrsRoutine<double>(context, offloaded.getrs(rank))
                     : HostGetrfRoutine<double>(context, offloaded.getrf(rank));
      });
      for (const Status& outcome : outcomes) {
        EXPECT(outcome.code() == Code::kInvalidArgument) << outcome.message();
        EXPECT(outcome.message().find(text) != std::string::npos) << outcome.message();
      }
    }
  };
  for (HostCall& call : offloaded.calls) call = {kId + 1, 0, 0, 0};
  expect("there is no matrix 6");
  offloaded.Call(3);
  expect("3 block columns, but the call is on 3");
  offloaded.Call(0, static_cast<LuSweep>(6));
  expect("there is no substitution 6", /*factors=*/false);
  offloaded.Call(0);
  offloaded.host().shape.nrhs = 2;
  expect("isn't that of the call (float64, order 20", true, /*solves=*/false);
  offloaded.host().shape.nrhs = 1;
  offloaded.host().shape.whole = false;
  expect("isn't that of the call (float64, order 20");
  offloaded.host().shape.whole = true;
  offloaded.host().dtype = "float32";
  expect("that was opened (float32, order 20, 1 right-hand sides, whole block columns of 8");
}

TEST(AFailedAllocationOfFactorsFailsOnAllRanks) {
  Offloaded<double> offloaded(ShapeOf(20, 1, 2, 2, 3), false);
  for (bool solves : {false, true}) {
    const auto outcomes = RunRanks(3, [&](const RankContext& context) {
      const int rank = context.comm.rank();
      NoMemory none(context.device);
      const RankContext mine = {rank == 1 ? static_cast<Device&>(none) : context.device,
                                context.comm};
      return solves ? HostGetrsRoutine<double>(mine, offloaded.getrs(rank))
                    : HostGetrfRoutine<double>(mine, offloaded.getrf(rank));
    });
    for (const Status& outcome : outcomes) EXPECT(!outcome.ok());
    EXPECT(outcomes[1].code() == Code::kResourceExhausted) << outcomes[1].message();
  }
}

TEST(EachFailureOfFactorsIsOneOfAllRanksAndTheNextCallWorks) {
  Tuning gpu = LikeGpu();
  gpu.offload.chunk = 4;
  const auto on_streams = [&](int) { return NewAsyncDevice(NewHostDevice(), gpu); };
  for (int ranks : {1, 3}) {
    for (int place : {1, 2}) {
      Offloaded<double> offloaded(ShapeOf(20, 2, 2, 2, ranks), place);
      const auto factor = [&] {
        offloaded.Restart();
        for (auto& pivots : offloaded.pivots) std::fill(pivots.begin(), pivots.end(), -1);
        offloaded.Factor(nullptr);
        offloaded.Sweep(nullptr, LuSweep::kLower);
        const double error = offloaded.Error(Op::kNone);
        EXPECT(error <= 1e-12) << offloaded.text() << error;
      };
      factor();
      const auto block = static_cast<int32_t>(offloaded.shape.blocks() / 2);
      for (int sweep = -1; sweep < kLuSweeps; ++sweep) {
        FailEachCall(
            ranks,
            [&](const RankContext& context) {
              const int rank = context.comm.rank();
              offloaded.calls[rank] = {kId, block, std::max(sweep, 0), 0};
              return sweep < 0 ? HostGetrfRoutine<double>(context, offloaded.getrf(rank))
                               : HostGetrsRoutine<double>(context, offloaded.getrs(rank));
            },
            factor, place == 1 ? DeviceMaker(on_streams) : DeviceMaker(OnHost));
      }
    }
  }
}

TEST(PlansOfFactorsUseTheBudget) {
  for (const Tuning& tuning : {HostTuning(), CudaTuning()}) {
    for (int ranks : {1, 2, 5}) {
      for (int64_t n : {1, 7, 60, 1000, 100000}) {
        int64_t before = 0;
        for (int64_t budget = 1 << 10; budget <= int64_t{1} << 40; budget *= 4) {
          HostShape shape = {n, 3, 0, 0, ranks, true};
          const Status status = PlanHostMatrix<double>(budget, Precision::kChosen, tuning, &shape);
          if (!status.ok()) {
            EXPECT(before == 0) << status.message();
            continue;
          }
          EXPECT(shape.whole && HostBytes<double>(shape, Precision::kChosen, tuning) <= budget);
          EXPECT(shape.width == n || shape.width % (shape.tile * ranks) == 0) << shape.width;
          before = shape.width;
        }
        EXPECT(before == n);
      }
    }
  }
}

}  // namespace
}  // namespace jaxmg
