// Matrices in host memory (engine/offload) on threads, with textbook LAPACK: every order, widths
// and tiles that divide nothing, ranks that have no columns, matrices that are not positive
// definite; Potrf of a trapezoid; the plan; calls that are invalid.
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
#include "xla_ffi/device/host_ranges.h"
#include "xla_ffi/device/tunings.h"
#include "xla_ffi/engine/cholesky/potrf.h"
#include "xla_ffi/engine/offload/host_cache.h"
#include "xla_ffi/engine/offload/host_plan.h"
#include "xla_ffi/engine/offload/host_potri.h"

namespace jaxmg {
namespace {

using namespace testing;

constexpr int32_t kId = 7;

// Finds one matrix.
FindHostMatrix Knows(const HostMatrix& matrix) {
  auto kept = std::make_shared<const HostMatrix>(matrix);
  return [kept](int32_t id, std::shared_ptr<const HostMatrix>* found) {
    if (id != kId) return Error(Code::kInvalidArgument, "there is no matrix ", id);
    *found = kept;
    return Status::Ok();
  };
}

// A matrix in host memory with its factor in the same place, in another square, or in packed block
// rows; and the ranks' buffers and right-hand sides.
template <typename T>
class Offloaded {
 public:
  // kSpread: as for ranks each in a process of its own, which has only its tile columns.
  enum class Place { kSame, kSquare, kPacked, kSpread };

  Offloaded(const Problem<T>& problem, const HostShape& shape, Place place, bool has_source = true)
      : shape(shape), source_(problem.a), place_(place) {
    const int64_t n = shape.n;
    std::mt19937_64 random(3);
    b.resize(n * shape.nrhs);
    for (T& value : b) value = Random<T>(random);
    // The other triangle must not be read, apart from that of diagonal tiles.
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < i / shape.width * shape.width; ++j) source_[i * n + j] = NaN<T>();
    }
    host_.dtype = DtypeName<T>();
    host_.shape = shape;
    factor_.resize(place == Place::kSame ? 0 : n * n, NaN<T>());
    T* square = place == Place::kSquare ? factor_.data() : source_.data();
    int64_t packed = 0;
    for (int64_t j = 0; j < shape.blocks(); ++j) {
      const int64_t at = shape.first(j) * (n + 1);
      if (has_source) host_.source.push_back({&source_[at], n});
      if (place == Place::kSpread) continue;
      if (place != Place::kPacked) {
        host_.factor.push_back({square + at, n});
      } else {
        host_.factor.push_back({factor_.data() + packed, shape.rows(j)});
        packed += shape.rows(j) * shape.columns(j);
      }
    }
    if (place == Place::kSpread) {
      spread_.emplace(shape, factor_.data());
      this->shape.spread = true;
    }
    const auto size = static_cast<size_t>(shape.rank_columns() * shape.ld());
    for (int rank = 0; rank < shape.ranks; ++rank) {
      even.emplace_back(size, NaN<T>());
      odd.emplace_back(size, NaN<T>());
      x.push_back(b);
      calls.push_back({kId, 0, 0, 0});
    }
    // None, a part or all of the factor stays on the devices.
    for (int rank = 0; rank < shape.ranks; ++rank) {
      const int64_t all = HostCache<T>::All(shape, rank);
      const int64_t parts[] = {0, all / 3, all};
      cache.emplace_back(parts[(shape.n + shape.width) % 3], NaN<T>());
    }
    status.assign(shape.ranks, -1);
    log_det.resize(shape.ranks);
    // A ring whose slots are smaller than most columns, or hold some of them.
    if ((shape.n + shape.tile) % 2 == 0) return;
    ring_.resize(shape.ranks * 8 * 64 * (1 + shape.n % 7));
    host_.ring = {ring_.data(), ring_.size(), 2};
    for (HostBlock& block : host_.source) block.pageable = true;
    for (HostBlock& block : host_.factor) block.pageable = true;
    if (spread_) spread_->SetPageable();
  }

