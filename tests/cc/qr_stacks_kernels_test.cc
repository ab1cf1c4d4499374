// QR, reflectors, products and polynomials of stacks: StackKernels of the host, and QR and
// reflectors with the GPU kernels run on the host.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#include "tests/cc/support/host_cuda/cuda_types.h"
#include "tests/cc/support/host_cuda/host_cuda.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/host/blas.h"
#include "xla_ffi/device/host/device.h"
#include "xla_ffi/device/stacks/stack_qr.h"
#include "xla_ffi/device/stacks/stack_reflectors.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#include "xla_ffi/device/cuda/stacks/qr_stacks.cuh"
#include "xla_ffi/device/cuda/stacks/reflector_stacks.cuh"
#pragma GCC diagnostic pop

namespace jaxmg::testing {
namespace {

using host_cuda::Cast;
using host_cuda::Launch;
using Wide = std::complex<long double>;

// Returns an element of op(X). X has leading dimension `ld` (row-major).
template <typename T>
T At(const StackedFactor<T>& x, int64_t matrix, int64_t i, int64_t j) {
  const T* const data = x.data + matrix * x.size;
  if (x.op == Op::kNone) return data[i * x.ld + j];
  return x.op == Op::kTrans ? data[j * x.ld + i] : Conj(data[j * x.ld + i]);
}

// The products of `count` matrices, C := alpha op(X) op(Y) + beta C, by loops.
template <typename T>
auto ProductsOf(int64_t count) {
  using R = Real<T>;
  return [count](int64_t rows, int64_t columns, int64_t k, R alpha, const StackedFactor<T>& x,
                 const StackedFactor<T>& y, R beta, T* c, int64_t ld, int64_t size) {
    std::vector<T> product(rows * columns);
    for (int64_t e = 0; e < count; ++e) {
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          T sum = 0;
          for (int64_t p = 0; p < k; ++p) sum += At(x, e, i, p) * At(y, e, p, j);
          product[i * columns + j] = sum;
        }
      }
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          T& to = c[e * size + i * ld + j];
          to = alpha * product[i * columns + j] + (beta == 0 ? T(0) : beta * to);
        }
      }
    }
    return Status::Ok();
  };
}

// Factors with the kernel, like CudaStacks.
template <typename T>
void FactorByKernel(int64_t count, int64_t m, int64_t n, unsigned warps, bool in_shared, T* a,
                    T* q) {
  const StackedQr<T> program(count, m, n);
  // NaN shows that no uninitialized number is read.
  std::vector<T> space(program.Space(), std::numeric_limits<Real<T>>::quiet_NaN());
  auto factor = [&](int64_t first, int64_t width, T* v, T* t) {
    Launch(static_cast<unsigned>(count), 32 * (warps + 1), 1, [&] {
      kernels::StackedQrPanel<host_cuda::CudaType<T>>(
          static_cast<int>(m), static_cast<int>(n), static_cast<int>(first),
          static_cast<int>(width), in_shared, Cast(a), Cast(v), Cast(t), Cast(q))
          .Run();
    });
    return Status::Ok();
  };
  EXPECT(program.Run(factor, ProductsOf<T>(count), space.data(), a, q).ok());
}

template <typename T>
T Number(std::mt19937_64& random) {
  std::uniform_real_distribution<Real<T>> uniform(-1, 1);
  T x = uniform(random);
  if constexpr (kIsComplex<T>) x += T(0, uniform(random));
  return x;
}

constexpr int64_t kCount = 4;

// Returns random matrices, one of rank 1, one with a column of zeros and one of tiny numbers, and
// one that is upper triangular.
template <typename T>
std::vector<T> Matrices(int64_t m, int64_t n) {
  std::mt19937_64 random(m * 1000 + n);
  std::vector<T> a(kCount * m * n);
  for (T& x : a) x = Number<T>(random);
  const Real<T> tiny = sizeof(Real<T>) == 4 ? 1e-22 : 1e-160;  // its square is denormal
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      a[(m + i) * n + j] = Real<T>(1) / Real<T>(1 + i + j % 2);
      if (j == n / 2) a[(2 * m + i) * n + j] = 0;
      if (j == n / 3 && i > 0) a[(2 * m + i) * n + j] *= tiny;
      if (i > j) a[(3 * m + i) * n + j] = 0;
    }
  }
  return a;
}

