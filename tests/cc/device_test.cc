// The host device: copies, the checks around LAPACK, and the number of BLAS threads.
#include "xla_ffi/device/host/device.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <complex>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/host/lapack.h"
#include "xla_ffi/device/host/stacks/deal.h"

namespace jaxmg {
namespace {

TEST(CopyMovesBlocksBetweenPitches) {
  auto device = NewHostDevice();
  std::vector<float> from(5 * 4), to(7 * 4, -1);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
  const Status status =
      device->Copy(Stream::kMain, Block(to.data() + 2, 7, 3, 4), Block(from.data() + 1, 5, 3, 4));
  EXPECT(status.ok()) << status.message();
  for (int j = 0; j < 4; ++j) {
    for (int i = 0; i < 7; ++i) {
      const float expected = i >= 2 && i < 5 ? from[j * 5 + 1 + i - 2] : -1;
      EXPECT(to[j * 7 + i] == expected) << i << " " << j;
    }
  }
}

template <typename T>
void CheckAdd() {
  constexpr int64_t kM = 3, kN = 4, kLda = 5, kLdb = 7;
  std::vector<T> a(kLda * kN), b(kLdb * kN);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<Real<T>>(i + 1);
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<Real<T>>(100 * i);
  const std::vector<T> before = b;
  auto device = NewHostDevice();
  EXPECT(device->blas<T>().Add(Stream::kMain, kM, kN, a.data(), kLda, b.data(), kLdb).ok());
  for (int64_t j = 0; j < kN; ++j) {
    for (int64_t i = 0; i < kLdb; ++i) {
      const T expected = before[j * kLdb + i] + (i < kM ? a[j * kLda + i] : T(0));
      EXPECT(b[j * kLdb + i] == expected) << i << " " << j;
    }
  }
}

TEST(AddLeavesThePaddingUnchanged) {
  CheckAdd<float>();
  CheckAdd<double>();
  CheckAdd<std::complex<float>>();
  CheckAdd<std::complex<double>>();
}

constexpr Op kOps[] = {Op::kNone, Op::kTrans, Op::kConjTrans};
constexpr Side kSides[] = {Side::kLeft, Side::kRight};
constexpr Uplo kUplos[] = {Uplo::kLower, Uplo::kUpper};
constexpr Diag kDiags[] = {Diag::kNonUnit, Diag::kUnit};

// A column-major matrix whose leading dimension exceeds its number of rows.
template <typename T>
struct Dense {
  Dense(int64_t m, int64_t n) : m(m), n(n), ld(m + 2), data(ld * n, T(kUntouched)) {}
  static Dense Uniform(int64_t m, int64_t n, std::mt19937_64& random) {
    std::uniform_real_distribution<Real<T>> uniform(-1, 1);
    Dense dense(m, n);
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        T value = uniform(random);
        if constexpr (kIsComplex<T>) value = T(std::real(value), uniform(random));
        dense(i, j) = value;
      }
    }
    return dense;
  }
  T& operator()(int64_t i, int64_t j) { return data[j * ld + i]; }
  T operator()(int64_t i, int64_t j) const { return data[j * ld + i]; }
  bool MarginIsUntouched() const {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = m; i < ld; ++i) {
        if ((*this)(i, j) != T(kUntouched)) return false;
      }
    }
    return true;
  }

  static constexpr int kUntouched = 12345;
  int64_t m, n, ld;
  std::vector<T> data;
};

template <typename T>
Dense<T> operator*(const Dense<T>& a, const Dense<T>& b) {
  Dense<T> product(a.m, b.n);
  for (int64_t j = 0; j < b.n; ++j) {
    for (int64_t i = 0; i < a.m; ++i) {
      T sum = 0;
      for (int64_t k = 0; k < a.n; ++k) sum += a(i, k) * b(k, j);
      product(i, j) = sum;
    }
  }
  return product;
}