  // Fills the buffers with a block column, as a caller of a matrix without a source does.
  void Fill(int64_t j) {
    const Tiles tiles = shape.tiles(j);
    for (int64_t p = 0; p < tiles.nonempty(); ++p) {
      T* buffer = (j % 2 == 0 ? even : odd)[tiles.owner(p)].data() +
                  tiles.slot(p) * shape.tile * shape.ld();
      for (int64_t c = 0; c < tiles.width(p); ++c) {
        const int64_t row = shape.first(j) + tiles.offset(p) + c;
        for (int64_t r = tiles.offset(p); r < shape.rows(j); ++r) {
          buffer[c * shape.ld() + r] = source_[row * shape.n + shape.first(j) + r];
        }
      }
    }
  }

  HostPotrfOperand<T> potrf(int rank) {
    return {shape,
            Precision::kHighest,
            reinterpret_cast<const int32_t*>(&calls[rank]),
            {even[rank].data(), odd[rank].data()},
            {even[rank].data(), odd[rank].data()},
            x[rank].data(),
            x[rank].data(),
            &log_det[rank],
            &status[rank],
            Knows(HostOf(rank)),
            cache[rank].data(),
            cache[rank].data(),
            static_cast<int64_t>(cache[rank].size())};
  }
  HostSolveOperand<T> solve(int rank) {
    return {shape,
            reinterpret_cast<const int32_t*>(&calls[rank]),
            x[rank].data(),
            nullptr,
            Knows(HostOf(rank)),
            cache[rank].data(),
            static_cast<int64_t>(cache[rank].size())};
  }

  HostPotriOperand<T> potri(int rank) {
    return {shape, reinterpret_cast<const int32_t*>(&calls[rank]), even[rank].data(),
            odd[rank].data(), Knows(HostOf(rank))};
  }
  // The routines by number.
  Status Routine(int routine, const RankContext& context) {
    const int rank = context.comm.rank();
    if (routine == 0) return HostPotrfRoutine<T>(context, potrf(rank));
    if (routine == 1) return HostSolveRoutine<T>(context, solve(rank));
    return HostPotriRoutine<T>(context, potri(rank));
  }

  void Call(int64_t block, int direction = 0) {
    for (HostCall& call : calls) call = {kId, static_cast<int32_t>(block), direction, 0};
  }

  // Factors and solves. Returns the sum of the logarithms, or NaN if a status is not 0.
  Real<T> Run(const Tuning* tuning, bool fills = false) {
    Real<T> sum = 0;
    for (int64_t j = 0; j < shape.blocks(); ++j) {
      if (fills) Fill(j);
      Call(j);
      RunAll(tuning, [&](const RankContext& context) {
        return HostPotrfRoutine<T>(context, potrf(context.comm.rank()));
      });
      for (int rank = 1; rank < shape.ranks; ++rank) {
        EXPECT(status[rank] == status[0] &&
               (status[0] != 0 || (x[rank] == x[0] && log_det[rank] == log_det[0])))
            << text() << "ranks differ after block column " << j;
      }
      if (status[0] != 0) return NAN;
      sum += log_det[0];
    }
    for (int64_t j = shape.blocks(); j-- > 0;) Sweep(tuning, j, 1);
    return sum;
  }

  void Sweep(const Tuning* tuning, int64_t j, int direction) {
    Call(j, direction);
    RunAll(tuning, [&](const RankContext& context) {
      return HostSolveRoutine<T>(context, solve(context.comm.rank()));
    });
    for (int rank = 1; rank < shape.ranks; ++rank) EXPECT(x[rank] == x[0]) << text();
  }

