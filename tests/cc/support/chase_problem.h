// Band matrices, their reduction on several ranks, and checks of the result.
#ifndef JAXMG_TESTS_CC_SUPPORT_CHASE_PROBLEM_H_
#define JAXMG_TESTS_CC_SUPPORT_CHASE_PROBLEM_H_

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/engine/eigen/chase.h"

namespace jaxmg::testing {

struct ChaseCase {
  int64_t n, b, group;
  int ranks;
  int64_t bundle = 1;  // smallest number of sweeps in a bundle
};

inline std::string Describe(const ChaseCase& c) {
  return "n " + std::to_string(c.n) + " b " + std::to_string(c.b) + " group " +
         std::to_string(c.group) + " bundle " + std::to_string(c.bundle) + " ranks " +
         std::to_string(c.ranks);
}

// A Hermitian band matrix, stored in full and column-major.
template <typename T>
struct BandMatrix {
  BandMatrix(int64_t n, int64_t b) : n(n), b(b), a(n * n) {}
  void Set(int64_t i, int64_t j, T value) {
    a[i + j * n] = i == j ? T(std::real(value)) : value;
    if (i != j) a[j + i * n] = Conj(value);
  }
  // Returns a matrix whose elements with i >= j are f(i, j).
  template <typename F>
  static BandMatrix Of(const ChaseCase& c, const F& f) {
    BandMatrix matrix(c.n, c.b);
    for (int64_t j = 0; j < c.n; ++j) {
      for (int64_t i = j; i < std::min(c.n, j + c.b + 1); ++i) matrix.Set(i, j, f(i, j));
    }
    return matrix;
  }
  static BandMatrix Normal(const ChaseCase& c, Real<T> scale = 1) {
    std::mt19937_64 random(c.n * 1009 + c.b);
    return Of(c, [&](int64_t, int64_t) { return Random<T>(random) * scale; });
  }
  int64_t ld() const { return std::min(2 * b, n) + n % 3; }
  std::vector<T> stored() const {
    std::vector<T> band(ld() * n);
    for (int64_t j = 0; j < n; ++j) {
      const T* column = a.data() + j * n;
      std::copy(column + j, column + std::min(n, j + b + 1), &band[j * ld()]);
    }
    return band;
  }

  const int64_t n, b;
  std::vector<T> a;
};

// The results of a chase and of the products with Q on all ranks.
template <typename T>
struct ChaseResult {
  std::vector<std::vector<Real<T>>> d, e;
  std::vector<T> q;
};

template <typename T>
ChaseResult<T> Run(const ChaseCase& c, const BandMatrix<T>& matrix, bool vectors = true,
                   const DeviceMaker& make = OnHost) {
  const int64_t n = c.n, block = (n + c.ranks - 1) / c.ranks;
  const ChaseShape shape(n, c.b, c.group, c.bundle, c.ranks);
  std::vector<T> band = matrix.stored();
  ChaseResult<T> chased;
  chased.d.assign(c.ranks, std::vector<Real<T>>(n));
  chased.e.assign(c.ranks, std::vector<Real<T>>(std::max<int64_t>(n - 1, 0)));
  chased.q.assign(n * n, T(0));
  // Allocates exactly the required workspace; memory that must not be read contains NaN.
  std::vector<std::vector<T>> bundles, chase_space, apply_space, z;
  auto first = [&](int rank) { return std::min(rank * block, n); };
  for (int rank = 0; rank < c.ranks; ++rank) {
    const int64_t columns = first(rank + 1) - first(rank);
    auto space = [](int64_t elements) { return std::vector<T>(elements, NaN<T>()); };
    bundles.push_back(space(vectors ? shape.stored(rank) : 0));
    chase_space.push_back(space(ChaseWorkspace(shape, rank, vectors)));
    apply_space.push_back(space(vectors ? ApplyChaseWorkspace(shape, columns) : 0));
    // Columns of the identity, stored transposed.
    z.emplace_back(n * columns, T(0));
    for (int64_t j = 0; j < columns; ++j) z[rank][(first(rank) + j) * columns + j] = 1;
  }
  const auto outcomes = RunRanks(
      c.ranks,
      [&](const RankContext& context) -> Status {
        const int rank = context.comm.rank();
        JAXMG_RETURN_IF_ERROR(ChaseBulges<T>(context, shape, vectors,
                                             rank == kRoot ? band.data() : nullptr, matrix.ld(),
                                             chased.d[rank].data(), chased.e[rank].data(),
                                             bundles[rank].data(), chase_space[rank].data()));
        if (!vectors) return Status::Ok();
        return ApplyChase<T>(context, shape, bundles[rank].data(), first(rank + 1) - first(rank),
                             z[rank].data(), apply_space[rank].data());
      },
      kPatience, make);
  for (const Status& outcome : outcomes) EXPECT(outcome.ok()) << outcome.message();
  for (int rank = 0; rank < c.ranks; ++rank) {
    const int64_t columns = first(rank + 1) - first(rank);
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = 0; i < n; ++i) {
        chased.q[(first(rank) + j) * n + i] = Conj(z[rank][i * columns + j]);
      }
    }
  }
  return chased;
}

