// StackKernels on the host. Included only by device.cc.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_STACKS_STACKS_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_STACKS_STACKS_H_

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <numeric>
#include <tuple>
#include <type_traits>
#include <vector>

#include "xla_ffi/device/blas.h"
#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/eigen/secular_root.h"
#include "xla_ffi/device/eigen/tridiagonal_ql.h"
#include "xla_ffi/device/host/blas.h"
#include "xla_ffi/device/host/eigen/secular.h"
#include "xla_ffi/device/host/lapack_checks.h"
#include "xla_ffi/device/host/stacks/deal.h"
#include "xla_ffi/device/host/stacks/indefinite.h"
#include "xla_ffi/device/matrix_solver.h"
#include "xla_ffi/device/stacks/stack_kernels.h"
#include "xla_ffi/device/stacks/stack_polynomials.h"
#include "xla_ffi/device/stacks/stack_reflectors.h"

namespace jaxmg {

// One merge, with its poles in ascending order.
template <typename R>
class HostMerge {
 public:
  HostMerge(int64_t k, R gap, const R* high, const R* low, const R* z, R rho)
      : k_(k),
        rho_(rho),
        order_(k),
        high_(k),
        low_(k),
        z_(k),
        origin_high_(k),
        origin_low_(k),
        tau_(k),
        refined_(k) {
    std::iota(order_.begin(), order_.end(), 0);
    // Sorts NaN poles to the end.
    auto key = [&](int64_t i) {
      return std::make_tuple(std::isnan(high[i]), std::isnan(high[i]) ? 0 : high[i], low[i]);
    };
    std::stable_sort(order_.begin(), order_.end(),
                     [&](int64_t i, int64_t j) { return key(i) < key(j); });
    for (int64_t place = 0; place < k; ++place) {
      const int64_t i = order_[place];
      high_[place] = high[i];
      low_[place] = low[i] + static_cast<R>(place) * gap;
      z_[place] = z[i];
    }
  }

  void FindRoots() {
    using Poles = HostPoles<R, secular::TwoPartPoles<R>>;
    const Poles poles(k_, d(), z_.data());
    for (int64_t j = 0; j < k_; ++j) {
      secular::Root<R, Poles, secular::TwoPartPole<R>> root(poles, k_, d(), z_.data(), rho_, j);
      (void)root.Find(kMostSecularEvaluations);  // uses the last iterate, converged or not
      origin_high_[j] = root.origin().high;
      origin_low_[j] = root.origin().low;
      tau_[j] = root.tau();
    }
  }

  void RefineZ() {
    for (int64_t i = 0; i < k_; ++i) {
      refined_[i] = RefinedElement(k_, i, d(), z_[i], rho_, origin(), tau_.data());
    }
  }

  // Writes the results of merge `index`.
  void Write(int64_t index, const MergedPairs<R>& pairs) const {
    const int64_t half = k_ / 2;
    R* const vectors = pairs.vectors + index * k_ * k_;
    std::vector<R> u(k_);
    for (int64_t j = 0; j < k_; ++j) {
      R largest = 0, sum = 0;
      for (int64_t place = 0; place < k_; ++place) {
        const R value = refined_[place] / ((d()[place] - origin()[j]) - tau_[j]);
        u[order_[place]] = value;
        largest = std::max(largest, std::abs(value));
      }
      for (R& value : u) {  // its squares might overflow
        value /= largest;
        sum += value * value;
      }
      const R scale = 1 / std::sqrt(sum);
      for (int64_t i = 0; i < k_; ++i) {
        vectors[(i / half * k_ + j) * half + i % half] = u[i] * scale;
      }
      const R low = origin_low_[j] + tau_[j], total = origin_high_[j] + low;
      const R rest = total - origin_high_[j];
      pairs.high[index * k_ + j] = total;
      pairs.low[index * k_ + j] = (origin_high_[j] - (total - rest)) + (low - rest);
    }
  }

 private:
  secular::TwoPartPoles<R> d() const { return {high_.data(), low_.data()}; }
  secular::TwoPartPoles<R> origin() const { return {origin_high_.data(), origin_low_.data()}; }