  // Replaces the factor by the inverse.
  void Invert(const Tuning* tuning) {
    for (int64_t j = shape.blocks(); j-- > 0;) {
      Call(j);
      RunAll(tuning, [&](const RankContext& context) { return Routine(2, context); });
      const Tiles tiles = shape.tiles(j);
      for (int64_t c = 0; c < shape.columns(j); ++c) {
        const int64_t p = c / shape.tile;
        const T* column =
            odd[tiles.owner(p)].data() + (tiles.slot(p) * shape.tile + c % shape.tile) * shape.ld();
        for (int64_t r = c; r < shape.rows(j); ++r) {
          EXPECT(column[r] == l(shape.first(j) + r, shape.first(j) + c)) << text() << "not stored";
        }
      }
    }
  }

  template <typename Program>
  void RunAll(const Tuning* tuning, const Program& program) {
    const auto outcomes = RunOnDevices(shape.ranks, [&](const RankContext& context) {
      if (tuning == nullptr) return program(context);
      Tuned tuned(context.device, *tuning);
      return program(RankContext{tuned, context.comm});
    });
    for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << text() << outcome.message();
  }

  // Element (row, column) of L, row >= column.
  T l(int64_t row, int64_t column) const {
    const int64_t j = column / shape.width, first = shape.first(j);
    if (!spread_) {
      const HostBlock& block = host_.factor[j];
      return static_cast<T*>(block.data)[(column - first) * block.ld + row - first];
    }
    const int64_t p = (column - first) / shape.tile;
    const HostMatrix host = HostOf(shape.tiles(j).owner(p));
    const HostBlock& block = host.factor[j];
    const int64_t stored = host.StoredColumn(p) + (column - first) % shape.tile;
    return static_cast<T*>(block.data)[stored * block.ld + row - first];
  }

  std::string text() const {
    return "n " + std::to_string(shape.n) + " nrhs " + std::to_string(shape.nrhs) + " width " +
           std::to_string(shape.width) + " tile " + std::to_string(shape.tile) + " ranks " +
           std::to_string(shape.ranks) + " place " + std::to_string(static_cast<int>(place_)) +
           ": ";
  }

  HostShape shape;
  std::vector<T> b;
  std::vector<std::vector<T>> even, odd, x, cache;
  std::vector<HostCall> calls;
  std::vector<int32_t> status;
  std::vector<Real<T>> log_det;
  HostMatrix& host() { return host_; }

 private:
  // What a rank knows of the matrix.
  HostMatrix HostOf(int rank) const {
    if (!spread_) return host_;
    HostMatrix host = spread_->Of(rank, host_);
    if (ring_.empty()) return host;
    // Each process has a ring of its own.
    const size_t each = ring_.size() / shape.ranks;
    int first = rank;
    while (first > 0 && spread_->Process(first - 1) == spread_->Process(rank)) --first;
    host.ring.data = const_cast<char*>(ring_.data()) + first * each;
    host.ring.bytes = each * host.local_ranks();
    return host;
  }

  std::vector<T> source_, factor_;
  std::optional<SpreadFactor<T>> spread_;
  std::vector<char> ring_;
  HostMatrix host_;
  const Place place_;
};

// Returns the relative distance of A x from b.
template <typename T>
double BackwardError(const Problem<T>& problem, const std::vector<T>& b, const std::vector<T>& x,
                     int64_t nrhs) {
  double residual = 0, size = 0;
  for (int64_t r = 0; r < nrhs; ++r) {
    for (int64_t i = 0; i < problem.n; ++i) {
      T sum = -b[i * nrhs + r];
      for (int64_t j = 0; j < problem.n; ++j) sum += problem.a[i * problem.n + j] * x[j * nrhs + r];
      residual += std::norm(sum);
      size += std::norm(x[i * nrhs + r]);
    }
  }
  return size == 0 ? 0 : std::sqrt(residual) / (problem.norm() * std::sqrt(size));
}

