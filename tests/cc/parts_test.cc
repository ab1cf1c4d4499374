// Products of bfloat16 and float16 parts: the parts of a number, products of every shape, and the
// accuracy of factorizations that use them.
#include <cmath>
#include <complex>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/devices/recording_device.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/host/device.h"
#include "xla_ffi/device/products/products_by_parts.h"
#include "xla_ffi/engine/cholesky/factor.h"
#include "xla_ffi/engine/routines.h"

namespace jaxmg {
namespace {

using namespace testing;
using Complex = std::complex<float>;

constexpr Precision kByParts[] = {Precision::kBf16x3, Precision::kBf16x6, Precision::kF16x3,
                                  Precision::kScaledF16x3};

float Number(Part part) {
  const uint32_t bits = uint32_t{part} << 16;
  float number;
  std::memcpy(&number, &bits, sizeof(number));
  return number;
}

// Returns the parts of one number, from a left factor of one element with six products.
std::vector<float> PartsOfNumber(float x) {
  const auto device = NewHostDevice();
  std::vector<Part> parts(6 * kPartsGroup);
  const Status status = device->blas<float>(Precision::kBf16x6)
                            .Split(Stream::kMain, Side::kLeft, false, 1, 1, &x, 1, parts.data(), 1);
  EXPECT(status.ok()) << status.message();
  for (size_t i = 0; i < parts.size(); ++i) EXPECT(i % kPartsGroup == 0 || parts[i] == 0) << i;
  auto of_product = [&](int product) { return Number(parts[product * kPartsGroup]); };
  return {of_product(5), of_product(3), of_product(0)};  // 0, 1, 2
}

TEST(PartsOfANumberAddUpToIt) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<float> fraction(-2, 2);
  std::uniform_int_distribution<int> exponent(-90, 126);
  for (int i = 0; i < 10000; ++i) {
    const float x = std::ldexp(fraction(random), exponent(random));
    const std::vector<float> parts = PartsOfNumber(x);
    EXPECT(double{parts[0]} + parts[1] + parts[2] == x) << x;
    EXPECT(std::abs(x - parts[0]) <= std::abs(x) / 256) << x;
    EXPECT(std::abs(x - parts[0] - parts[1]) <= std::abs(x) / 65536) << x;
  }
  const float most = std::numeric_limits<float>::max();
  for (float x : {most, -most, 0.0f, 1.0f, std::nextafter(most, 0.0f)}) {
    const std::vector<float> parts = PartsOfNumber(x);
    EXPECT(double{parts[0]} + parts[1] + parts[2] == x) << x;
  }
  for (float x : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const std::vector<float> parts = PartsOfNumber(x);
    EXPECT(!std::isfinite(parts[0] + parts[1] + parts[2])) << x;
  }
}

float HalfNumber(Part part) {
  const int exponent = part >> 10 & 31, fraction = part & 1023;
  if (exponent == 31) return std::nanf("");
  const float size = exponent > 0 ? std::ldexp(1024.0f + fraction, exponent - 25)
                                  : std::ldexp(static_cast<float>(fraction), -24);
  return part & 0x8000 ? -size : size;
}

// Returns the parts of a factor of one element with three products, in the order of the products:
// h1, h0, h0 for a left factor.
std::vector<float> HalvesOfNumber(float x, Side side) {
  const auto device = NewHostDevice();
  std::vector<Part> parts(3 * kPartsGroup);
  const Status status = device->blas<float>(Precision::kF16x3)
                            .Split(Stream::kMain, side, false, 1, 1, &x, 1, parts.data(), 1);
  EXPECT(status.ok()) << status.message();
  auto of_product = [&](int product) { return HalfNumber(parts[product * kPartsGroup]); };
  return {of_product(0), of_product(1), of_product(2)};
}

TEST(HalvesOfANumberAddUpToIt) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<float> fraction(-2, 2);
  for (int exponent = -40; exponent <= 12; ++exponent) {
    for (int i = 0; i < 300; ++i) {
      const float x = std::ldexp(fraction(random), exponent), y = kHalfScale * x;
      const std::vector<float> left = HalvesOfNumber(x, Side::kLeft);
      const std::vector<float> right = HalvesOfNumber(x, Side::kRight);
      const double first = left[2], second = left[0] / kHalfShift;
      const double least = std::ldexp(1, -31);  // in units of kHalfScale x
      EXPECT(std::abs(first - y) <= std::max(std::abs(y) / 2048, 1.0f / 33554432)) << x;
      EXPECT(std::abs(first + second - y) <= std::max(double{std::abs(y)} / 4194304, least)) << x;
      // The factors of the three products: h1 and h0, h0 and h1, h0 and h0.
      EXPECT(right[2] == left[2] && right[1] == left[0] && right[0] == left[1]) << x;
      EXPECT(std::abs(left[1] * kHalfShift - first) <=
             std::max(std::abs(first) / 2048, 64.0 / 33554432))
          << x;
    }
  }
  constexpr float kLargest = 65504;
  for (float x : {1e6f, -1e30f, 3e37f}) {
    EXPECT(HalvesOfNumber(x, Side::kLeft)[2] == std::copysign(kLargest, x)) << x;
  }
  EXPECT(HalvesOfNumber(kLargest / kHalfScale, Side::kLeft)[2] == kLargest);
  for (float x : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const std::vector<float> parts = HalvesOfNumber(x, Side::kLeft);
    EXPECT(!std::isfinite(parts[0] + parts[1] + parts[2])) << x;
  }
}