  const int64_t k_;
  const R rho_;
  std::vector<int64_t> order_;
  std::vector<R> high_, low_, z_, origin_high_, origin_low_, tau_, refined_;
};

// A lower triangular matrix. If `upper`, its transpose is stored.
template <typename T>
struct HostLower {
  HostLower(T* a, int64_t n, bool upper) : n(n), a_(a), upper_(upper) {}
  T& operator()(int64_t i, int64_t j) const { return upper_ ? a_[j * n + i] : a_[i * n + j]; }

  const int64_t n;

 private:
  T* const a_;
  const bool upper_;
};

template <typename T>
class HostStacks : public StackKernels<T> {
  using R = Real<T>;

 public:
  HostStacks(Blas<T>& blas, MatrixSolver<T>& solver) : blas_(blas), solver_(solver) {}

  Status SolveTridiagonal(Stream, int64_t count, int64_t n, const R* d, const R* e, R* w,
                          R* v) override {
    std::vector<R> beside(n);
    for (int64_t matrix = 0; matrix < count; ++matrix) {
      R *values = w + matrix * n, *vectors = v + matrix * n * n;
      std::copy_n(d + matrix * n, n, values);
      std::copy_n(e + matrix * (n - 1), n - 1, beside.data());
      for (int64_t i = 0; i < n * n; ++i) vectors[i] = i % (n + 1) == 0;
      const bool found =
          tridiagonal::SolveByQl(static_cast<int>(n), values, beside.data(), [&](int i, R c, R s) {
            for (int64_t row = 0; row < n; ++row) {
              R* const x = vectors + row * n + i;
              const R before = x[0];
              x[0] = c * before - s * x[1];
              x[1] = s * before + c * x[1];
            }
          });
      if (!found) std::fill_n(values, n, std::numeric_limits<R>::quiet_NaN());
    }
    return Status::Ok();
  }

  Status ReduceToTridiagonal(Stream, int64_t count, int64_t n, R* a, R* d, R* e, R* tau) override {
    std::vector<R> w(n);
    for (int64_t matrix = 0; matrix < count; ++matrix, a += n * n, d += n, e += n - 1, tau += n) {
      for (int64_t j = 0; j < n; ++j) {
        R* const v = a + j * n;
        d[j] = v[j];
        tau[j] = 0;
        if (j + 1 == n) break;
        MakeReflector(n - j - 1, v + j + 1, tau + j);
        e[j] = v[j + 1];
        std::fill_n(v, j + 1, R(0));
        v[j + 1] = 1;
        R inner = 0;
        for (int64_t i = j + 1; i < n; ++i) {
          w[i] = tau[j] * std::inner_product(v + j + 1, v + n, a + i * n + j + 1, R(0));
          inner += w[i] * v[i];
        }
        for (int64_t i = j + 1; i < n; ++i) w[i] -= tau[j] / 2 * inner * v[i];
        for (int64_t i = j + 1; i < n; ++i) {
          for (int64_t c = j + 1; c < n; ++c) a[i * n + c] -= v[i] * w[c] + w[i] * v[c];
        }
      }
    }
    return Status::Ok();
  }

  Status ApplyReflectors(Stream stream, int64_t count, int64_t n, int64_t columns,
                         const T* reflectors, const T* tau, T* x) override {
    const StackedReflectors<T> program(1, n, columns);
    return Deal(count, 2.0 * n * n * columns, [&](int64_t i, Space& space) {
      auto form = [&](const T* gram, T* t) {
        constexpr int64_t kWidth = StackedReflectors<T>::kWidth;
        for (int64_t panel = 0; panel < program.Panels(); ++panel) {
          const int64_t place = panel * kWidth * kWidth;
          program.Form(program.Width(panel), gram + place, tau + i * n + panel * kWidth, t + place);
        }
        return Status::Ok();
      };
      // To BLAS a row-major matrix is its transpose: C^T = op(Y)^T op(X)^T, with the same op.
      auto multiply = [&](int64_t rows, int64_t of_columns, int64_t k, R alpha,
                          const StackedFactor<T>& a, const StackedFactor<T>& b, R beta, T* c,
                          int64_t ld, int64_t) {
        return blas_.Gemm(stream, b.op, a.op, of_columns, rows, k, alpha, b.data, b.ld, a.data,
                          a.ld, beta, c, ld);
      };
      space.work.resize(program.Space());
      return program.Run(form, multiply, space.work.data(), reflectors + i * n * n,
                         x + i * n * columns);
    });
  }