// Returns the relative distance of L L^H from conj(A), and the sum of the diagonal's logarithms.
template <typename T>
double FactorError(const Problem<T>& problem, const Offloaded<T>& offloaded, double* log_det) {
  double distance = 0;
  *log_det = 0;
  for (int64_t i = 0; i < problem.n; ++i) {
    *log_det += 2 * std::log(std::abs(offloaded.l(i, i)));
    for (int64_t j = 0; j <= i; ++j) {
      T sum = -Conj(problem.a[i * problem.n + j]);
      for (int64_t k = 0; k <= j; ++k) sum += offloaded.l(i, k) * Conj(offloaded.l(j, k));
      distance += std::norm(sum);
    }
  }
  return std::sqrt(distance) / problem.norm();
}

// Returns the relative distance of M Z from the identity, Z = M^-1 where the factor was.
template <typename T>
double InverseError(const Problem<T>& problem, const Offloaded<T>& offloaded) {
  double distance = 0, size = 0;
  const int64_t n = problem.n;
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < n; ++i) {
      T sum = i == j ? -1 : 0;
      for (int64_t k = 0; k < n; ++k) {
        const T z = k >= j ? offloaded.l(k, j) : Conj(offloaded.l(j, k));
        sum += Conj(problem.a[i * n + k]) * z;
      }
      distance += std::norm(sum);
      size += std::norm(i >= j ? offloaded.l(i, j) : offloaded.l(j, i));
    }
  }
  return std::sqrt(distance) / (problem.norm() * std::sqrt(size));
}

template <typename T>
using Place = typename Offloaded<T>::Place;

template <typename T>
void CheckShape(const HostShape& shape, int place, const Tuning* tuning, bool fills = false) {
  Problem<T> problem({shape.n, shape.ranks, 0});
  Offloaded<T> offloaded(problem, shape, static_cast<Place<T>>(place), !fills);
  const Real<T> log_det = offloaded.Run(tuning, fills);
  double expected = 0;
  const double factor = FactorError(problem, offloaded, &expected);
  const double limit = 10 * shape.n * kEps<T>;
  EXPECT(factor <= limit) << offloaded.text() << "L L^H differs by " << factor;
  EXPECT(std::abs(log_det - expected) <= limit * (1 + std::abs(expected)))
      << offloaded.text() << log_det << " is not " << expected;
  const double error = BackwardError(problem, offloaded.b, offloaded.x[0], shape.nrhs);
  EXPECT(error <= limit) << offloaded.text() << "backward error " << error;
  // A factor that is kept solves for other right-hand sides.
  for (auto& x : offloaded.x) x = offloaded.b;
  for (int64_t j = 0; j < shape.blocks(); ++j) offloaded.Sweep(tuning, j, 0);
  for (int64_t j = shape.blocks(); j-- > 0;) offloaded.Sweep(tuning, j, 1);
  const double again = BackwardError(problem, offloaded.b, offloaded.x[0], shape.nrhs);
  EXPECT(again <= limit) << offloaded.text() << "backward error with the kept factor " << again;
  offloaded.Invert(tuning);
  const double inverse = InverseError(problem, offloaded);
  EXPECT(inverse <= limit) << offloaded.text() << "residual of the inverse " << inverse;
}

// The widths of block columns of a given number of tiles on each rank.
HostShape ShapeOf(int64_t n, int64_t nrhs, int64_t tile, int64_t slots, int ranks) {
  return {n, nrhs, std::min(n, tile * slots * ranks), tile, ranks};
}

TEST(EveryOrderIsSolvedFromHostMemory) {
  const Tuning gpu = LikeGpu();
  for (int64_t n = 1; n <= 60; ++n) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      const int64_t tile = 1 + (n * 3 + ranks) % 7, slots = 1 + (n + ranks) % 4;
      const int64_t nrhs = std::vector<int64_t>{0, 1, 3}[(n + ranks) % 3];
      const HostShape shape = ShapeOf(n, nrhs, tile, slots, ranks);
      const Tuning* tuning = n % 2 == 0 ? &gpu : nullptr;
      const int place = static_cast<int>(n + 2 * ranks) % 4;
      CheckShape<double>(shape, place, tuning);
      CheckShape<std::complex<float>>(shape, (place + 1) % 4, tuning);
      if (n % 3 != 0) continue;
      CheckShape<float>(shape, (place + 3) % 4, tuning);
      CheckShape<std::complex<double>>(shape, (place + 2) % 4, tuning);
    }
  }
}

