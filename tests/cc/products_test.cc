// Products of matrices distributed by the caller's rows, on the host and on devices with streams.
#include <atomic>
#include <cmath>
#include <complex>
#include <cstring>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/devices/forwarding_blas.h"
#include "tests/cc/support/devices/recording_device.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/engine/products/product.h"

namespace jaxmg {
namespace {

using namespace testing;

// C is m x n, and k is the dimension over which a product sums.
struct Sizes3 {
  int64_t m, n, k;
  int ranks;
  int64_t extra_rows = 0;  // padding rows on each rank, beyond those that the sizes need
};

const Sizes3 kSizes[] = {
    {1, 1, 1, 1},   {5, 4, 3, 1},     {2, 3, 4, 2},      {7, 5, 6, 2, 1}, {5, 8, 5, 3},
    {1, 2, 30, 4},  {2, 1, 3, 4},     {9, 13, 11, 4, 1}, {40, 3, 5, 4},   {3, 3, 90, 3},
    {0, 3, 2, 2},   {3, 0, 2, 2},     {3, 2, 0, 2, 1},   {17, 17, 17, 5}, {33, 33, 7, 4},
    {30, 30, 4, 1}, {26, 26, 150, 2}, {25, 25, 150, 6},
};

const ProductKind kKinds[] = {ProductKind::kRowsTimesRows, ProductKind::kRowsTimesAdjoint,
                              ProductKind::kAdjointTimesRows, ProductKind::kGram,
                              ProductKind::kAdjointOf};

// A matrix and its ranks' blocks, with NaN in the rows of padding.
template <typename T>
struct Spread {
  Spread(int64_t m, int64_t n, const Sizes3& sizes, std::mt19937_64& random)
      : m(m), n(n), block((m + sizes.ranks - 1) / sizes.ranks + sizes.extra_rows), whole(m * n) {
    for (T& value : whole) value = Random<T>(random);
    blocks.assign(sizes.ranks, std::vector<T>(block * n, NaN<T>()));
    Deal();
  }
  void Deal() {
    for (int64_t i = 0; i < m; ++i) {
      std::copy_n(&whole[i * n], n, &blocks[i / block][(i % block) * n]);
    }
  }
  RowBlocks<T> on(int rank) { return {m, n, block, blocks[rank].data()}; }
  T at(int64_t i, int64_t j) const { return whole[i * n + j]; }

  const int64_t m, n, block;
  std::vector<T> whole;
  std::vector<std::vector<T>> blocks;
};

template <typename T>
T Turned(Op op, T x) {
  return op == Op::kConjTrans ? Conj(x) : x;
}

template <typename T>
struct Problem3 {
  Problem3(ProductKind kind, const Sizes3& s, const ProductTerms<T>& terms, Factor factor)
      : kind(kind),
        s(s),
        terms(terms),
        factor(factor),
        random(s.m + 100 * s.n + 7 * s.k + s.ranks),
        x(kind == ProductKind::kAdjointOf ? s.n
          : TurnsX()                      ? s.k
                                          : s.m,
          TurnsX() ? s.m : s.k, s, random),
        y(kind == ProductKind::kRowsTimesAdjoint ? s.n : s.k,
          kind == ProductKind::kRowsTimesAdjoint ? s.k : s.n, s, random),
        c(s.m, s.n, s, random) {
    for (int64_t i = 0; i < y.m; ++i) {
      for (int64_t j = 0; j < y.n; ++j) {
        const bool zero =
            (factor == Factor::kUpper && j < i) || (factor == Factor::kLower && j > i);
        if (zero) y.whole[i * y.n + j] = 0;
      }
    }
    y.Deal();
    if (kind != ProductKind::kGram) return;
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        if (i == j && terms.adjoint == Op::kConjTrans) c.whole[i * c.n + i] = std::real(c.at(i, i));
        c.whole[i * c.n + j] = Turned(terms.adjoint, c.at(j, i));
      }
    }
    c.Deal();
  }

  bool TurnsX() const {
    return kind != ProductKind::kRowsTimesRows && kind != ProductKind::kRowsTimesAdjoint;
  }

  Product<T> on(int rank) { return {kind, x.on(rank), y.on(rank), c.on(rank), terms, factor}; }