// Checks A = Q R and Q^H Q = 1 up to rounding, and that R is upper triangular with a real diagonal.
template <typename T>
void CheckFactors(int64_t m, int64_t n, const std::vector<T>& a, const std::vector<T>& r,
                  const std::vector<T>& q) {
  constexpr long double kEps = std::numeric_limits<Real<T>>::epsilon();
  const int64_t k = std::min(m, n);
  for (int64_t e = 0; e < kCount; ++e) {
    const T *const of_r = &r[e * m * n], *const of_q = &q[e * m * k];
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        Wide sum = -Wide(a[(e * m + i) * n + j]);
        for (int64_t p = 0; p <= std::min(j, k - 1); ++p) {
          sum += Wide(of_q[i * k + p]) * Wide(of_r[p * n + j]);
        }
        EXPECT(std::abs(sum) <= 20 * m * kEps)
            << m << " x " << n << ": " << e << " " << i << " " << j;
        EXPECT(i <= j || of_r[i * n + j] == T(0)) << m << " x " << n << ": " << i << " " << j;
        EXPECT(i != j || std::imag(of_r[i * n + j]) == 0) << m << " x " << n << ": " << i;
      }
    }
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        Wide sum = i == j ? -1 : 0;
        for (int64_t p = 0; p < m; ++p) {
          sum += std::conj(Wide(of_q[p * k + i])) * Wide(of_q[p * k + j]);
        }
        EXPECT(std::abs(sum) <= 20 * m * kEps)
            << m << " x " << n << ": " << e << " " << i << " " << j;
      }
    }
  }
}

template <typename T>
void CheckQr() {
  const std::unique_ptr<Device> host = NewHostDevice();
  const int64_t shapes[][2] = {{1, 1}, {5, 3}, {3, 5}, {33, 33}, {70, 40}, {40, 70}};
  for (const auto& [m, n] : shapes) {
    const std::vector<T> a = Matrices<T>(m, n);
    std::vector<T> expected = a, q(kCount * m * std::min(m, n), T(7));
    EXPECT(host->stacks<T>().FactorQr(Stream::kMain, kCount, m, n, expected.data(), q.data()).ok());
    CheckFactors<T>(m, n, a, expected, q);
    for (const unsigned warps : {1u, 3u}) {
      const bool in_shared = warps > 1;
      std::vector<T> r = a;
      q.assign(q.size(), T(7));
      FactorByKernel<T>(kCount, m, n, warps, in_shared, r.data(), q.data());
      CheckFactors<T>(m, n, a, r, q);
      // The signs equal LAPACK's.
      for (int64_t i = 0; i < std::min(m, n); ++i) {
        EXPECT(std::real(r[i * (n + 1)]) * std::real(expected[i * (n + 1)]) >= 0) << m << " " << i;
      }
      std::vector<T> alone = a;
      FactorByKernel<T>(kCount, m, n, warps, in_shared, alone.data(), static_cast<T*>(nullptr));
      EXPECT(alone == r) << m << " x " << n;
    }
  }
}

TEST(QrFloat32) { CheckQr<float>(); }
TEST(QrFloat64) { CheckQr<double>(); }
TEST(QrComplex64) { CheckQr<std::complex<float>>(); }
TEST(QrComplex128) { CheckQr<std::complex<double>>(); }

// A matrix with NaN doesn't affect others.
TEST(QrOfNan) {
  std::vector<double> a = Matrices<double>(40, 40), r = a, q(a.size()), expected_q(a.size());
  FactorByKernel<double>(kCount, 40, 40, 2, true, r.data(), expected_q.data());
  a[3 * 40 + 7] = std::numeric_limits<double>::quiet_NaN();
  FactorByKernel<double>(kCount, 40, 40, 2, true, a.data(), q.data());
  EXPECT(std::isnan(a[7 * 41]) && std::isnan(q[40 * 40 - 1]));
  EXPECT(std::equal(a.begin() + 1600, a.end(), r.begin() + 1600));
  EXPECT(std::equal(q.begin() + 1600, q.end(), expected_q.begin() + 1600));
}

// Applies reflectors with the kernel, like CudaStacks.
template <typename T>
void ApplyByKernel(int64_t count, int64_t n, int64_t columns, const T* reflectors, const T* tau,
                   T* x) {
  const StackedReflectors<T> program(count, n, columns);
  std::vector<T> space(program.Space(), std::numeric_limits<Real<T>>::quiet_NaN());
  auto form = [&](const T* gram, T* t) {
    Launch(static_cast<unsigned>(count * program.Panels()), StackedReflectors<T>::kWidth, 1, [&] {
      kernels::FormStackedReflectors(static_cast<int>(n), Cast(gram), Cast(tau), Cast(t));
    });
    return Status::Ok();
  };
  EXPECT(program.Run(form, ProductsOf<T>(count), space.data(), reflectors, x).ok());
}