  Status Merge(Stream, const StackedMerges<R>& merges, const MergedPairs<R>& pairs) override {
    const int64_t k = merges.k;
    for (int64_t i = 0; i < merges.count; ++i) {
      HostMerge<R> merge(k, merges.gap, merges.high + i * k, merges.low + i * k, merges.z + i * k,
                         merges.rho[i]);
      merge.FindRoots();
      merge.RefineZ();
      merge.Write(i, pairs);
    }
    return Status::Ok();
  }

  Status FactorLu(Stream, int64_t count, int64_t n, T* a, int32_t* pivots) override {
    return Deal(count, 2.0 / 3 * n * n * n, [&](int64_t i, Space& space) {
      return FactorLuOf(n, a + i * n * n, pivots + i * n, space);
    });
  }

  Status InvertSmall(Stream stream, int64_t count, int64_t n, const T* a, T* inverse) override {
    std::vector<T> eye(n * n);
    for (int64_t matrix = 0; matrix < count; ++matrix) {
      for (int64_t i = 0; i < n * n; ++i) eye[i] = i % (n + 1) == 0 ? 1 : 0;
      JAXMG_RETURN_IF_ERROR(
          SolveSmall(stream, 1, n, n, a + matrix * n * n, eye.data(), inverse + matrix * n * n));
    }
    return Status::Ok();
  }

  Status SolveSmall(Stream, int64_t count, int64_t n, int64_t nrhs, const T* a, const T* b,
                    T* x) override {
    std::vector<T> factors(n * n);
    std::vector<int32_t> pivots(n);
    for (int64_t matrix = 0; matrix < count; ++matrix) {
      std::copy_n(a + matrix * n * n, n * n, factors.data());
      FactorOne(n, factors.data(), pivots.data());
      T* const solution = x + matrix * n * nrhs;
      if (x != b) std::copy_n(b + matrix * n * nrhs, n * nrhs, solution);
      for (int64_t i = 0; i < n; ++i) {
        if (pivots[i] != i) {
          std::swap_ranges(solution + i * nrhs, solution + (i + 1) * nrhs,
                           solution + pivots[i] * nrhs);
        }
      }
      for (const bool upper : {false, true}) {
        JAXMG_RETURN_IF_ERROR(
            SolveTriangleOf({upper, false, !upper}, n, nrhs, factors.data(), solution));
      }
    }
    return Status::Ok();
  }

  Status FactorCholesky(Stream, bool upper, int64_t count, int64_t n, T* a) override {
    return Deal(count, 1.0 / 3 * n * n * n,
                [&](int64_t i, Space&) { return FactorCholeskyOf(upper, n, a + i * n * n); });
  }

  Status FactorHermitian(Stream, bool upper, int64_t count, int64_t n, T* a) override {
    return Deal(count, 1.0 / 3 * n * n * n + 8.0 * n * n,
                [&](int64_t i, Space&) { return FactorHermitianOf(upper, n, a + i * n * n); });
  }

  Status FactorIndefinite(Stream, bool lower, bool hermitian, int64_t count, int64_t n, T* a, T* d,
                          int32_t* order) override {
    return Deal(count, kOperationsOfOneThread, [&](int64_t i, Space&) {
      const int64_t first = i * n * n;
      return HostIndefinite<T>(hermitian, n).Factor(lower, a + first, d + first, order + i * n);
    });
  }

  Status SolveIndefinite(Stream, bool hermitian, int64_t count, int64_t n, int64_t nrhs, T* a,
                         T* b) override {
    return Deal(count, kOperationsOfOneThread, [&](int64_t i, Space&) {
      return HostIndefinite<T>(hermitian, n).Solve(nrhs, a + i * n * n, b + i * n * nrhs);
    });
  }

  Status InvertTriangle(Stream, bool upper, int64_t count, int64_t n, T* a) override {
    return Deal(count, 1.0 / 3 * n * n * n, [&](int64_t i, Space&) -> Status {
      if (n <= kFewRows) {
        InvertLower(HostLower<T>(a + i * n * n, n, upper));
        return Status::Ok();
      }
      // In column-major order this is the transposed triangle.
      char uplo = upper ? 'L' : 'U', diag = 'N';
      LapackInts ints(n);
      JAXMG_CHECK_LAPACK(trtri, ints);
      int singular = 0;
      HostLapack<T>().trtri(&uplo, &diag, ints[0], a + i * n * n, ints[0], &singular);
      if (singular > 0) InvertLower(HostLower<T>(a + i * n * n, n, upper));
      return Status::Ok();
    });
  }

