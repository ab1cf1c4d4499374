// Triangles of stacks, and stacks of small matrices: StackKernels of the host, and the GPU kernels
// run on the host.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "tests/cc/support/host_cuda/cuda_types.h"
#include "tests/cc/support/host_cuda/host_cuda.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/host/device.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#include "xla_ffi/device/cuda/stacks/small_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/substitution_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/triangle_stacks.cuh"
#pragma GCC diagnostic pop

namespace jaxmg::testing {
namespace {

using host_cuda::Cast;
using host_cuda::Launch;
using kernels::Conj;

constexpr int64_t kCount = 3;

// The lower triangles of stacks. With `upper`, the stack stores the transposes.
template <typename T>
struct Lower {
  T& operator()(int64_t matrix, int i, int j) const {
    return a[(matrix * n + (upper ? j : i)) * n + (upper ? i : j)];
  }
  T* a;
  int n;
  bool upper;
};

// Runs the kernels, like CudaStacks. Products are loops.
template <typename T>
class ByKernels {
 public:
  void FactorCholesky(int n, bool upper, T* a) const {
    const Lower<T> l{a, n, upper};
    for (int first = 0; first < n; first += kBlock) {
      const int width = std::min(kBlock, n - first), rest = n - first - width;
      for (int64_t matrix = 0; matrix < kCount; ++matrix) {
        for (int i = first; i < n; ++i) {
          for (int j = first; j < std::min(i + 1, first + width); ++j) {
            for (int p = 0; p < first; ++p) {
              l(matrix, i, j) =
                  kernels::MinusTimes(l(matrix, i, p), Conj(l(matrix, j, p)), l(matrix, i, j));
            }
          }
        }
      }
      Launch(kCount, width > kStackTriangle ? 64 : 32, 1,
             [&] { kernels::FactorStackedDiagonal(n, first, width, upper, a); });
      if (rest == 0) break;
      const unsigned rows = 32, blocks = (rest + rows - 1) / rows;
      Launch(kCount * blocks, rows, 1,
             [&] { kernels::SolveStackedRows(n, first, width, upper, a); });
    }
  }

  void InvertDiagonal(int n, bool upper, T* a) const {
    const int width = std::min(n, kBlock), blocks = (n + width - 1) / width;
    Launch(static_cast<unsigned>(kCount * blocks), 32, 1,
           [&] { kernels::InvertStackedDiagonal(n, width, upper, a); });
  }

  static constexpr int kBlock = kStackDiagonal<sizeof(T)>;
};

// Returns Hermitian matrices with eigenvalues of about 1 to 3. The triangle that isn't read
// contains 7.
template <typename T>
std::vector<T> Matrices(int n, bool upper) {
  using R = Real<T>;
  std::mt19937_64 random(n);
  std::uniform_real_distribution<R> uniform(-1, 1);
  std::vector<T> a(kCount * n * n, T(7));
  const Lower<T> lower{a.data(), n, upper};
  for (int64_t matrix = 0; matrix < kCount; ++matrix) {
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < i; ++j) {
        T& x = lower(matrix, i, j);
        x = uniform(random) / n;
        if constexpr (!std::is_same_v<T, R>) x += T(0, uniform(random) / n);
      }
      lower(matrix, i, i) = 2;
    }
  }
  return a;
}

// Checks A = L L^H up to rounding, and zeros above L.
template <typename T>
void CheckCholesky(int n, bool upper, std::vector<T> a, std::vector<T> factor) {
  using Wide = std::complex<long double>;
  const Lower<T> given{a.data(), n, upper}, l{factor.data(), n, upper};
  const long double kEps = std::numeric_limits<Real<T>>::epsilon();
  for (int64_t matrix = 0; matrix < kCount; ++matrix) {
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        if (j > i) {
          EXPECT(l(matrix, i, j) == T(0)) << n << ": " << i << " " << j;
          continue;
        }
        Wide sum = 0;
        for (int p = 0; p <= j; ++p) {
          sum += Wide(l(matrix, i, p)) * std::conj(Wide(l(matrix, j, p)));
        }
        EXPECT(std::abs(sum - Wide(given(matrix, i, j))) <= 20 * kEps)
            << n << ": " << i << " " << j;
      }
    }
  }
}

