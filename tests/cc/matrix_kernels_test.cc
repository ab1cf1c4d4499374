// Compares MatrixKernels of the host device with their definitions, and the kernels of matrix.cuh,
// run on the host, with the host device.
#include "xla_ffi/device/products/matrix_kernels.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/cc/support/host_cuda/cuda_types.h"
#include "tests/cc/support/host_cuda/host_cuda.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/host/device.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#include "xla_ffi/device/cuda/products/matrix.cuh"
#pragma GCC diagnostic pop

namespace jaxmg {
namespace {

using namespace testing;
using host_cuda::Cast;
using host_cuda::Launch;

template <typename T>
using Cuda = host_cuda::CudaType<T>;

constexpr int64_t kShapes[][2] = {{0, 0}, {1, 1}, {3, 70}, {37, 5}, {64, 64}, {70, 33}};
constexpr unsigned kFew = 12;  // threads, so that each processes several elements

// A matrix with padding below each column. No operation may change the padding.
template <typename T>
struct Padded {
  Padded(int64_t m, int64_t n, int seed) : m(m), n(n), ld(m + 3), data(ld * n) {
    std::mt19937_64 random(seed + 100 * m + n);
    for (T& x : data) x = Random<T>(random);
  }
  T& operator()(int64_t i, int64_t j) { return data[j * ld + i]; }
  Cuda<T>* cuda() { return Cast(data.data()); }