  // Returns the sum of an element's products, and the sum of their absolute values.
  std::pair<T, Real<T>> Exact(int64_t i, int64_t j) const {
    if (kind == ProductKind::kAdjointOf) return {Turned(terms.adjoint, x.at(j, i)), 0};
    T sum = 0;
    Real<T> size = 0;
    for (int64_t l = 0; l < s.k; ++l) {
      const T left = TurnsX() ? Turned(terms.adjoint, x.at(l, i)) : x.at(i, l);
      const T right = kind == ProductKind::kRowsTimesAdjoint ? Turned(terms.adjoint, y.at(j, l))
                      : kind == ProductKind::kGram           ? x.at(l, j)
                                                             : y.at(l, j);
      sum += left * right;
      size += std::abs(left * right);
    }
    T before = 0;
    if (terms.beta != 0) before = terms.beta * c.at(i, j);
    return {terms.alpha * sum + before, std::abs(terms.alpha) * size + std::abs(before)};
  }

  std::string name() const {
    std::ostringstream text;
    text << "kind " << static_cast<int>(kind) << " m " << s.m << " n " << s.n << " k " << s.k
         << " ranks " << s.ranks << " beta " << terms.beta << " op "
         << static_cast<int>(terms.adjoint) << " factor " << static_cast<int>(factor) << ": ";
    return text.str();
  }

  const ProductKind kind;
  const Sizes3 s;
  const ProductTerms<T> terms;
  const Factor factor;
  std::mt19937_64 random;
  Spread<T> x, y, c;
};

bool Fits(ProductKind kind, const Sizes3& s) { return kind != ProductKind::kGram || s.m == s.n; }

// Computes the product and returns C's blocks.
template <typename T>
std::vector<std::vector<T>> Run(Problem3<T> problem, const DeviceMaker& make) {
  const auto x = problem.x.blocks, y = problem.y.blocks;
  if (problem.terms.beta == 0) {
    for (auto& block : problem.c.blocks) block.assign(block.size(), NaN<T>());
  }
  const auto outcomes = RunRanks(
      problem.s.ranks,
      [&](const RankContext& context) {
        return ProductRoutine<T>(context, problem.on(context.comm.rank()));
      },
      kPatience, make);
  for (const Status& outcome : outcomes)
    EXPECT(outcome.ok()) << problem.name() << outcome.message();
  for (int rank = 0; rank < problem.s.ranks; ++rank) {
    auto same = [&](const std::vector<T>& before, const std::vector<T>& after) {
      return before.empty() ||
             std::memcmp(before.data(), after.data(), before.size() * sizeof(T)) == 0;
    };
    EXPECT(same(x[rank], problem.x.blocks[rank])) << problem.name() << "X has changed";
    EXPECT(same(y[rank], problem.y.blocks[rank])) << problem.name() << "Y has changed";
  }
  return problem.c.blocks;
}

template <typename T>
void Check(ProductKind kind, const Sizes3& s, const ProductTerms<T>& terms, Factor factor,
           const DeviceMaker& make) {
  const Problem3<T> problem(kind, s, terms, factor);
  const auto blocks = Run(problem, make);
  const int64_t block = problem.c.block;
  for (int64_t i = 0; i < block * s.ranks; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      const T actual = blocks[i / block][(i % block) * s.n + j];
      const auto [exact, size] = i < s.m ? problem.Exact(i, j) : std::pair<T, Real<T>>{0, 0};
      const Real<T> error = std::abs(actual - exact);
      EXPECT(error <= (s.k + 5) * 2 * kEps<T> * size)
          << problem.name() << "element " << i << ", " << j << ": " << error;
    }
  }
  EXPECT(Run(problem, make) == blocks) << problem.name() << "another run has other bits";
}

// Returns tunings that select each algorithm of a product.
std::vector<Tuning> Tunings() {
  Tuning narrow = LikeGpu();  // several pieces of a few rows
  narrow.usual_tile = 2;
  narrow.exchange_bytes = 1;
  Tuning wide = LikeGpu();  // a few pieces; whole products are sent
  wide.usual_tile = 8;
  wide.exchange_bytes = 100;
  Tuning borrows = NewHostDevice()->tuning();
  Tuning borrows_half = borrows;
  borrows_half.usual_tile = 3;
  return {narrow, wide, borrows, borrows_half};
}