template <typename T>
Real<T> Distance(const Dense<T>& a, const Dense<T>& b) {
  Real<T> largest = 0;
  for (int64_t j = 0; j < a.n; ++j) {
    for (int64_t i = 0; i < a.m; ++i) {
      const Real<T> distance = std::abs(a(i, j) - b(i, j));
      if (distance > largest || std::isnan(distance)) largest = distance;
    }
  }
  return largest;
}

// Checks operations with a triangle. `stored` has NaN in all elements that must not be read.
template <typename T>
struct TriangleCase {
  TriangleCase(int64_t n, Triangle triangle, Op op, std::mt19937_64& random)
      : stored(Dense<T>::Uniform(n, n, random)), expected(n, n) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < n; ++i) {
        const bool inside = triangle.uplo == Uplo::kLower ? i > j : i < j;
        T value = 0;
        if (i == j) {
          value = triangle.diag == Diag::kUnit ? T(1) : T(2) + stored(i, j);
        } else if (inside) {
          value = stored(i, j) / static_cast<Real<T>>(n);  // keeps the inverse small
        }
        const bool read = inside || (i == j && triangle.diag == Diag::kNonUnit);
        stored(i, j) = read ? value : T(std::numeric_limits<Real<T>>::quiet_NaN());
        if (op == Op::kNone) {
          expected(i, j) = value;
        } else {
          expected(j, i) = op == Op::kTrans ? value : Conj(value);
        }
      }
    }
  }
  Dense<T> stored, expected;
};

template <typename T>
void CheckTriangle(int64_t m, int64_t n, Side side, Op op, Triangle triangle) {
  const bool left = side == Side::kLeft;
  std::mt19937_64 random(m * 100 + n);
  const TriangleCase<T> a(left ? m : n, triangle, op, random);
  const Dense<T> b = Dense<T>::Uniform(m, n, random);
  auto times = [&](const Dense<T>& x) { return left ? a.expected * x : x * a.expected; };
  const Real<T> bound = 20 * (m + n) * std::numeric_limits<Real<T>>::epsilon();
  auto device = NewHostDevice();
  Blas<T>& blas = device->blas<T>();

  Dense<T> x = b;
  EXPECT(blas.Trmm(Stream::kMain, side, op, m, n, a.stored.data.data(), a.stored.ld, x.data.data(),
                   x.ld, triangle)
             .ok());
  EXPECT(Distance(x, times(b)) < bound && x.MarginIsUntouched()) << m << " x " << n;
  x = b;
  EXPECT(blas.Trsm(Stream::kMain, side, op, m, n, a.stored.data.data(), a.stored.ld, x.data.data(),
                   x.ld, triangle)
             .ok());
  EXPECT(Distance(times(x), b) < bound && x.MarginIsUntouched()) << m << " x " << n;

  if (op != Op::kNone) return;
  Dense<T> inverse(a.expected.n, a.expected.n), identity(a.expected.n, a.expected.n);
  for (int64_t j = 0; j < identity.n; ++j) {
    for (int64_t i = 0; i < identity.n; ++i) identity(i, j) = i == j;
  }
  EXPECT(blas.Trtri(Stream::kMain, inverse.n, a.stored.data.data(), a.stored.ld,
                    inverse.data.data(), inverse.ld, triangle)
             .ok());
  EXPECT(Distance(inverse * a.expected, identity) < bound && inverse.MarginIsUntouched()) << n;
  for (int64_t j = 0; j < inverse.n; ++j) {
    for (int64_t i = 0; i < inverse.n; ++i) {
      const bool other = triangle.uplo == Uplo::kLower ? i < j : i > j;
      EXPECT(!other || inverse(i, j) == T(0)) << i << ", " << j;
    }
  }
}

template <typename T>
void CheckTriangles() {
  for (Side side : kSides) {
    for (Op op : kOps) {
      for (Uplo uplo : kUplos) {
        for (Diag diag : kDiags) {
          CheckTriangle<T>(7, 5, side, op, {uplo, diag});
          CheckTriangle<T>(1, 4, side, op, {uplo, diag});
          CheckTriangle<T>(50, 45, side, op, {uplo, diag});  // the host splits this panel
        }
      }
    }
  }
}