  int64_t m, n, ld;
  std::vector<T> data;
};

template <typename R>
std::vector<R> Positive(int64_t n) {
  std::vector<R> x(n);
  for (int64_t i = 0; i < n; ++i) x[i] = R(1) + R(i % 7) / 4;
  return x;
}

template <typename T>
bool Near(T x, T y, double units = 8) {
  const double eps = std::numeric_limits<Real<T>>::epsilon();
  return x == y || std::abs(x - y) <= units * eps * (1 + std::abs(y));
}

template <typename T>
void ExpectNear(const std::vector<T>& x, const std::vector<T>& y, const char* what) {
  EXPECT(x.size() == y.size());
  for (size_t i = 0; i < x.size(); ++i) EXPECT(Near(x[i], y[i])) << what << " " << i;
}

// Calls check(m, n, host kernels) for all shapes.
template <typename T, typename Check>
void ForEachShape(const Check& check) {
  const auto device = NewHostDevice();
  for (const auto& shape : kShapes) check(shape[0], shape[1], device->matrix<T>());
}

template <typename Check>
void ForEachDtype(const Check& check) {
  check(float());
  check(double());
  check(std::complex<float>());
  check(std::complex<double>());
}

TEST(Combine) {
  ForEachDtype([](auto zero) {
    using T = decltype(zero);
    ForEachShape<T>([](int64_t m, int64_t n, MatrixKernels<T>& host) {
      const Real<T> numbers[] = {0, 1, Real<T>(-1.5)};
      for (const Real<T> alpha : numbers) {
        for (const Real<T> beta : numbers) {
          Padded<T> a(m, n, 1), c(m, n, 2), expected(m, n, 2);
          if (beta == 0) std::fill_n(c.data.begin(), m * (n > 0), std::nan(""));
          if (alpha == 0) std::fill(a.data.begin(), a.data.end(), std::nan(""));
          Padded<T> by_kernel = c;
          for (int64_t j = 0; j < n; ++j) {
            for (int64_t i = 0; i < m; ++i) {
              T sum = beta == 0 ? T(0) : beta * expected(i, j);
              if (alpha != 0) sum += alpha * a(i, j);
              expected(i, j) = sum;
            }
          }
          EXPECT(host.Combine(Stream::kMain, m, n, alpha, a.data.data(), a.ld, beta, c.data.data(),
                              c.ld)
                     .ok());
          ExpectNear(c.data, expected.data, "combine");
          Launch(2, kFew, 1, [&] {
            kernels::Combine(m, n, alpha, a.cuda(), a.ld, beta, by_kernel.cuda(), by_kernel.ld);
          });
          ExpectNear(by_kernel.data, expected.data, "kernel");
        }
      }
    });
  });
}

TEST(AddToDiagonal) {
  ForEachDtype([](auto zero) {
    using T = decltype(zero);
    ForEachShape<T>([](int64_t m, int64_t n, MatrixKernels<T>& host) {
      for (int64_t first : {-2, 0, 3}) {
        Padded<T> a(m, n, 1), expected(m, n, 1), by_kernel(m, n, 1);
        for (int64_t j = 0; j < n; ++j) {
          for (int64_t i = 0; i < m; ++i) expected(i, j) += Real<T>(i + first == j ? 5 : 0);
        }
        EXPECT(host.AddToDiagonal(Stream::kMain, m, n, first, 5, a.data.data(), a.ld).ok());
        ExpectNear(a.data, expected.data, "diagonal");
        Launch(2, kFew, 1, [&] {
          kernels::AddToDiagonal(m, n, first, Real<T>(5), by_kernel.cuda(), by_kernel.ld);
        });
        ExpectNear(by_kernel.data, expected.data, "kernel");
      }
    });
  });
}

TEST(ScaleRowsAndColumns) {
  ForEachDtype([](auto zero) {
    using T = decltype(zero);
    using R = Real<T>;
    ForEachShape<T>([](int64_t m, int64_t n, MatrixKernels<T>& host) {
      const std::vector<R> left = Positive<R>(m), right = Positive<R>(n);
      for (int which = 0; which < 8; ++which) {
        const R* l = which & 1 ? left.data() : nullptr;
        const R* r = which & 2 ? right.data() : nullptr;
        const bool divide = which & 4;
        Padded<T> a(m, n, 1), expected(m, n, 1), by_kernel(m, n, 1);
        for (int64_t j = 0; j < n; ++j) {
          for (int64_t i = 0; i < m; ++i) {
            const R factor = (l != nullptr ? l[i] : 1) * (r != nullptr ? r[j] : 1);
            expected(i, j) = divide ? expected(i, j) / factor : expected(i, j) * factor;
          }
        }
        EXPECT(
            host.ScaleRowsAndColumns(Stream::kMain, divide, m, n, l, r, a.data.data(), a.ld).ok());
        ExpectNear(a.data, expected.data, "scale");
        Launch(2, kFew, 1, [&] {
          kernels::ScaleRowsAndColumns(divide, m, n, l, r, by_kernel.cuda(), by_kernel.ld);
        });
        ExpectNear(by_kernel.data, expected.data, "kernel");
      }
    });
  });
}

// The product is exact, even if the power itself is out of range.
TEST(TimesPowerOfTwo) {
  ForEachDtype([](auto zero) {
    using T = decltype(zero);
    using R = Real<T>;
    const int far = std::numeric_limits<R>::max_exponent + 20;
    const auto device = NewHostDevice();
    for (const int exponent : {-7, 0, 11, far, -far}) {
      Padded<T> a(5, 3, 1);
      const int start = -exponent / 2;
      for (T& x : a.data) x = T(std::ldexp(std::real(x), start));
      const std::vector<T> before = a.data;
      Padded<T> by_kernel = a;
      EXPECT(device->matrix<T>()
                 .TimesPowerOfTwo(Stream::kMain, 5, 3, exponent, a.data.data(), a.ld)
                 .ok());
      for (int64_t j = 0; j < 3; ++j) {
        for (int64_t i = 0; i < a.ld; ++i) {
          const T x = before[j * a.ld + i];
          EXPECT(a(i, j) == (i < 5 ? T(std::ldexp(std::real(x), exponent)) : x)) << i << " " << j;
        }
      }
      const R first = std::ldexp(R(1), exponent / 2);
      const R second = std::ldexp(R(1), exponent - exponent / 2);
      Launch(2, kFew, 1,
             [&] { kernels::TimesFactors(5, 3, first, second, by_kernel.cuda(), by_kernel.ld); });
      EXPECT(by_kernel.data == a.data) << exponent;
    }
  });
}

TEST(MakeHermitian) {
  ForEachDtype([](auto zero) {
    using T = decltype(zero);
    const auto device = NewHostDevice();
    for (const int64_t n : {0, 1, 5, 32, 33, 70}) {
      Padded<T> a(n, n, 1), expected(n, n, 1), by_kernel(n, n, 1);
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < n; ++i) {
          expected(i, j) = (a(i, j) + Conj(a(j, i))) / Real<T>(2);
        }
      }
      EXPECT(device->matrix<T>().MakeHermitian(Stream::kMain, n, a.data.data(), a.ld).ok());
      ExpectNear(a.data, expected.data, "Hermitian");
      const unsigned tiles = static_cast<unsigned>((n + kTileEdge - 1) / kTileEdge);
      Launch(tiles * tiles, kTileEdge, kTileRows,
             [&] { kernels::MakeHermitian(n, by_kernel.cuda(), by_kernel.ld); });
      ExpectNear(by_kernel.data, expected.data, "kernel");
      for (int64_t i = 0; i < n; ++i) {
        EXPECT(std::imag(a(i, i)) == 0 && std::imag(by_kernel(i, i)) == 0) << i;
      }
    }
  });
}