template <typename T>
std::complex<double> Entry(Op op, const std::vector<T>& a, int64_t lda, int64_t i, int64_t j) {
  const std::complex<double> value = op == Op::kNone ? a[j * lda + i] : a[i * lda + j];
  return op == Op::kConjTrans ? std::conj(value) : value;
}

// Returns the largest error of an entry of alpha op(A) op(B) + beta C, in units of the sum of the
// absolute values of its terms. Checks that the padding below C's rows is unchanged.
template <typename T>
double ProductError(Precision precision, Op op_a, Op op_b, int64_t m, int64_t n, int64_t k) {
  std::mt19937_64 random(m + n + k);
  const int64_t lda = (op_a == Op::kNone ? m : k) + 1, ldb = (op_b == Op::kNone ? k : n) + 2;
  const int64_t ldc = m + 3;
  std::vector<T> a(lda * std::max(m, k)), b(ldb * std::max(n, k)), c(ldc * n);
  for (auto* all : {&a, &b, &c}) {
    for (T& value : *all) value = Random<T>(random);
  }
  const std::vector<T> before = c;
  const auto device = NewHostDevice();
  const Status status = device->blas<T>(precision).Gemm(
      Stream::kMain, op_a, op_b, m, n, k, -2, a.data(), lda, b.data(), ldb, 0.5, c.data(), ldc);
  EXPECT(status.ok()) << status.message();
  double worst = 0;
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = m; i < ldc; ++i) EXPECT(c[j * ldc + i] == before[j * ldc + i]);
    for (int64_t i = 0; i < m; ++i) {
      std::complex<double> sum = 0.5 * std::complex<double>(before[j * ldc + i]);
      double size = std::abs(sum);
      for (int64_t l = 0; l < k; ++l) {
        const auto x = Entry(op_a, a, lda, i, l), y = Entry(op_b, b, ldb, l, j);
        sum -= 2.0 * x * y;
        size += 2 * std::abs(x) * std::abs(y);
      }
      worst = std::max(worst, std::abs(sum - std::complex<double>(c[j * ldc + i])) / size);
    }
  }
  return worst;
}

template <typename T>
void CheckProducts() {
  constexpr int64_t kSizes[][3] = {{2, 2, 1}, {5, 3, 7}, {20, 30, 64}, {2, 3, 2 * kPartsDepth + 5}};
  for (Op op_a : {Op::kNone, Op::kTrans, Op::kConjTrans}) {
    for (Op op_b : {Op::kNone, Op::kTrans, Op::kConjTrans}) {
      for (const auto& [m, n, k] : kSizes) {
        const double six = ProductError<T>(Precision::kBf16x6, op_a, op_b, m, n, k);
        const double three = ProductError<T>(Precision::kBf16x3, op_a, op_b, m, n, k);
        const double halves = ProductError<T>(Precision::kF16x3, op_a, op_b, m, n, k);
        const double scaled = ProductError<T>(Precision::kScaledF16x3, op_a, op_b, m, n, k);
        EXPECT(halves < 8 * kEps<float>) << m << " x " << n << " x " << k << ": " << halves;
        EXPECT(scaled < 8 * kEps<float>) << m << " x " << n << " x " << k << ": " << scaled;
        EXPECT(six < 8 * kEps<float>) << m << " x " << n << " x " << k << ": " << six;
        EXPECT(three < 1.0 / 32768) << m << " x " << n << " x " << k << ": " << three;
        const bool plain = kIsComplex<T> && (op_a == Op::kTrans || op_b == Op::kTrans);
        if (k != 64 || plain) continue;
        EXPECT(three > 2 * six) << three << " " << six;
      }
    }
  }
}

TEST(ProductsOfEveryShapeEqualThoseOfTheParts) {
  CheckProducts<float>();
  CheckProducts<Complex>();
}