TEST(EveryWidthIsSolvedFromHostMemory) {
  Tuning gpu = LikeGpu(), copied;
  gpu.offload.chunk = 6;
  copied.cholesky.panel_block = 5;
  copied.offload.chunk = 1;
  for (int64_t n : {31, 47}) {
    for (int64_t tile : {1, 2, 5, 8, 100}) {
      for (int64_t slots : {1, 2, 3, 5}) {
        for (int ranks : {1, 2, 3}) {
          const HostShape shape = ShapeOf(n, 2, std::min(tile, n), slots, ranks);
          CheckShape<double>(shape, 0, &gpu);
          CheckShape<double>(shape, 2, &copied, /*fills=*/true);
          CheckShape<std::complex<double>>(shape, 1, nullptr);
          CheckShape<double>(shape, 3, &gpu);
          CheckShape<std::complex<float>>(shape, 3, &copied, /*fills=*/true);
        }
      }
    }
  }
}

TEST(StreamsOfHostMemoryWaitForEachOther) {
  Tuning gpu = LikeGpu();
  gpu.offload.chunk = 4;
  for (const Tuning& tuning : {gpu, NewHostDevice()->tuning()}) {
    OnStreams(tuning, [&] {
      for (int ranks : {1, 2, 3}) {
        for (int64_t slots : {1, 2, 4}) {
          CheckShape<double>(ShapeOf(45, 3, 4, slots, ranks), ranks % 3, nullptr);
          CheckShape<double>(ShapeOf(37, 1, 3, slots, ranks), ranks % 3, nullptr, true);
          CheckShape<double>(ShapeOf(44, 2, 4, slots, ranks), 3, nullptr);
        }
      }
    });
  }
}