TEST(ClearTriangle) {
  ForEachDtype([](auto zero) {
    using T = decltype(zero);
    ForEachShape<T>([](int64_t m, int64_t n, MatrixKernels<T>& host) {
      for (const Uplo uplo : {Uplo::kLower, Uplo::kUpper}) {
        Padded<T> a(m, n, 1), expected(m, n, 1), by_kernel(m, n, 1);
        const bool upper = uplo == Uplo::kUpper;
        for (int64_t j = 0; j < n; ++j) {
          for (int64_t i = 0; i < m; ++i) {
            if (upper ? i < j : i > j) expected(i, j) = 0;
          }
        }
        EXPECT(host.ClearTriangle(Stream::kMain, uplo, m, n, a.data.data(), a.ld).ok());
        EXPECT(a.data == expected.data) << m << " x " << n;
        Launch(2, kFew, 1,
               [&] { kernels::ClearTriangle(upper, m, n, by_kernel.cuda(), by_kernel.ld); });
        EXPECT(by_kernel.data == expected.data) << m << " x " << n;
      }
    });
  });
}

TEST(SquareSums) {
  ForEachDtype([](auto zero) {
    using T = decltype(zero);
    ForEachShape<T>([](int64_t m, int64_t n, MatrixKernels<T>& host) {
      for (const bool apart : {false, true}) {
        Padded<T> a(m, n, 1);
        double expected = 0;
        for (int64_t j = 0; j < n; ++j) {
          for (int64_t i = 0; i < m; ++i) {
            const std::complex<double> x = a(i, j);
            expected += std::norm(x - (apart && i == j ? 1.0 : 0.0));
          }
        }
        std::vector<double> sums(kSquareSums, -1), by_kernel(kSquareSums, -1);
        EXPECT(host.SquareSums(Stream::kMain, apart, m, n, a.data.data(), a.ld, sums.data()).ok());
        Launch(kSquareSums, 16, 1,
               [&] { kernels::SquareSums(apart, m, n, a.cuda(), a.ld, by_kernel.data()); });
        double sum = 0, kernel_sum = 0;
        for (int i = 0; i < kSquareSums; ++i) sum += sums[i], kernel_sum += by_kernel[i];
        EXPECT(Near(sum, expected, 100)) << sum << " " << expected;
        EXPECT(Near(kernel_sum, expected, 100)) << kernel_sum << " " << expected;
      }
    });
  });
}