// Returns the rows of random reflectors, the last of which isn't one, and sets tau, one of which
// is 0.
template <typename T>
std::vector<T> Reflectors(int64_t n, std::vector<T>& tau) {
  std::mt19937_64 random(n);
  constexpr Real<T> kNan = std::numeric_limits<Real<T>>::quiet_NaN();
  std::vector<T> rows(kCount * n * n, T(0));
  tau.assign(kCount * n, T(kNan));
  for (int64_t e = 0; e < kCount; ++e) {
    for (int64_t j = 0; j < n; ++j) {
      T* const row = &rows[(e * n + j) * n];
      if (j + 1 == n) {
        std::fill_n(row, n, T(kNan));
        break;
      }
      row[j + 1] = 1;
      Real<T> square = 1;
      for (int64_t i = j + 2; i < n; ++i) {
        row[i] = Number<T>(random);
        square += std::norm(row[i]);
      }
      tau[e * n + j] = e == 1 && j == n / 2 ? T(0) : T(2 / square);
      if constexpr (kIsComplex<T>) {  // |1 - tau square| = 1, too
        if (j % 2 == 1) tau[e * n + j] = (T(1) - std::polar(Real<T>(1), Real<T>(j))) / square;
      }
    }
  }
  return rows;
}

template <typename T>
void CheckReflectors() {
  constexpr long double kEps = std::numeric_limits<Real<T>>::epsilon();
  const std::unique_ptr<Device> host = NewHostDevice();
  const int64_t shapes[][2] = {{2, 1}, {3, 4}, {33, 7}, {64, 3}, {65, 2}, {66, 66}, {140, 5}};
  for (const auto& [n, columns] : shapes) {
    std::vector<T> tau, x(kCount * n * columns);
    const std::vector<T> rows = Reflectors<T>(n, tau);
    std::mt19937_64 random(columns);
    for (T& value : x) value = Number<T>(random);
    std::vector<T> by_kernel = x, by_host = x;
    ApplyByKernel<T>(kCount, n, columns, rows.data(), tau.data(), by_kernel.data());
    EXPECT(host->stacks<T>()
               .ApplyReflectors(Stream::kMain, kCount, n, columns, rows.data(), tau.data(),
                                by_host.data())
               .ok());
    for (int64_t e = 0; e < kCount; ++e) {
      for (int64_t c = 0; c < columns; ++c) {
        std::vector<Wide> expected(n);
        for (int64_t i = 0; i < n; ++i) expected[i] = x[(e * n + i) * columns + c];
        for (int64_t j = n - 2; j >= 0; --j) {
          const T* const row = &rows[(e * n + j) * n];
          Wide inner = 0;
          for (int64_t i = 0; i < n; ++i) inner += Wide(row[i]) * expected[i];
          inner *= Wide(tau[e * n + j]);
          for (int64_t i = 0; i < n; ++i) expected[i] -= std::conj(Wide(row[i])) * inner;
        }
        for (int64_t i = 0; i < n; ++i) {
          const int64_t place = (e * n + i) * columns + c;
          EXPECT(std::abs(Wide(by_kernel[place]) - expected[i]) <= 20 * n * kEps)
              << n << " x " << columns << ": " << e << " " << i << " " << c;
          EXPECT(std::abs(Wide(by_host[place]) - expected[i]) <= 20 * n * kEps)
              << n << " x " << columns << ": " << e << " " << i << " " << c;
        }
      }
    }
  }
}

TEST(ReflectorsFloat32) { CheckReflectors<float>(); }
TEST(ReflectorsFloat64) { CheckReflectors<double>(); }
TEST(ReflectorsComplex64) { CheckReflectors<std::complex<float>>(); }
TEST(ReflectorsComplex128) { CheckReflectors<std::complex<double>>(); }

// A matrix with NaN doesn't affect others.
TEST(ReflectorsOfNan) {
  constexpr int64_t kN = 70;
  std::vector<double> tau, x(kCount * kN, 1), expected = x;
  std::vector<double> rows = Reflectors<double>(kN, tau);
  ApplyByKernel<double>(kCount, kN, 1, rows.data(), tau.data(), expected.data());
  rows[5 * kN + 30] = std::numeric_limits<double>::quiet_NaN();
  ApplyByKernel<double>(kCount, kN, 1, rows.data(), tau.data(), x.data());
  EXPECT(std::isnan(x[kN - 1]));
  EXPECT(std::equal(x.begin() + kN, x.end(), expected.begin() + kN));
}