  Status SolveTriangle(Stream, StackedTriangle triangle, int64_t count, int64_t n, int64_t nrhs,
                       const T* a, T* b) override {
    return Deal(count, 1.0 * n * n * nrhs, [&](int64_t i, Space&) {
      return SolveTriangleOf(triangle, n, nrhs, a + i * n * n, b + i * n * nrhs);
    });
  }

  Status MultiplyTriangle(Stream, int64_t count, int64_t n, const T* x, T* product) override {
    for (int64_t matrix = 0; matrix < count; ++matrix, x += n * n, product += n * n) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j <= i; ++j) {
          T sum = 0;
          for (int64_t k = i; k < n; ++k) sum += x[i * n + k] * Conj(x[j * n + k]);
          product[i * n + j] = sum;
        }
      }
    }
    return Status::Ok();
  }

  // To BLAS a row-major matrix is its transpose: C^T = op(Y)^T op(X)^T, with the same op.
  Status Multiply(Stream stream, Op op_x, Op op_y, int64_t count, int64_t m, int64_t n, int64_t k,
                  const T* x, const T* y, T* product) override {
    return MultiplyEach(stream, count, op_y, op_x, n, m, k, 1, y, x, 0, product);
  }

  Status FactorQr(Stream, int64_t count, int64_t m, int64_t n, T* a, T* q) override {
    const int64_t k = std::min(m, n);
    return Deal(count, 4.0 * m * n * k, [&](int64_t i, Space& space) {
      T* const of_q = q == nullptr ? nullptr : q + i * m * k;
      return FactorQrOf(m, n, a + i * m * n, of_q, space);
    });
  }

  // LAPACK reads row-major A as A^T, and returns A^T = W S Z^H. So U^T = Z^H and V = conj(W); in
  // memory, LAPACK's columns are the rows of U and V^H.
  Status Decompose(Stream stream, int64_t count, int64_t m, int64_t n, T* a, T* u, R* s,
                   T* vh) override {
    const int64_t k = std::min(m, n);
    return Deal(count, 20.0 * m * n * k, [&](int64_t i, Space&) -> Status {
      int32_t info = 0;
      T* const of_u = u == nullptr ? nullptr : u + i * m * k;
      T* const of_vh = u == nullptr ? nullptr : vh + i * k * n;
      R* const values = s + i * k;
      JAXMG_RETURN_IF_ERROR(solver_.Gesvd(stream, u != nullptr, n, m, a + i * m * n, n, values,
                                          of_vh, n, of_u, k, &info));
      if (u == nullptr) std::reverse(values, values + k);
      if (info == 0) return Status::Ok();
      std::fill_n(values, k, std::numeric_limits<R>::quiet_NaN());
      if (u == nullptr) return Status::Ok();
      FillWithNaN(m * k, 1, of_u, m * k);
      FillWithNaN(k * n, 1, of_vh, k * n);
      return Status::Ok();
    });
  }

  Status MapSingularValues(Stream stream, int64_t count, int64_t m, int64_t n,
                           Polynomials polynomials, T* x) override {
    std::vector<T> space(PolynomialsSpace(count, m, n));
    auto multiply = [&](Op op_a, Op op_b, int64_t rows, int64_t columns, int64_t k, double alpha,
                        const T* a, const T* b, double beta, T* c) {
      return MultiplyEach(stream, count, op_a, op_b, rows, columns, k, static_cast<R>(alpha), a, b,
                          static_cast<R>(beta), c);
    };
    auto copy = [](const T* from, T* to, int64_t size) {
      std::copy_n(from, size, to);
      return Status::Ok();
    };
    return MapSingularValuesBy(multiply, copy, count, m, n, polynomials, x, space.data());
  }
  Status MapSingularValues(Stream stream, PartFormat format, int64_t count, int64_t m, int64_t n,
                           Polynomials polynomials, Part* x) override {
    if constexpr (std::is_same_v<T, float>) {
      const bool halves = format == PartFormat::kFloat16;
      std::vector<float> wide(count * m * n);
      for (size_t i = 0; i < wide.size(); ++i) {
        wide[i] = halves ? NumberOfHalf(x[i]) : NumberOf(x[i]);
      }
      JAXMG_RETURN_IF_ERROR(MapSingularValues(stream, count, m, n, polynomials, wide.data()));
      for (size_t i = 0; i < wide.size(); ++i) {
        x[i] = halves ? NearestHalf(wide[i]) : Nearest(wide[i]);
      }
      return Status::Ok();
    } else {
      return StackKernels<T>::MapSingularValues(stream, format, count, m, n, polynomials, x);
    }
  }

 private:
  // C := alpha op(A) op(B) + beta C for dense column-major matrices.
  Status MultiplyEach(Stream stream, int64_t count, Op op_a, Op op_b, int64_t m, int64_t n,
                      int64_t k, R alpha, const T* a, const T* b, R beta, T* c) {
    return Deal(count, 2.0 * m * n * k, [&](int64_t i, Space&) {
      return blas_.Gemm(stream, op_a, op_b, m, n, k, alpha, a + i * m * k,
                        op_a == Op::kNone ? m : k, b + i * k * n, op_b == Op::kNone ? k : n, beta,
                        c + i * m * n, m);
    });
  }

  // A thread's workspace, reused from one matrix to the next.
  struct Space {
    std::vector<T> turned, others, work, taus;
    std::vector<int> ints;
  };

  // Calls function(i, space) for each matrix, on all available cores.
  template <typename Function>
  static Status Deal(int64_t count, double operations, const Function& function) {
    return DealOut(count, (kIsComplex<T> ? 4 : 1) * operations, [&](int64_t begin, int64_t end) {
      Space space;
      for (int64_t i = begin; i < end; ++i) JAXMG_RETURN_IF_ERROR(function(i, space));
      return Status::Ok();
    });
  }

  // So few that each matrix gets one BLAS thread. LAPACK's factorization of indefinite matrices
  // consists of short calls of BLAS. On two threads, on two cores that others use too, it takes up
  // to a hundred times as long.
  static constexpr double kOperationsOfOneThread = 4e5;

  // The number of rows up to which a loop is faster than a call of LAPACK.
  static constexpr int64_t kFewRows = 8;

  static bool IsFinite(int64_t count, const T* a) {
    return std::all_of(a, a + count, [](const T& x) {
      return std::isfinite(std::real(x)) && std::isfinite(std::imag(x));
    });
  }

  // b (n x m, column-major) := A^T for A m x n, in blocks that fit into a cache.
  static void Turn(int64_t m, int64_t n, const T* a, T* b) {
    constexpr int64_t kBlock = 32;
    for (int64_t j0 = 0; j0 < n; j0 += kBlock) {
      for (int64_t i0 = 0; i0 < m; i0 += kBlock) {
        for (int64_t j = j0; j < std::min(j0 + kBlock, n); ++j) {
          for (int64_t i = i0; i < std::min(i0 + kBlock, m); ++i) b[i * n + j] = a[j * m + i];
        }
      }
    }
  }

  Status FactorLuOf(int64_t n, T* a, int32_t* pivots, Space& space) {
    // LAPACK's search for the largest of NaNs may fail and return a row that doesn't exist.
    if (n <= kFewRows || !IsFinite(n * n, a)) {
      FactorOne(n, a, pivots);
      return Status::Ok();
    }
    space.turned.resize(n * n);
    space.ints.resize(n);
    T* const turned = space.turned.data();
    Turn(n, n, a, turned);
    LapackInts ints(n);
    JAXMG_CHECK_LAPACK(getrf, ints);
    int singular = 0;
    HostLapack<T>().getrf(ints[0], ints[0], turned, ints[0], space.ints.data(), &singular);
    for (int64_t i = 0; i < n; ++i) {
      const bool is_row = i < space.ints[i] && space.ints[i] <= n;
      pivots[i] = static_cast<int32_t>(is_row ? space.ints[i] - 1 : i);
    }
    Turn(n, n, turned, a);
    return Status::Ok();
  }

  // A row-major lower triangle is a column-major upper one of the conjugate.
  static Status FactorCholeskyOf(bool upper, int64_t n, T* a) {
    const HostLower<T> lower(a, n, upper);
    if (n <= kFewRows) {
      FactorLower(lower);
      return Status::Ok();
    }
    char uplo = upper ? 'L' : 'U';
    LapackInts ints(n);
    JAXMG_CHECK_LAPACK(potrf, ints);
    for (int64_t i = 0; i < n; ++i) lower(i, i) = std::real(lower(i, i));
    int failed = 0;
    HostLapack<T>().potrf(&uplo, ints[0], a, ints[0], &failed);
    constexpr R kNan = std::numeric_limits<R>::quiet_NaN();
    const bool good = failed == 0 && !std::isnan(std::real(lower(n - 1, n - 1)));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        T& x = a[i * n + j];
        if (upper ? i > j : i < j)
          x = 0;
        else if (!good)
          x = kNan;
      }
    }
    return Status::Ok();
  }

  // The largest real or imaginary parts of one triangle's elements, and of their differences from
  // the other triangle's adjoint. The first number is NaN if any of these isn't finite. Lanes don't
  // have to wait for each other.
  struct HermitianSizes {
    static constexpr int kLanes = 4;
    R largest[kLanes] = {}, apart[kLanes] = {}, poison[kLanes] = {};

    void Add(int lane, T element, T difference) {
      const R part = PartOf(element), other = PartOf(difference);
      largest[lane] = std::max(largest[lane], part);
      apart[lane] = std::max(apart[lane], other);
      poison[lane] += (part + other) * 0;  // comparisons would lose NaN
    }
    R Largest() const {
      return *std::max_element(largest, largest + kLanes) +
             std::accumulate(poison, poison + kLanes, R(0));
    }
    R Apart() const { return *std::max_element(apart, apart + kLanes); }
  };

  static R PartOf(T x) { return std::max(std::abs(std::real(x)), std::abs(std::imag(x))); }

  // Replaces one triangle with the Hermitian part's. Returns the sizes.
  static HermitianSizes TakeHermitianPart(bool upper, int64_t n, T* a) {
    constexpr int64_t kBlock = 32;
    constexpr int kLanes = HermitianSizes::kLanes;
    HermitianSizes sizes;
    auto visit = [&](int64_t i, int64_t j, int lane) {
      T &low = a[i * n + j], &high = a[j * n + i];
      const T apart = Conj(high) - low;
      sizes.Add(lane, low, apart);
      // Adds half of the difference, because a sum might overflow.
      if (upper)
        high -= Conj(apart) * R(0.5);
      else
        low += apart * R(0.5);
    };
    for (int64_t j0 = 0; j0 < n; j0 += kBlock) {
      for (int64_t i = j0; i < n; ++i) {
        const int64_t end = std::min(j0 + kBlock, i + 1);
        int64_t j = j0;
        for (; j + kLanes <= end; j += kLanes) {
          for (int lane = 0; lane < kLanes; ++lane) visit(i, j + lane, lane);
        }
        for (; j < end; ++j) visit(i, j, 0);
      }
    }
    return sizes;
  }

  static Status FactorHermitianOf(bool upper, int64_t n, T* a) {
    const HermitianSizes sizes = TakeHermitianPart(upper, n, a);
    const R largest = sizes.Largest();
    const R rounding = 10 * n * std::numeric_limits<R>::epsilon() * largest;
    if (!(sizes.Apart() <= rounding)) a[0] = std::numeric_limits<R>::quiet_NaN();
    // Squares must neither overflow nor underflow. The scale is an even power of two, so that its
    // square root is also a power of two.
    constexpr int kModerate = std::numeric_limits<R>::max_exponent / 8;
    const int root = std::isfinite(largest) && largest > 0 ? std::ilogb(largest) / 2 : 0;
    const bool scales = std::abs(root) > kModerate;
    const R down = std::ldexp(R(1), -root), up = std::ldexp(R(1), root);
    if (scales) std::transform(a, a + n * n, a, [&](const T& x) { return x * down * down; });
    JAXMG_RETURN_IF_ERROR(FactorCholeskyOf(upper, n, a));
    if (scales) std::transform(a, a + n * n, a, [&](const T& x) { return x * up; });
    return Status::Ok();
  }

  // Solves T X = B. To BLAS the columns are X^T T^T = B^T.
  static Status SolveTriangleOf(StackedTriangle triangle, int64_t n, int64_t nrhs, const T* a,
                                T* b) {
    char side = 'R', uplo = triangle.upper ? 'L' : 'U', diag = triangle.unit ? 'U' : 'N';
    T one = 1;
    LapackInts ints(nrhs, n);
    JAXMG_CHECK_LAPACK(trsm, ints);
    // An adjoint has X^T conj(T) = B^T, or conj(X)^T T = conj(B)^T; T is the transpose of BLAS's
    // matrix.
    char trans = triangle.adjoint ? 'T' : 'N';
    const bool conjugates = triangle.adjoint && kIsComplex<T>;
    if (conjugates) std::transform(b, b + n * nrhs, b, [](const T& x) { return Conj(x); });
    HostLapack<T>().trsm(&side, &uplo, &trans, &diag, ints[0], ints[1], &one, const_cast<T*>(a),
                         ints[1], b, ints[0]);
    if (conjugates) std::transform(b, b + n * nrhs, b, [](const T& x) { return Conj(x); });
    return Status::Ok();
  }

  Status FactorQrOf(int64_t m, int64_t n, T* a, T* q, Space& space) {
    const int64_t k = std::min(m, n), size = 32 * std::max<int64_t>(n, 1);
    if (!IsFinite(m * n, a)) {
      constexpr R kNan = std::numeric_limits<R>::quiet_NaN();
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) a[i * n + j] = i <= j ? T(kNan) : T(0);
      }
      if (q != nullptr) FillWithNaN(m * k, 1, q, m * k);
      return Status::Ok();
    }
    space.turned.resize(m * n);
    space.taus.resize(k);
    space.work.resize(size);
    T* const turned = space.turned.data();
    Turn(n, m, a, turned);  // row-major to column-major
    LapackInts ints(m, n, k, size);
    JAXMG_CHECK_LAPACK(geqrf, ints);
    int failed = 0;
    HostLapack<T>().geqrf(ints[0], ints[1], turned, ints[0], space.taus.data(), space.work.data(),
                          ints[3], &failed);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) a[i * n + j] = i <= j ? turned[j * m + i] : T(0);
    }
    if (q == nullptr) return Status::Ok();
    JAXMG_CHECK_LAPACK(orgqr, ints);
    HostLapack<T>().orgqr(ints[0], ints[2], ints[2], turned, ints[0], space.taus.data(),
                          space.work.data(), ints[3], &failed);
    Turn(m, k, turned, q);
    return Status::Ok();
  }

  static void FactorOne(int64_t n, T* a, int32_t* pivots) {
    for (int64_t j = 0; j < n; ++j) {
      int64_t chosen = j;
      for (int64_t i = j + 1; i < n; ++i) {
        if (Size(a[i * n + j]) > Size(a[chosen * n + j])) chosen = i;
      }
      pivots[j] = static_cast<int32_t>(chosen);
      if (chosen != j) std::swap_ranges(a + j * n, a + (j + 1) * n, a + chosen * n);
      const T pivot = a[j * n + j];
      for (int64_t i = j + 1; i < n; ++i) {
        T* const row = a + i * n;
        if (pivot != T(0)) row[j] /= pivot;
        for (int64_t c = j + 1; c < n; ++c) row[c] -= row[j] * a[j * n + c];
      }
    }
  }

  static void FactorLower(const HostLower<T>& a) {
    constexpr R kNan = std::numeric_limits<R>::quiet_NaN();
    for (int64_t j = 0; j < a.n; ++j) {
      for (int64_t p = 0; p < j; ++p) {
        for (int64_t i = j; i < a.n; ++i) a(i, j) -= a(i, p) * Conj(a(j, p));
      }
      const R pivot = std::real(a(j, j));
      const R root = pivot > 0 ? std::sqrt(pivot) : kNan;
      a(j, j) = root;
      for (int64_t i = j + 1; i < a.n; ++i) {
        a(i, j) /= root;
        a(j, i) = 0;
      }
    }
    const bool failed = a.n > 0 && std::isnan(std::real(a(a.n - 1, a.n - 1)));
    for (int64_t i = 0; failed && i < a.n; ++i) {
      for (int64_t j = 0; j <= i; ++j) a(i, j) = kNan;
    }
  }

  static void InvertLower(const HostLower<T>& a) {
    for (int64_t j = 0; j < a.n; ++j) {
      a(j, j) = T(1) / a(j, j);
      for (int64_t i = j + 1; i < a.n; ++i) {
        T sum = 0;
        for (int64_t p = j; p < i; ++p) sum += a(i, p) * a(p, j);
        a(i, j) = -sum / a(i, i);
      }
    }
  }

  // The magnitude by which LAPACK selects pivots.
  static R Size(T x) { return std::abs(std::real(x)) + std::abs(std::imag(x)); }

  Blas<T>& blas_;
  MatrixSolver<T>& solver_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_STACKS_STACKS_H_