// Rows of A and columns of B with elements of any size, some of them zero, denormal or not finite.
template <typename T>
void CheckScaledProducts() {
  constexpr int64_t m = 40, n = 24, k = kPartsDepth + 9;
  std::mt19937_64 random(7);
  const auto device = NewHostDevice();
  for (const bool turned : {false, true}) {
    const Op op_a = turned ? Op::kConjTrans : Op::kNone, op_b = turned ? Op::kNone : Op::kConjTrans;
    std::vector<T> a(m * k), b(n * k), c(m * n, T(3));
    const auto at = [&](std::vector<T>& of, int64_t lines, int64_t line, int64_t l) -> T& {
      return turned ? of[line * k + l] : of[l * lines + line];
    };
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t i = 0; i < m; ++i) {
        at(a, m, i, l) = Random<T>(random) * std::ldexp(1.0f, static_cast<int>(13 * i / 2) - 130);
      }
      for (int64_t j = 0; j < n; ++j) {
        at(b, n, j, l) = Random<T>(random) * std::ldexp(1.0f, 80 - static_cast<int>(6 * j));
      }
      at(a, m, 4, l) = 0;
      at(b, n, 5, l) = 0;
    }
    at(a, m, 7, 3) = std::numeric_limits<float>::infinity();
    at(b, n, 9, 4) = std::nanf("");
    const Status status = device->blas<T>(Precision::kScaledF16x3)
                              .Gemm(Stream::kMain, op_a, op_b, m, n, k, 1, a.data(), turned ? k : m,
                                    b.data(), turned ? k : n, 0, c.data(), m);
    EXPECT(status.ok()) << status.message();
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) {
        std::complex<double> sum = 0;
        double size = 0;
        for (int64_t l = 0; l < k; ++l) {
          const std::complex<double> x(at(a, m, i, l)), y(at(b, n, j, l));
          sum += turned ? std::conj(x) * y : x * std::conj(y);
          size += std::abs(x) * std::abs(y);
        }
        const std::complex<double> actual(c[j * m + i]);
        const std::string where = std::to_string(i) + ", " + std::to_string(j);
        if (i == 7 || j == 9) {
          EXPECT(!std::isfinite(std::abs(actual))) << where;
        } else if (std::abs(sum) > 2e38) {
          EXPECT(!std::isfinite(std::abs(actual)) || std::abs(actual) > 1e38) << where;
        } else {
          const double least = k * double{std::numeric_limits<float>::denorm_min()};
          EXPECT(std::abs(actual - sum) <= 8 * kEps<float> * size + least)
              << where << ": " << std::abs(actual - sum) / size;
        }
      }
    }
  }
}

TEST(ScaledProductsAreAccurateForElementsOfAnySize) {
  CheckScaledProducts<float>();
  CheckScaledProducts<Complex>();
}

TEST(ProductsInDoublePrecisionUseNoParts) {
  const auto device = NewHostDevice();
  for (Precision precision : kByParts) {
    EXPECT(&device->blas<double>(precision) == &device->blas<double>());
    EXPECT(&device->blas<std::complex<double>>(precision) == &device->blas<std::complex<double>>());
  }
  double x = 1;
  Part part;
  const Status status =
      device->blas<double>().Split(Stream::kMain, Side::kLeft, false, 1, 1, &x, 1, &part, 1);
  EXPECT(!status.ok() && status.message().find("parts") != std::string::npos) << status.message();
}

std::string Describe(const Case& c) {
  return "n " + std::to_string(c.n) + " ranks " + std::to_string(c.ranks) + " tile " +
         std::to_string(c.tile);
}

// Makes a rank's device for the first call or the second.
using MakeDevice = std::function<std::unique_ptr<Device>(int call, int rank)>;