template <typename T>
void CheckProducts() {
  const std::unique_ptr<Device> host = NewHostDevice();
  constexpr int64_t kM = 2, kN = 4, kK = 5;
  std::vector<T> x(kCount * kM * kK), y(kCount * kK * kN), product(kCount * kM * kN);
  for (size_t i = 0; i < x.size(); ++i) x[i] = T(int(i % 7) - 3);
  for (size_t i = 0; i < y.size(); ++i) y[i] = T(int(i % 11) - 5);
  if constexpr (kIsComplex<T>) {
    for (T& value : x) value -= T(0, 1);
    for (T& value : y) value += T(0, 2);
  }
  for (Op left : {Op::kNone, Op::kTrans, Op::kConjTrans}) {
    for (Op right : {Op::kNone, Op::kTrans, Op::kConjTrans}) {
      EXPECT(host->stacks<T>()
                 .Multiply(Stream::kMain, left, right, kCount, kM, kN, kK, x.data(), y.data(),
                           product.data())
                 .ok());
      const StackedFactor<T> of_x = {x.data(), left == Op::kNone ? kK : kM, kM * kK, left};
      const StackedFactor<T> of_y = {y.data(), right == Op::kNone ? kN : kK, kN * kK, right};
      for (int64_t e = 0; e < kCount * kM * kN; ++e) {
        const int64_t index = e / (kM * kN), i = e / kN % kM, j = e % kN;
        T sum = 0;
        for (int64_t p = 0; p < kK; ++p) sum += At(of_x, index, i, p) * At(of_y, index, p, j);
        EXPECT(product[e] == sum) << e;
      }
    }
  }
}

TEST(Products) {
  CheckProducts<float>();
  CheckProducts<double>();
  CheckProducts<std::complex<float>>();
  CheckProducts<std::complex<double>>();
}

// Checks matrices (count, m, n) of the form sum of s_i e_i f_i^H, times a unitary number. The
// polynomials map their singular values one by one.
template <typename T>
void CheckPolynomials(int64_t m, int64_t n) {
  using R = Real<T>;
  const std::unique_ptr<Device> host = NewHostDevice();
  const double coefficients[] = {3, -2, 0.5, 1.5, -0.75, 0.25};
  T unit = 1;
  if constexpr (kIsComplex<T>) unit = T(R(0.6), R(0.8));
  std::vector<T> x(kCount * m * n);
  auto place = [&](int64_t e, int64_t i) { return (e * m + (i + 1) % m) * n + (i + 2) % n; };
  auto value = [](int64_t e, int64_t i) { return R(0.1) * R(1 + e + i); };
  for (int64_t e = 0; e < kCount; ++e) {
    for (int64_t i = 0; i < std::min(m, n); ++i) x[place(e, i)] = unit * value(e, i);
  }
  for (const int64_t steps : {0, 1, 2}) {
    std::vector<T> y = x;
    EXPECT(host->stacks<T>()
               .MapSingularValues(Stream::kMain, kCount, m, n, {coefficients, steps}, y.data())
               .ok());
    for (int64_t e = 0; e < kCount; ++e) {
      for (int64_t i = 0; i < std::min(m, n); ++i) {
        R s = value(e, i);
        for (int64_t step = 0; step < steps; ++step) {
          const double* abc = coefficients + 3 * step;
          s = R(abc[0]) * s + R(abc[1]) * s * s * s + R(abc[2]) * s * s * s * s * s;
        }
        EXPECT(std::abs(y[place(e, i)] - unit * s) <=
               20 * std::numeric_limits<R>::epsilon() * std::max(R(1), std::abs(s)))
            << m << " x " << n << ": " << steps << " " << e << " " << i;
        y[place(e, i)] = 0;
      }
    }
    EXPECT(std::all_of(y.begin(), y.end(), [](T value) { return value == T(0); }));
  }
}

TEST(PolynomialsOfSingularValues) {
  const int64_t shapes[][2] = {{1, 1}, {3, 3}, {2, 5}, {5, 2}};
  for (const auto& [m, n] : shapes) {
    CheckPolynomials<float>(m, n);
    CheckPolynomials<double>(m, n);
    CheckPolynomials<std::complex<float>>(m, n);
    CheckPolynomials<std::complex<double>>(m, n);
  }
}

TEST(PolynomialsOf16Bits) {
  const std::unique_ptr<Device> host = NewHostDevice();
  const double coefficients[] = {1.5, -0.5, 0};
  for (const PartFormat format : {PartFormat::kBfloat16, PartFormat::kFloat16}) {
    const bool halves = format == PartFormat::kFloat16;
    Part x[] = {halves ? NearestHalf(0.5f) : Nearest(0.5f), 0, 0, 0};
    EXPECT(host->stacks<float>()
               .MapSingularValues(Stream::kMain, format, 2, 1, 2, {coefficients, 1}, x)
               .ok());
    EXPECT((halves ? NumberOfHalf(x[0]) : NumberOf(x[0])) == 0.6875f);
    EXPECT(x[1] == 0 && x[2] == 0 && x[3] == 0);
    EXPECT(!host->stacks<double>()
                .MapSingularValues(Stream::kMain, format, 2, 1, 2, {coefficients, 1}, x)
                .ok());
  }
}

}  // namespace
}  // namespace jaxmg::testing