// The dtype in which the tests compute: wider than the tested dtype if a wider one exists.
template <typename T>
using Wide = std::conditional_t<kIsComplex<T>, std::complex<double>, double>;

// Returns the Frobenius norm, without overflow or underflow.
template <typename W>
double Norm(const std::vector<W>& x) {
  double largest = 0, sum = 0;
  for (const W& value : x) {
    if (!std::isfinite(std::abs(value))) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(value));
  }
  if (largest == 0) return 0;
  for (const W& value : x) sum += std::norm(value / largest);
  return largest * std::sqrt(sum);
}

// Returns C = A B^H, n x n.
template <typename W>
std::vector<W> TimesConjTrans(int64_t n, const std::vector<W>& a, const std::vector<W>& b) {
  std::vector<W> c(n * n);
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t j = 0; j < n; ++j) {
      const W factor = Conj(b[k * n + j]);
      for (int64_t i = 0; i < n; ++i) c[j * n + i] += a[k * n + i] * factor;
    }
  }
  return c;
}

template <typename T>
void CheckFactors(const ChaseCase& c, const BandMatrix<T>& matrix, const ChaseResult<T>& chased,
                  const std::string& what) {
  using W = Wide<T>;
  const int64_t n = c.n;
  for (int rank = 1; rank < c.ranks; ++rank) {
    EXPECT(chased.d[rank] == chased.d[0] && chased.e[rank] == chased.e[0])
        << what << " " << Describe(c) << ": ranks differ";
  }
  if (n == 0) return;
  const std::vector<W> q(chased.q.begin(), chased.q.end());
  std::vector<W> left(n * n);  // Q Tri
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < n; ++i) {
      W sum = q[i + j * n] * W(chased.d[0][j]);
      if (j > 0) sum += q[i + (j - 1) * n] * W(chased.e[0][j - 1]);
      if (j + 1 < n) sum += q[i + (j + 1) * n] * W(chased.e[0][j]);
      left[i + j * n] = sum;
    }
  }
  std::vector<W> residual = TimesConjTrans(n, left, q), defect = TimesConjTrans(n, q, q);
  const std::vector<W> a(matrix.a.begin(), matrix.a.end());
  for (int64_t i = 0; i < n * n; ++i) residual[i] -= a[i];
  for (int64_t i = 0; i < n; ++i) defect[i * n + i] -= 1;
  const double unit = n * static_cast<double>(kEps<T>), size = Norm(a);
  const double backward = size == 0 ? Norm(residual) : Norm(residual) / size / unit;
  const double orthogonal = Norm(defect) / unit;
  EXPECT(backward < 5 && orthogonal < 5)
      << what << " " << Describe(c) << ": " << backward << ", " << orthogonal;
}

template <typename T>
ChaseResult<T> Check(const ChaseCase& c, const BandMatrix<T>& matrix, const std::string& what = "",
                     const DeviceMaker& make = OnHost) {
  const ChaseResult<T> chased = Run(c, matrix, true, make);
  CheckFactors(c, matrix, chased, what);
  const ChaseResult<T> values = Run(c, matrix, false, make);
  EXPECT(values.d == chased.d && values.e == chased.e)
      << what << " " << Describe(c) << ": other values without vectors";
  return chased;
}

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_CHASE_PROBLEM_H_