TEST(TriangularOperationsReadTheirTriangleAlone) {
  CheckTriangles<float>();
  CheckTriangles<double>();
  CheckTriangles<std::complex<float>>();
  CheckTriangles<std::complex<double>>();
}

// By default a factor is lower triangular and its diagonal is read.
TEST(TrianglesAreLowerByDefault) {
  std::mt19937_64 random(3);
  const TriangleCase<double> l(4, Triangle(), Op::kNone, random);
  const Dense<double> b = Dense<double>::Uniform(4, 3, random);
  Dense<double> x = b;
  auto device = NewHostDevice();
  EXPECT(device->blas<double>()
             .Trmm(Stream::kMain, Side::kLeft, Op::kNone, 4, 3, l.stored.data.data(), l.stored.ld,
                   x.data.data(), x.ld)
             .ok());
  EXPECT(Distance(x, l.expected * b) < 1e-14);
}

TEST(AnAllocationThatIsTooLargeIsAnError) {
  auto device = NewHostDevice();
  std::unique_ptr<Buffer> buffer;
  for (size_t bytes :
       {std::numeric_limits<size_t>::max(), std::numeric_limits<size_t>::max() / 4}) {
    EXPECT(device->Allocate(bytes, &buffer).code() == Code::kResourceExhausted) << bytes;
  }
}

TEST(SizesBeyond32BitsAreRefused) {
  auto device = NewHostDevice();
  double x = 0;
  const int64_t large = int64_t{1} << 31;
  const Status status =
      device->blas<double>().Trsm(Stream::kMain, Side::kLeft, Op::kNone, 1, 1, &x, large, &x, 1);
  EXPECT(status.code() == Code::kInvalidArgument) << status.message();
}

TEST(PotrfReportsADiagonalThatIsNotFinite) {
  auto device = NewHostDevice();
  std::vector<double> a = {4, 2, 2, 0, std::numeric_limits<double>::infinity(), 1, 0, 0, 4};
  int32_t info = kNoInfo;
  const Status status =
      device->blas<double>().Potrf(Stream::kMain, 3, a.data(), 3, /*offset=*/10, &info);
  EXPECT(status.ok()) << status.message();
  EXPECT(info == 12) << info;
  for (double value : a) EXPECT(std::isnan(value));
}

int threads_now = 0;

TEST(RanksDivideTheCoresDuringACall) {
  const int cores = HostCores();
  HostBlasThreads() = {[] { return threads_now; }, [](int threads) { threads_now = threads; }};
  threads_now = cores;
  {
    BlasThreadShare one(1);
    EXPECT(threads_now == cores) << threads_now;
    {
      BlasThreadShare many(2 * cores);
      EXPECT(threads_now == 1) << threads_now;
    }
    EXPECT(threads_now == 1) << "a share grew while another call was under way";
  }
  EXPECT(threads_now == cores) << threads_now;
  {
    std::vector<std::unique_ptr<BlasThreadShare>> calls;
    for (int i = 0; i < cores; ++i) calls.push_back(std::make_unique<BlasThreadShare>(1));
    EXPECT(threads_now == 1) << threads_now << " each for as many calls as there are cores";
  }
  EXPECT(threads_now == cores) << threads_now;
  // A lower number that the user has set stays in effect.
  threads_now = 1;
  {
    BlasThreadShare one(1);
    EXPECT(threads_now == 1);
  }
  EXPECT(threads_now == 1);
  HostBlasThreads() = {};
}

TEST(CoresAreThoseThatAThreadMayRunOn) {
  HostBlasThreads() = {[] { return threads_now; }, [](int threads) { threads_now = threads; }};
  std::thread([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    EXPECT(sched_setaffinity(0, sizeof(one), &one) == 0);
    EXPECT(HostCores() == 1) << HostCores();
    threads_now = 8;
    const BlasThreadShare share(1);
    EXPECT(threads_now == 1) << threads_now;
  }).join();
  HostBlasThreads() = {};
}