TEST(DivideByRoot) {
  ForEachDtype([](auto zero) {
    using T = decltype(zero);
    ForEachShape<T>([](int64_t m, int64_t n, MatrixKernels<T>& host) {
      for (const double total : {0.0, 9.0}) {
        Padded<T> a(m, n, 1), expected(m, n, 1), by_kernel(m, n, 1);
        // 128 terms, most of them zero; the last one is not.
        std::vector<double> sums(kSquareSums, 0);
        sums[0] = sums[5] = sums[kSquareSums - 1] = total / 3;
        for (int64_t j = 0; j < n; ++j) {
          for (int64_t i = 0; i < m && total > 0; ++i) expected(i, j) /= Real<T>(3);
        }
        EXPECT(host.DivideByRoot(Stream::kMain, m, n, sums.data(), a.data.data(), a.ld).ok());
        EXPECT(a.data == expected.data) << m << " x " << n;
        Launch(2, kFew, 1, [&] {
          kernels::DivideByRoot(kSquareSums, m, n, sums.data(), by_kernel.cuda(), by_kernel.ld);
        });
        EXPECT(by_kernel.data == expected.data) << m << " x " << n;
      }
    });
  });
}

TEST(LargestOfRowsAndNan) {
  ForEachDtype([](auto zero) {
    using T = decltype(zero);
    using R = Real<T>;
    ForEachShape<T>([](int64_t m, int64_t n, MatrixKernels<T>& host) {
      if (n == 0) return;
      Padded<T> a(m, n, 1);
      const R nan = std::numeric_limits<R>::quiet_NaN();
      if (m > 2) a(2, n - 1) = kIsComplex<T> ? T(1) * std::sqrt(T(-1)) * nan : T(-nan);
      std::vector<R> largest(m, 0), by_kernel(m, 0);
      EXPECT(host.LargestOfRows(Stream::kMain, m, n, a.data.data(), a.ld, largest.data()).ok());
      Launch(2, kFew, 1, [&] { kernels::LargestOfRows(m, n, a.cuda(), a.ld, by_kernel.data()); });
      for (int64_t i = 0; i < m; ++i) {
        if (i == 2) {
          EXPECT(std::isnan(largest[i]) && std::isnan(by_kernel[i]));
          continue;
        }
        R expected = 0;
        for (int64_t j = 0; j < n; ++j) {
          expected =
              std::max({expected, std::abs(std::real(a(i, j))), std::abs(std::imag(a(i, j)))});
        }
        EXPECT(largest[i] == expected && by_kernel[i] == expected) << i;
      }
    });
  });
}

TEST(RootsAndSignsOfDiagonals) {
  ForEachDtype([](auto zero) {
    using T = decltype(zero);
    using R = Real<T>;
    const R kInfinity = std::numeric_limits<R>::infinity();
    const R diagonal[] = {4, 0, -9, kInfinity, R(0.25), R(std::nan(""))};
    const R roots[] = {2, 1, 1, 1, R(0.5), 1}, signs[] = {1, 1, -1, 1, 1, 1};
    constexpr int64_t kN = 6;
    Padded<T> a(kN, kN, 1);
    for (int64_t i = 0; i < kN; ++i) a(i, i) = diagonal[i];
    std::vector<R> found(kN), by_kernel(kN);
    const auto device = NewHostDevice();
    auto& host = device->matrix<T>();
    EXPECT(host.RootsOfDiagonal(Stream::kMain, kN, a.data.data(), a.ld, found.data()).ok());
    Launch(2, 2, 1, [&] { kernels::RootsOfDiagonal(kN, a.cuda(), a.ld, by_kernel.data()); });
    for (int64_t i = 0; i < kN; ++i) EXPECT(found[i] == roots[i] && by_kernel[i] == roots[i]) << i;
    EXPECT(host.SignsOfDiagonal(Stream::kMain, kN, a.data.data(), a.ld, found.data()).ok());
    Launch(2, 2, 1, [&] { kernels::SignsOfDiagonal(kN, a.cuda(), a.ld, by_kernel.data()); });
    for (int64_t i = 0; i < kN; ++i) EXPECT(found[i] == signs[i] && by_kernel[i] == signs[i]) << i;
  });
}