// Checks X L = 1 up to rounding in the diagonal blocks of order `order`.
template <typename T>
void CheckInverse(int n, int order, bool upper, std::vector<T> triangle, std::vector<T> inverse) {
  using Wide = std::complex<long double>;
  const Lower<T> l{triangle.data(), n, upper}, x{inverse.data(), n, upper};
  const long double kEps = std::numeric_limits<Real<T>>::epsilon();
  for (int64_t matrix = 0; matrix < kCount; ++matrix) {
    for (int i = 0; i < n; ++i) {
      for (int j = i / order * order; j < n; ++j) {
        if (j > i) {
          EXPECT(x(matrix, i, j) == T(0)) << n << ": " << i << " " << j;
          continue;
        }
        Wide sum = i == j ? -1 : 0;
        for (int p = j; p <= i; ++p) sum += Wide(x(matrix, i, p)) * Wide(l(matrix, p, j));
        EXPECT(std::abs(sum) <= 20 * kEps) << n << ": " << i << " " << j;
      }
    }
  }
}

template <typename T>
void CheckAll() {
  using Cuda = host_cuda::CudaType<T>;
  const std::unique_ptr<Device> device = NewHostDevice();
  StackKernels<T>& host = device->stacks<T>();
  const ByKernels<Cuda> kernels;
  constexpr int kBlock = ByKernels<Cuda>::kBlock;
  // Orders: one block, a part of one, several, and more rows than a thread block has.
  for (int n : {1, 5, 32, 33, kBlock, kBlock + 1, 2 * kBlock + 37}) {
    for (bool upper : {false, true}) {
      const auto a = Matrices<T>(n, upper);
      auto factor = a, by_kernels = a;
      EXPECT(host.FactorCholesky(Stream::kMain, upper, kCount, n, factor.data()).ok());
      CheckCholesky(n, upper, a, factor);
      kernels.FactorCholesky(n, upper, Cast(by_kernels.data()));
      CheckCholesky(n, upper, a, by_kernels);

      auto inverse = factor;
      EXPECT(host.InvertTriangle(Stream::kMain, upper, kCount, n, inverse.data()).ok());
      CheckInverse(n, n, upper, factor, inverse);
      inverse = factor;
      kernels.InvertDiagonal(n, upper, Cast(inverse.data()));
      CheckInverse(n, kBlock, upper, factor, inverse);
    }
  }
}

TEST(Float32) { CheckAll<float>(); }
TEST(Float64) { CheckAll<double>(); }
TEST(Complex64) { CheckAll<std::complex<float>>(); }
TEST(Complex128) { CheckAll<std::complex<double>>(); }