template <typename T>
void CheckAll(const DeviceMaker& make) {
  for (const Sizes3& s : kSizes) {
    for (const ProductKind kind : kKinds) {
      if (!Fits(kind, s)) continue;
      for (const Op op : {Op::kConjTrans, Op::kTrans}) {
        Check<T>(kind, s, {1, 0, Precision::kHighest, op}, Factor::kGeneral, make);
        if (kind == ProductKind::kAdjointOf) continue;
        Check<T>(kind, s, {Real<T>(-1.5), Real<T>(0.5), Precision::kHighest, op}, Factor::kGeneral,
                 make);
      }
      if (kind != ProductKind::kRowsTimesRows) continue;
      for (const Factor factor : {Factor::kUpper, Factor::kLower}) {
        Check<T>(kind, s, {1, 0}, factor, make);
        Check<T>(kind, s, {2, -1}, factor, make);
      }
    }
  }
}

template <typename T>
void CheckEveryDevice() {
  CheckAll<T>(OnHost);
  for (const Tuning& tuning : Tunings()) {
    if (tuning.borrow_panels) {
      CheckAll<T>([&](int) { return std::make_unique<TunedHost>(tuning); });
    } else {
      CheckAll<T>([&](int) { return NewAsyncDevice(NewHostDevice(), tuning); });
    }
  }
}

TEST(ProductsOfFloat) { CheckEveryDevice<float>(); }
TEST(ProductsOfDouble) { CheckEveryDevice<double>(); }
TEST(ProductsOfComplexFloat) { CheckEveryDevice<std::complex<float>>(); }
TEST(ProductsOfComplexDouble) { CheckEveryDevice<std::complex<double>>(); }

TEST(OrdersBeyondTheUsualTile) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const ProductKind kind : kKinds) {
      Check<double>(kind, {301, 301, 40, ranks}, {}, Factor::kGeneral, OnHost);
      Check<double>(kind, {301, 301, 40, ranks}, {}, Factor::kGeneral,
                    [&](int) { return NewAsyncDevice(NewHostDevice(), LikeGpu()); });
    }
  }
}

// Counts the multiplications of products.
class CountingBlas : public ForwardingBlas<double> {
 public:
  CountingBlas(Blas<double>& real, std::atomic<int64_t>& count)
      : ForwardingBlas<double>(real), count_(count) {}
  Status Gemm(Stream stream, Op op_a, Op op_b, int64_t m, int64_t n, int64_t k, double alpha,
              const double* a, int64_t lda, const double* b, int64_t ldb, double beta, double* c,
              int64_t ldc) override {
    count_ += m * n * k;
    return ForwardingBlas<double>::Gemm(stream, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c,
                                        ldc);
  }

 protected:
  Status Run(Stream, const char*, std::vector<MemoryAccess>, const std::string&,
             std::function<Status()> call) override {
    return call();
  }

 private:
  std::atomic<int64_t>& count_;
};

class CountingDevice : public TunedHost {
 public:
  CountingDevice(const Tuning& tuning, std::atomic<int64_t>& count)
      : TunedHost(tuning), blas_(this->blas<double>(), count) {
    BlasByPrecision<double> all;
    all.fill(&blas_);
    Offer<double>(all, solver<double>(), eigen<double>());
  }

 private:
  CountingBlas blas_;
};

int64_t Multiplications(ProductKind kind, const Sizes3& s, const Tuning& tuning,
                        Factor factor = Factor::kGeneral) {
  std::atomic<int64_t> count{0};
  Run(Problem3<double>(kind, s, {}, factor),
      [&](int) { return std::make_unique<CountingDevice>(tuning, count); });
  return count;
}

TEST(GramAndTrianglesTakeHalfOfTheOperations) {
  Tuning copies = LikeGpu(), borrows = NewHostDevice()->tuning();
  copies.usual_tile = borrows.usual_tile = 4;
  for (const Tuning& tuning : {copies, borrows}) {
    for (const int ranks : {1, 2, 3, 4, 5}) {
      const int64_t n = 120, k = 50, all = n * n * k;
      const Sizes3 s = {n, n, k, ranks}, square = {n, n, n, ranks};
      EXPECT(Multiplications(ProductKind::kAdjointTimesRows, s, tuning) == all) << ranks;
      const int64_t gram = Multiplications(ProductKind::kGram, s, tuning);
      EXPECT(gram >= all / 2 && gram <= all * 0.54) << ranks << ": " << 1.0 * gram / all;
      for (const Factor factor : {Factor::kUpper, Factor::kLower}) {
        const int64_t count = Multiplications(ProductKind::kRowsTimesRows, square, tuning, factor);
        EXPECT(count <= n * n * n * 0.54) << ranks << ": " << 1.0 * count / (n * n * n);
      }
    }
  }
}