TEST(EveryAccessToHostMemoryIsOrdered) {
  Tuning gpu = LikeGpu(), host = NewHostDevice()->tuning();
  gpu.offload.chunk = 4;
  for (const Tuning& tuning : {gpu, host}) {
    for (int ranks : {1, 2, 3}) {
      for (int64_t slots : {1, 2, 4, -2}) {
        const HostShape shape = ShapeOf(50, 2, 4, std::abs(slots), ranks);
        Problem<double> problem({shape.n, ranks, 0});
        Offloaded<double> offloaded(problem, shape,
                                    slots < 0 ? Place<double>::kSpread : Place<double>::kSame);
        // All calls together: a call may leave nothing behind that the next one doesn't wait for.
        Recording recording(ranks);
        const auto outcomes = RunRanks(
            ranks,
            [&](const RankContext& context) -> Status {
              const int rank = context.comm.rank();
              for (int64_t step = 0; step < 4 * shape.blocks(); ++step) {
                const int64_t sweep = step / shape.blocks(), j = step % shape.blocks();
                const int64_t block = sweep >= 2 ? shape.blocks() - 1 - j : j;
                offloaded.calls[rank] = {kId, static_cast<int32_t>(block), sweep == 2, 0};
                JAXMG_RETURN_IF_ERROR(offloaded.Routine(std::vector{0, 1, 1, 2}[sweep], context));
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

TEST(TheStatusCountsTheWholeMatrix) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int ranks : {1, 2, 3}) {
    const HostShape shape = ShapeOf(30, 1, 2, 2, ranks);
    for (int64_t bad : {0, 1, 5, 11, 12, 23, 29}) {
      for (double value : {-1.0, nan}) {
        Problem<double> problem({30, ranks, 0});
        problem.a[bad * 30 + bad] = value;
        Offloaded<double> offloaded(problem, shape, Place<double>::kPacked);
        EXPECT(std::isnan(offloaded.Run(nullptr)));
        for (int rank = 0; rank < ranks; ++rank) {
          EXPECT(offloaded.status[rank] == bad + 1)
              << offloaded.text() << offloaded.status[rank] << " is not " << bad + 1;
          EXPECT(std::isnan(offloaded.log_det[rank]));
          for (double x : offloaded.x[rank]) EXPECT(std::isnan(x));
        }
      }
    }
  }
}

// Potrf of columns with more rows is the factorization of the first columns of a square.
template <typename T>
void CheckTrapezoid(int64_t columns, int64_t below, int ranks, int64_t tile, int64_t nrhs,
                    const Tuning& tuning) {
  const int64_t rows = columns + below, order = 100;
  Problem<T> problem({rows, 1, 0});
  std::vector<T> first(rows * columns);
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r)
      first[c * rows + r] = r < c ? NaN<T>() : problem.a[c * rows + r];
  }
  Distributed<T> parts({rows, columns, ranks, tile}, first);
  const std::vector<T> b = RandomMatrix<T>(columns * nrhs, 5);
  std::vector<std::vector<T>> x(ranks, b), local(ranks), workspace(ranks);
  std::vector<std::vector<int>> stored(ranks, std::vector<int>(parts.tiles.nonempty()));
  std::vector<int32_t> info(ranks, std::numeric_limits<int32_t>::max());
  std::vector<Real<T>> log_det(ranks);
  const auto outcomes = RunOnDevices(ranks, [&](const RankContext& context) {
    const int rank = context.comm.rank();
    Tuned tuned(context.device, tuning);
    local[rank].resize(LocalRightHandSides(parts.tiles, nrhs) + 1);
    workspace[rank].resize(PotrfWorkspace<T>(parts.tiles, rows, Precision::kHighest, tuning) + 1);
    PartOfMatrix part;
    part.rows_below = below;
    part.order = order;
    part.stores = [&](Flow& flow, int64_t k, Data& diagonal, Data& under) {
      Step<T> on(flow, Stream::kStore);
      on.Reads(diagonal, under);
      ++stored[rank][k];
    };
    const Matrix<T> matrix = parts.matrix(rank);
    const RightHandSides<T> rhs = {nrhs, x[rank].data(), local[rank].data()};
    const RankContext mine = {tuned, context.comm};
    JAXMG_RETURN_IF_ERROR(Potrf(mine, Precision::kHighest, matrix, rhs, workspace[rank].data(),
                                &info[rank], &log_det[rank], true, part));
    return GatherLocal(mine, matrix, rhs);
  });
  const std::string text = Name<T>({rows, columns, ranks, tile}) + "nrhs " + std::to_string(nrhs);
  for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << text << outcome.message();
  const std::vector<T> l = parts.Gather();
  double distance = 0;
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = c; r < rows; ++r) {
      T sum = -first[c * rows + r];
      for (int64_t k = 0; k <= c; ++k) sum += l[k * rows + r] * Conj(l[k * rows + c]);
      distance += std::norm(sum);
    }
    for (int64_t i = 0; i < nrhs; ++i) {  // Y L^H = B
      T sum = -b[c * nrhs + i];
      for (int64_t k = 0; k <= c; ++k) sum += x[0][k * nrhs + i] * Conj(l[k * rows + c]);
      distance += std::norm(sum);
    }
  }
  EXPECT(std::sqrt(distance) <= 10 * rows * kEps<T> * problem.norm()) << text << " " << distance;
  for (int64_t p = 0; p < parts.tiles.nonempty(); ++p) {
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT(stored[rank][p] == (parts.tiles.owner(p) == rank ? 1 : 0)) << text;
    }
  }
}