// Checks T x = b up to rounding. T's elements off the diagonal, in both triangles, are about 1/n.
template <typename T>
void CheckSubstitution() {
  using Cuda = host_cuda::CudaType<T>;
  using Wide = std::complex<long double>;
  constexpr int kColumns = 2;
  const long double kEps = std::numeric_limits<Real<T>>::epsilon();
  const std::unique_ptr<Device> device = NewHostDevice();
  for (int n : {1, 33, 70}) {
    auto a = Matrices<T>(n, false);
    for (auto& x : a) {
      if (x == T(7)) x = T(1) / T(n);
    }
    for (int flags = 0; flags < 8; ++flags) {
      const bool upper = flags & 1, adjoint = flags & 2, unit = flags & 4;
      std::vector<T> b(kCount * n * kColumns);
      for (size_t e = 0; e < b.size(); ++e) b[e] = T(std::cos(static_cast<Real<T>>(e)));
      for (const unsigned threads : {0u, 64u}) {  // 0: the host
        auto x = b;
        if (threads == 0) {
          EXPECT(device->stacks<T>()
                     .SolveTriangle(Stream::kMain, {upper, adjoint, unit}, kCount, n, kColumns,
                                    a.data(), x.data())
                     .ok());
        } else {
          Launch(kCount * kColumns, threads, 1, [&] {
            kernels::SolveStackedTriangle(n, kColumns, upper, adjoint, unit, Cast(a.data()),
                                          Cast(x.data()));
          });
        }
        for (int64_t e = 0; e < static_cast<int64_t>(x.size()); ++e) {
          const int64_t matrix = e / (n * kColumns), i = e / kColumns % n, c = e % kColumns;
          const T* const t = &a[matrix * n * n];
          Wide sum = -Wide(b[e]);
          for (int64_t k = 0; k < n; ++k) {
            const int64_t row = adjoint ? k : i, column = adjoint ? i : k;
            if (upper ? row > column : row < column) continue;
            const Wide value = unit && i == k ? Wide(1) : Wide(t[row * n + column]);
            sum += (adjoint ? std::conj(value) : value) * Wide(x[(matrix * n + k) * kColumns + c]);
          }
          EXPECT(std::abs(sum) <= 30 * kEps) << n << " " << flags << " " << threads << ": " << e;
        }
      }
    }
  }
}

TEST(Substitution) {
  CheckSubstitution<float>();
  CheckSubstitution<double>();
  CheckSubstitution<std::complex<float>>();
  CheckSubstitution<std::complex<double>>();
}

// Checks inverses and solutions of random matrices with pivots in any row, of equal rows except on
// the diagonal, and of a singular matrix.
template <typename T>
void CheckSmall() {
  using Cuda = host_cuda::CudaType<T>;
  using R = Real<T>;
  using Wide = std::complex<long double>;
  constexpr int64_t kMatrices = 6;  // more than a block has
  const long double kEps = std::numeric_limits<R>::epsilon();
  const std::unique_ptr<Device> device = NewHostDevice();
  for (int n : {1, 2, 7, 32}) {
    std::mt19937_64 random(n);
    std::uniform_real_distribution<R> uniform(-1, 1);
    std::vector<T> a(kMatrices * n * n);
    for (int64_t e = 0; e < static_cast<int64_t>(a.size()); ++e) {
      const int64_t matrix = e / (n * n), i = e / n % n, j = e % n;
      a[e] = uniform(random) + (j == (i + matrix) % n ? R(n) : R(0));
      if constexpr (!std::is_same_v<T, R>) a[e] += T(0, uniform(random));
      if (matrix == 1) a[e] = i == j ? R(3) : R(1);
      if (matrix == 4) a[e] = R(j + 1);
    }
    if (n == 1) a[4] = 0;
    for (const bool by_kernels : {false, true}) {
      for (int nrhs : {0, 1, kMostSmallColumns}) {  // 0: the inverse
        const int columns = nrhs == 0 ? n : nrhs;
        std::vector<T> b(kMatrices * n * columns), x(b.size());
        for (size_t e = 0; e < b.size(); ++e) {
          const int64_t i = static_cast<int64_t>(e) / columns % n;
          b[e] = nrhs > 0 ? T(std::cos(static_cast<R>(e)))
                          : T(i == static_cast<int64_t>(e) % columns ? 1 : 0);
        }
        StackKernels<T>& host = device->stacks<T>();
        const Cuda* const ca = Cast(a.data());
        const Cuda* const cb = Cast(b.data());
        Cuda* const cx = Cast(x.data());
        if (by_kernels) {
          Launch(2, kSmallThreads, 1, [&] {
            if (nrhs == 0) return kernels::InvertSmall(kMatrices, n, ca, cx);
            kernels::SolveSmall(kMatrices, n, nrhs, ca, cb, cx);
          });
        } else if (nrhs == 0) {
          EXPECT(host.InvertSmall(Stream::kMain, kMatrices, n, a.data(), x.data()).ok());
        } else {
          EXPECT(host.SolveSmall(Stream::kMain, kMatrices, n, nrhs, a.data(), b.data(), x.data())
                     .ok());
        }
        for (int64_t e = 0; e < static_cast<int64_t>(x.size()); ++e) {
          const int64_t matrix = e / (n * columns), i = e / columns % n, c = e % columns;
          Wide sum = -Wide(b[e]);
          bool finite = true;
          for (int64_t k = 0; k < n; ++k) {
            const T value = x[(matrix * n + k) * columns + c];
            finite &= std::isfinite(std::abs(value));
            if (finite) sum += Wide(a[(matrix * n + i) * n + k]) * Wide(value);
          }
          if (matrix == 4) {
            EXPECT(!finite) << n << " " << by_kernels << " " << nrhs;
          } else {
            EXPECT(std::abs(sum) <= 100 * n * kEps)
                << n << " " << by_kernels << " " << nrhs << ": " << matrix << " " << i << " " << c;
          }
        }
      }
    }
  }
}