// No rank computes more than its share of a Gram matrix.
TEST(RanksShareGram) {
  Tuning tuning = NewHostDevice()->tuning();
  tuning.usual_tile = 4;
  for (const int ranks : {2, 3, 4, 6}) {
    const int64_t n = 120, k = 50;
    std::vector<std::atomic<int64_t>> counts(ranks);
    for (auto& count : counts) count = 0;
    Run(Problem3<double>(ProductKind::kGram, {n, n, k, ranks}, {}, Factor::kGeneral),
        [&](int rank) { return std::make_unique<CountingDevice>(tuning, counts[rank]); });
    for (const auto& count : counts) {
      EXPECT(count <= 0.56 * n * n * k / ranks) << ranks << ": " << count;
    }
  }
}

// A rank's workspace is smaller than its rows, if it has many rows.
TEST(WorkspaceIsSmallerThanTheRows) {
  Tuning tuning = LikeGpu();
  tuning.usual_tile = 16;
  tuning.exchange_bytes = 1000;
  const Ranks ranks = {4, 0, tuning};
  const RowBlocks<double> square = {4000, 4000, 1000, nullptr}, tall = {100000, 40, 25000, nullptr},
                          small = {40, 40, 10, nullptr};
  const int64_t rows = 1000 * 4000;
  EXPECT(RowsTimesRowsSpace(ranks, square) == 2 * 16 * 4000);
  EXPECT(RowsTimesAdjointSpace(ranks, square) == 2 * 16 * 4000);
  EXPECT(AdjointTimesRowsSpace(ranks, square, square, square) < rows / 10);
  EXPECT(GramSpace(ranks, square, square) < rows / 40);
  EXPECT(AdjointOfSpace(ranks, square, square) < rows / 100);
  EXPECT(AdjointTimesRowsSpace(ranks, tall, tall, small) < 25000 * 40 / 100);
  const Ranks host = {4, 0, NewHostDevice()->tuning()}, one = {1, 0, tuning};
  for (const Ranks& none : {host, one}) {
    EXPECT(RowsTimesRowsSpace(none, square) == 0);
    EXPECT(AdjointTimesRowsSpace(none, square, square, square) == 0);
    EXPECT(GramSpace(none, square, square) == 0);
    EXPECT(AdjointOfSpace(none, square, square) == 0);
  }
}

TEST(StreamsWaitForEachOther) {
  for (const Tuning& tuning : Tunings()) {
    for (const Sizes3& s : kSizes) {
      for (const ProductKind kind : kKinds) {
        if (!Fits(kind, s)) continue;
        Problem3<double> problem(kind, s, {}, Factor::kGeneral);
        Recording recording(s.ranks);
        const auto outcomes = RunRanks(
            s.ranks,
            [&](const RankContext& context) {
              return ProductRoutine<double>(context, problem.on(context.comm.rank()));
            },
            kPatience,
            [&](int rank) { return NewRecordingDevice(NewHostDevice(), tuning, recording, rank); });
        for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
        const std::string race = recording.FirstRace();
        EXPECT(race.empty()) << problem.name() << race;
      }
    }
  }
}

TEST(RunningOutOfMemoryIsAnErrorOnAllRanks) {
  Problem3<double> problem(ProductKind::kRowsTimesRows, {20, 20, 20, 3}, {}, Factor::kGeneral);
  const auto host = NewHostDevice();
  const auto outcomes = RunRanks(
      3,
      [&](const RankContext& context) {
        return ProductRoutine<double>(context, problem.on(context.comm.rank()));
      },
      kPatience,
      [&](int rank) -> std::unique_ptr<Device> {
        if (rank == 1) return std::make_unique<NoMemory>(*host);
        return NewHostDevice();
      });
  for (const Status& outcome : outcomes) {
    EXPECT(outcome.code() == Code::kResourceExhausted) << outcome.message();
  }
}

}  // namespace
}  // namespace jaxmg