TEST(PotrfTakesRowsBelowTheSquare) {
  Tuning copied;
  for (const Tuning& tuning : {LikeGpu(), LikeGpu(0), NewHostDevice()->tuning(), copied}) {
    for (int ranks : {1, 2, 3, 5}) {
      for (int64_t columns : {1, 4, 13, 24}) {
        for (int64_t below : {0, 1, 7, 40}) {
          const int64_t tile = 1 + (columns + below) % 6, nrhs = below % 3;
          CheckTrapezoid<double>(columns, below, ranks, tile, nrhs, tuning);
          CheckTrapezoid<std::complex<float>>(columns, below, ranks, tile, nrhs, tuning);
          CheckTrapezoid<double>(columns, below, ranks, 64, nrhs, tuning);
        }
      }
    }
  }
}

TEST(InfoOfAPartCountsTheColumnsBefore) {
  for (int ranks : {1, 2}) {
    for (int64_t tile : {3, 64}) {
      const int64_t n = 10;
      std::vector<double> a(n * n);
      for (int64_t i = 0; i < n; ++i) a[i * n + i] = i == 7 ? -1 : 1;
      Distributed<double> parts({n, n, ranks, tile}, a);
      std::vector<int32_t> info(ranks, std::numeric_limits<int32_t>::max());
      RunRanks(ranks, [&](const RankContext& context) {
        const int rank = context.comm.rank();
        PartOfMatrix part;
        part.order = 40;
        std::vector<double> none(1);
        return Potrf(context, Precision::kHighest, parts.matrix(rank),
                     RightHandSides<double>{0, none.data(), none.data()}, none.data(), &info[rank],
                     static_cast<double*>(nullptr), false, part);
      });
      EXPECT(*std::min_element(info.begin(), info.end()) == 48) << info[0];
    }
  }
}

TEST(InvalidCallsFailOnAllRanks) {
  const HostShape shape = ShapeOf(20, 1, 2, 2, 2);
  Problem<double> problem({20, 2, 0});
  Offloaded<double> offloaded(problem, shape, Place<double>::kSame);
  const auto expect = [&](const std::string& text, bool also_solves = true) {
    for (int routine : {0, 1, 2}) {
      if (routine == 1 && !also_solves) continue;
      const auto outcomes = RunRanks(
          2, [&](const RankContext& context) { return offloaded.Routine(routine, context); });
      for (const Status& outcome : outcomes) {
        EXPECT(outcome.code() == Code::kInvalidArgument) << outcome.message();
        EXPECT(outcome.message().find(text) != std::string::npos) << outcome.message();
      }
    }
  };
  for (HostCall& call : offloaded.calls) call = {kId + 1, 0, 0, 0};
  expect("there is no matrix 8");
  offloaded.Call(3);
  expect("3 block columns, but the call is on 3");
  offloaded.Call(-1);
  expect("but the call is on -1");
  offloaded.Call(0);
  offloaded.host().dtype = "float32";
  expect("that was opened (float32, order 20, 1 right-hand sides, block columns of 8, tiles of 2");
  offloaded.host().dtype = "float64";
  offloaded.host().shape.whole = true;
  expect("isn't that of the call (float64, order 20");
  offloaded.host().shape.whole = false;
  offloaded.host().shape.nrhs = 2;
  expect("isn't that of the call (float64, order 20", /*also_solves=*/false);
  offloaded.host().shape.tile = 4;
  expect("isn't that of the call (float64, order 20");
}

TEST(AFailedAllocationFailsOnAllRanks) {
  const HostShape shape = ShapeOf(20, 1, 2, 2, 3);
  Problem<double> problem({20, 3, 0});
  Offloaded<double> offloaded(problem, shape, Place<double>::kSame);
  for (int routine : {0, 1, 2}) {
    const auto outcomes = RunRanks(3, [&](const RankContext& context) {
      NoMemory none(context.device);
      const bool fails = context.comm.rank() == 1;
      const RankContext mine = {fails ? static_cast<Device&>(none) : context.device, context.comm};
      return offloaded.Routine(routine, mine);
    });
    for (const Status& outcome : outcomes) EXPECT(!outcome.ok());
    EXPECT(outcomes[1].code() == Code::kResourceExhausted) << outcomes[1].message();
  }
}