TEST(Small) {
  CheckSmall<float>();
  CheckSmall<double>();
  CheckSmall<std::complex<float>>();
  CheckSmall<std::complex<double>>();
}

// If a matrix isn't positive definite or has a NaN, all of its lower triangle becomes NaN, and no
// other matrix is affected.
TEST(NotPositiveDefinite) {
  const std::unique_ptr<Device> device = NewHostDevice();
  for (int n : {3, 40, 100}) {
    for (double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
      for (int test = 0; test < 4; ++test) {
        const bool by_kernels = test % 2 == 1;
        const int at = test < 2 ? n / 2 : n - 1;
        auto a = Matrices<double>(n, false);
        const Lower<double> l{a.data(), n, false};
        l(1, at, at) = bad;
        for (int i = 0; i < n; ++i) {
          if (bad == 0) l(1, std::max(i, at), std::min(i, at)) = 0;
        }
        if (by_kernels) {
          ByKernels<double>().FactorCholesky(n, false, a.data());
        } else {
          EXPECT(device->stacks<double>()
                     .FactorCholesky(Stream::kMain, false, kCount, n, a.data())
                     .ok());
        }
        for (int64_t matrix = 0; matrix < kCount; ++matrix) {
          for (int i = 0; i < n; ++i) {
            for (int j = 0; j < n; ++j) {
              EXPECT(std::isnan(l(matrix, i, j)) == (matrix == 1 && j <= i))
                  << bad << " " << n << ": " << matrix << " " << i << " " << j;
            }
          }
        }
      }
    }
  }
}

// Checks the lower triangle of x x^H for an upper triangle x.
TEST(Product) {
  using T = std::complex<double>;
  const std::unique_ptr<Device> device = NewHostDevice();
  for (int n : {1, 7}) {
    auto x = Matrices<T>(n, true);
    std::vector<T> product(x.size());
    for (int64_t e = 0; e < static_cast<int64_t>(x.size()); ++e) {
      if (e / n % n > e % n) x[e] = 0;
    }
    EXPECT(device->stacks<T>()
               .MultiplyTriangle(Stream::kMain, kCount, n, x.data(), product.data())
               .ok());
    for (int64_t row = 0; row < kCount * n; ++row) {
      const int64_t first = row / n * n;
      for (int64_t j = 0; j <= row % n; ++j) {
        T sum = 0;
        for (int64_t k = 0; k < n; ++k) sum += x[row * n + k] * std::conj(x[(first + j) * n + k]);
        EXPECT(std::abs(sum - product[row * n + j]) <= 1e-14);
      }
    }
  }
}

}  // namespace
}  // namespace jaxmg::testing