TEST(ARankThatWorksAloneHasTheCoresOfWaitingRanks) {
  HostBlasThreads() = {[] { return threads_now; }, [](int threads) { threads_now = threads; }};
  const int cores = HostCores();
  threads_now = cores;
  {
    const BlasThreadShare mine(2 * cores);
    {
      const BlasThreadsOfAll all;
      EXPECT(threads_now == 1) << "the call's other ranks have not come yet";
    }
    std::vector<std::unique_ptr<BlasThreadShare>> others;
    for (int i = 1; i < 2 * cores; ++i) {
      std::thread([&] { others.push_back(std::make_unique<BlasThreadShare>(2 * cores)); }).join();
    }
    {
      const BlasThreadsOfAll all;
      EXPECT(threads_now == cores) << threads_now;
    }
    EXPECT(threads_now == 1) << threads_now;
    std::thread([&] { others.push_back(std::make_unique<BlasThreadShare>(1)); }).join();
    {
      const BlasThreadsOfAll all;
      EXPECT(threads_now == 1) << "another call is under way";
    }
  }
  EXPECT(threads_now == cores) << threads_now;
  HostBlasThreads() = {};
}

TEST(MatricesOfAStackAreDealtToTheCores) {
  EXPECT(ThreadsOfDeal(100, 1e9, 8, 0) == 8);
  EXPECT(ThreadsOfDeal(3, 1e9, 8, 0) == 3);
  EXPECT(ThreadsOfDeal(100, 1e9, 8, 6) == 2) << "other devices deal, too";
  EXPECT(ThreadsOfDeal(100, 1e9, 8, 20) == 1);
  EXPECT(ThreadsOfDeal(100, 10, 8, 0) == 1) << "a thread would take longer to start";
  HostBlasThreads() = {[] { return threads_now; }, [](int threads) { threads_now = threads; }};
  threads_now = 4;
  std::vector<std::atomic<int>> calls(100);
  const Status good = DealOut(100, 1e9, [&](int64_t begin, int64_t end) {
    EXPECT(threads_now == 1) << "each matrix has one BLAS thread";
    for (int64_t i = begin; i < end; ++i) ++calls[i];
    return Status::Ok();
  });
  EXPECT(good.ok() && threads_now == 4);
  for (const auto& count : calls) EXPECT(count == 1);
  const Status bad = DealOut(100, 1e9, [&](int64_t begin, int64_t end) -> Status {
    if (begin <= 60 && 60 < end) return Error(Code::kInternal, "matrix 60");
    return Status::Ok();
  });
  EXPECT(std::string(bad.message()) == "matrix 60") << bad.message();
  HostBlasThreads() = {};
}

TEST(AStackHasTheCoresWhileAnotherCallHasReducedBlasToOneThread) {
  const int cores = HostCores();
  HostBlasThreads() = {[] { return threads_now; }, [](int threads) { threads_now = threads; }};
  threads_now = cores;
  EXPECT(UnsharedBlasThreads() == cores);
  {
    const BlasThreadShare other(2 * cores);
    EXPECT(threads_now == 1 && UnsharedBlasThreads() == cores) << UnsharedBlasThreads();
    std::mutex mutex;
    std::condition_variable came;
    const int all = std::min(cores, 2);
    int inside = 0;
    const Status met = DealOut(all, 1e9, [&](int64_t, int64_t) -> Status {
      std::unique_lock<std::mutex> lock(mutex);
      ++inside;
      came.notify_all();
      const bool others =
          came.wait_for(lock, std::chrono::seconds(10), [&] { return inside == all; });
      return others ? Status::Ok() : Error(Code::kInternal, "one thread deals with all");
    });
    EXPECT(met.ok()) << met.message();
  }
  EXPECT(threads_now == cores && UnsharedBlasThreads() == cores);
  HostBlasThreads() = {};
}

}  // namespace
}  // namespace jaxmg