TEST(EachFailureIsOneOfAllRanksAndTheNextCallWorks) {
  Tuning gpu = LikeGpu();
  gpu.offload.chunk = 4;
  const auto on_streams = [&](int) { return NewAsyncDevice(NewHostDevice(), gpu); };
  for (int ranks : {1, 3}) {
    for (Place<double> place : {Place<double>::kPacked, Place<double>::kSpread}) {
      for (int64_t n : {20, 21}) {  // with a ring, and without
        Problem<double> problem({n, ranks, 0});
        Offloaded<double> offloaded(problem, ShapeOf(n, 2, 2, 2, ranks), place);
        const auto factor = [&] {
          for (auto& x : offloaded.x) x = offloaded.b;
          offloaded.Run(nullptr);
          const double error = BackwardError(problem, offloaded.b, offloaded.x[0], 2);
          EXPECT(error <= 1e-13) << offloaded.text() << error;
        };
        factor();
        for (int routine : {0, 1, 2}) {
          const int64_t block = offloaded.shape.blocks() / 2;
          offloaded.Call(block, routine == 1 ? 1 : 0);
          FailEachCall(
              ranks,
              [&](const RankContext& context) {
                const int rank = context.comm.rank();
                offloaded.calls[rank] = {kId, static_cast<int32_t>(block), routine == 1, 0};
                return offloaded.Routine(routine, context);
              },
              factor, n % 2 == 0 ? DeviceMaker(on_streams) : DeviceMaker(OnHost));
        }
      }
    }
  }
}

TEST(PlansUseTheBudget) {
  for (const Tuning& tuning : {HostTuning(), CudaTuning()}) {
    for (int ranks : {1, 2, 5}) {
      for (int64_t n : {1, 7, 60, 1000, 100000}) {
        for (int64_t nrhs : {0, 3}) {
          int64_t before = 0;
          for (int64_t budget = 1 << 10; budget <= int64_t{1} << 40; budget *= 4) {
            HostShape shape = {n, nrhs, 0, 0, ranks};
            const Status status =
                PlanHostMatrix<double>(budget, Precision::kChosen, tuning, &shape);
            if (!status.ok()) {
              EXPECT(before == 0) << status.message();
              EXPECT(status.message().find("needs at least") != std::string::npos);
              continue;
            }
            EXPECT(HostBytes<double>(shape, Precision::kChosen, tuning) <= budget);
            EXPECT(shape.width == n || shape.width % (shape.tile * ranks) == 0) << shape.width;
            EXPECT(shape.chunk(tuning) % shape.tile == 0);
            before = shape.width;
          }
          EXPECT(before == n);
        }
      }
    }
  }
}

TEST(RangesOfHostMemoryAreCopiedByThreads) {
  for (int threads : {0, 1, 3, 100}) {
    std::vector<char> source(5 * 70), target(5 * 64, 1), touched(10000, 1);
    for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i);
    EXPECT(CopyOnHost({target.data(), source.data(), 5, 60, 64, 70}, threads).ok());
    for (size_t i = 0; i < target.size(); ++i) {
      const char expected = i % 64 < 60 ? source[i / 64 * 70 + i % 64] : char{1};
      EXPECT(target[i] == expected) << i;
    }
    EXPECT(TouchPages(touched.data(), touched.size(), threads).ok());
    EXPECT(std::count(touched.begin(), touched.end(), 0) == 3);
    const size_t large = (size_t{5} << 20) + 3;
    std::vector<char> from(large), to(large);
    for (size_t i = 0; i < large; ++i) from[i] = static_cast<char>(i * 7 >> 3);
    EXPECT(CopyOnHost({to.data(), from.data(), 1, large, large, large}, threads).ok());
    EXPECT(from == to);
  }
}

}  // namespace
}  // namespace jaxmg