// Returns the backward error of potrs and |A X - 1| of potri.
template <typename T>
std::pair<double, double> Errors(const Case& c, Precision precision, const MakeDevice& make) {
  Problem<T> problem(c), inverse(c);
  const int64_t n = c.n;
  constexpr int64_t kCount = 3;
  const std::vector<T> b(n * kCount, 1);
  std::vector<std::vector<T>> x(c.ranks, b);
  std::vector<Real<T>> log_det(c.ranks);
  std::vector<int32_t> status(2 * c.ranks, -1);
  const auto solved = RunRanks(
      c.ranks,
      [&](const RankContext& context) {
        const int rank = context.comm.rank();
        Operand<T> operand = problem.operand(rank, c.tile, &status[rank]);
        operand.precision = precision;
        return PotrsRoutine<T>(context, operand, {kCount, x[rank].data(), &log_det[rank]});
      },
      kPatience, [&](int rank) { return make(0, rank); });
  const auto inverted = RunRanks(
      c.ranks,
      [&](const RankContext& context) {
        const int rank = context.comm.rank();
        Operand<T> operand = inverse.operand(rank, c.tile, &status[c.ranks + rank]);
        operand.precision = precision;
        return PotriRoutine<T>(context, operand);
      },
      kPatience, [&](int rank) { return make(1, rank); });
  for (const auto* outcomes : {&solved, &inverted}) {
    for (const Status& outcome : *outcomes) EXPECT(outcome.ok()) << outcome.message();
  }
  for (int32_t each : status) EXPECT(each == 0) << Describe(c);
  for (int rank = 1; rank < c.ranks; ++rank) EXPECT(x[rank] == x[0]) << Describe(c);
  double residual = 0, size = 0, distance = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t r = 0; r < kCount; ++r) {
      std::complex<double> sum = -std::complex<double>(b[i * kCount + r]);
      for (int64_t j = 0; j < n; ++j) {
        sum +=
            std::complex<double>(problem.a[i * n + j]) * std::complex<double>(x[0][j * kCount + r]);
      }
      residual += std::norm(sum);
      size += std::norm(x[0][i * kCount + r]);
    }
    for (int64_t j = 0; j < n; ++j) {
      std::complex<double> entry = i == j ? -1 : 0;
      for (int64_t k = 0; k < n; ++k) {
        entry += std::complex<double>(problem.a[i * n + k]) *
                 std::complex<double>(inverse.block_at(k, j));
      }
      distance += std::norm(entry);
    }
  }
  return {std::sqrt(residual) / (problem.norm() * std::sqrt(size)), std::sqrt(distance)};
}

constexpr Case kCases[] = {{1, 1, 0},     {5, 8, 2},  {33, 3, 5, 2}, {40, 1, 4},
                           {40, 4, 2, 1}, {42, 7, 3}, {90, 3, 8},    {64, 4, 4}};

template <typename T>
void CheckRoutines() {
  const Tuning tunings[] = {NewHostDevice()->tuning(), LikeGpu(), LikeGpu(4)};
  for (const Case& c : kCases) {
    for (const Tuning& tuning : tunings) {
      auto make = [&](int, int) { return NewAsyncDevice(NewHostDevice(), tuning); };
      const auto exact = Errors<T>(c, Precision::kHighest, make);
      const auto six = Errors<T>(c, Precision::kBf16x6, make);
      const auto three = Errors<T>(c, Precision::kBf16x3, make);
      const auto halves = Errors<T>(c, Precision::kF16x3, make);
      const std::string where =
          Describe(c) + " block " + std::to_string(tuning.cholesky.panel_block);
      EXPECT(six.first < 2 * exact.first + kEps<T>) << where << ": " << six.first;
      EXPECT(six.second < 2 * exact.second + c.n * kEps<T>) << where << ": " << six.second;
      EXPECT(halves.first < 2 * exact.first + kEps<T>) << where << ": " << halves.first;
      EXPECT(halves.second < 2 * exact.second + c.n * kEps<T>) << where << ": " << halves.second;
      EXPECT(three.first < 1e-5) << where << ": " << three.first;
      EXPECT(three.second < 1e-3) << where << ": " << three.second;
      if (c.n < 90) continue;
      EXPECT(three.first != exact.first && six.first != exact.first) << where;
      EXPECT(halves.first != exact.first && halves.first != six.first) << where;
      EXPECT(three.second > 2 * exact.second) << where << ": " << three.second;
    }
  }
}

TEST(RoutinesAreAsAccurateAsTheirProducts) {
  CheckRoutines<float>();
  CheckRoutines<Complex>();
}

TEST(EveryAccessOfPartsIsOrdered) {
  for (const Case& c : kCases) {
    for (const Tuning& tuning : {NewHostDevice()->tuning(), LikeGpu(), LikeGpu(4)}) {
      for (Precision precision : {Precision::kBf16x6, Precision::kF16x3}) {
        Recording recordings[] = {Recording(c.ranks), Recording(c.ranks)};
        auto make = [&](int call, int rank) {
          return NewRecordingDevice(NewHostDevice(), tuning, recordings[call], rank);
        };
        Errors<float>(c, precision, make);
        for (const Recording& recording : recordings) {
          const std::string race = recording.FirstRace();
          EXPECT(race.empty()) << Describe(c) << " block " << tuning.cholesky.panel_block << ": "
                               << race;
        }
      }
    }
  }
}

}  // namespace
}  // namespace jaxmg