TEST(TakeRows) {
  ForEachDtype([](auto zero) {
    using T = decltype(zero);
    using R = Real<T>;
    const auto device = NewHostDevice();
    Padded<T> a(9, 4, 1);
    const std::vector<int32_t> rows = {8, 0, 3, 3, 7};
    const std::vector<R> factors = {1, -1, 2, 1, -1};
    for (const R* f : {static_cast<const R*>(nullptr), factors.data()}) {
      Padded<T> c(5, 4, 2), by_kernel(5, 4, 2);
      EXPECT(device->matrix<T>()
                 .TakeRows(Stream::kMain, 5, 4, rows.data(), f, a.data.data(), a.ld, c.data.data(),
                           c.ld)
                 .ok());
      Launch(2, kFew, 1, [&] {
        kernels::TakeScaledRows(5, 4, rows.data(), f, a.cuda(), a.ld, by_kernel.cuda(),
                                by_kernel.ld);
      });
      EXPECT(c.data == by_kernel.data);
      for (int64_t j = 0; j < 4; ++j) {
        for (int64_t i = 0; i < 5; ++i) {
          EXPECT(c(i, j) == a(rows[i], j) * (f == nullptr ? R(1) : f[i])) << i << " " << j;
        }
      }
    }
  });
}

// Noise depends only on an element's place in the whole matrix, is small, and has a mean near 0.
TEST(AddNoise) {
  ForEachDtype([](auto zero) {
    using T = decltype(zero);
    const auto device = NewHostDevice();
    auto& host = device->matrix<T>();
    Padded<T> whole(40, 30, 1), part(10, 30, 1), by_kernel(40, 30, 1);
    for (auto* x : {&whole, &part, &by_kernel}) std::fill(x->data.begin(), x->data.end(), T(0));
    EXPECT(host.AddNoise(Stream::kMain, 40, 30, 0, 7, 2, whole.data.data(), whole.ld).ok());
    EXPECT(host.AddNoise(Stream::kMain, 10, 30, 20, 7, 2, part.data.data(), part.ld).ok());
    Launch(2, kFew, 1,
           [&] { kernels::AddNoise(40, 30, 0, 7, Real<T>(2), by_kernel.cuda(), by_kernel.ld); });
    EXPECT(whole.data == by_kernel.data);
    double sum = 0, squares = 0;
    for (int64_t j = 0; j < 30; ++j) {
      for (int64_t i = 0; i < 40; ++i) {
        const double x = std::real(whole(i, j));
        EXPECT(std::abs(x) <= 2);
        if (i >= 20 && i < 30) {
          EXPECT(part(i - 20, j) == whole(i, j)) << i << " " << j;
        }
        sum += x;
        squares += x * x;
      }
    }
    EXPECT(std::abs(sum) < 150) << sum;  // the standard deviation is 40
    EXPECT(squares > 1200 && squares < 2000) << squares;
  });
}

TEST(Convert) {
  ForEachDtype([](auto zero) {
    using T = decltype(zero);
    using U = OtherPrecision<T>;
    ForEachShape<T>([](int64_t m, int64_t n, MatrixKernels<T>& host) {
      Padded<T> a(m, n, 1);
      Padded<U> c(m, n, 2), expected(m, n, 2), by_kernel(m, n, 2);
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < m; ++i) expected(i, j) = static_cast<U>(a(i, j));
      }
      EXPECT(host.Convert(Stream::kMain, m, n, a.data.data(), a.ld, c.data.data(), c.ld).ok());
      EXPECT(c.data == expected.data);
      Launch(2, kFew, 1,
             [&] { kernels::ConvertTo(m, n, a.cuda(), a.ld, by_kernel.cuda(), by_kernel.ld); });
      EXPECT(by_kernel.data == expected.data);
    });
  });
}

}  // namespace
}  // namespace jaxmg
