// Symmetric tridiagonal test matrices for eigensolvers, and their eigenvalues in long double.
#ifndef JAXMG_TESTS_CC_SUPPORT_TRIDIAGONAL_H_
#define JAXMG_TESTS_CC_SUPPORT_TRIDIAGONAL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace jaxmg::testing {

template <typename R>
struct Tridiagonal {
  std::vector<R> d, e;

  int64_t n() const { return d.size(); }
  long double off(int64_t i) const { return i >= 0 && i + 1 < n() ? e[i] : R(0); }
  // Returns the largest column sum of absolute values.
  long double norm() const {
    long double norm = 0;
    for (int64_t i = 0; i < n(); ++i) {
      norm = std::max(
          norm, std::abs(static_cast<long double>(d[i])) + std::abs(off(i - 1)) + std::abs(off(i)));
    }
    return norm;
  }
};

// Returns the number of eigenvalues less than x, from a Sturm sequence.
template <typename R>
int64_t CountBelow(const Tridiagonal<R>& t, long double x) {
  int64_t count = 0;
  long double q = 1;
  for (int64_t i = 0; i < t.n(); ++i) {
    q = t.d[i] - x - (i > 0 ? t.off(i - 1) * (t.off(i - 1) / q) : 0);
    if (q == 0) q = std::numeric_limits<long double>::min() * 1e30L;
    count += q < 0;
  }
  return count;
}

// Returns eigenvalue `index` in ascending order.
template <typename R>
long double Bisect(const Tridiagonal<R>& t, int64_t index) {
  const long double norm = t.norm();
  long double low = -norm, high = norm;
  for (int step = 0; step < 70; ++step) {
    const long double middle = (low + high) / 2;
    (CountBelow(t, middle) > index ? high : low) = middle;
  }
  return (low + high) / 2;
}

// Reduces a dense symmetric matrix (n x n) with Householder reflections.
template <typename R>
Tridiagonal<R> Tridiagonalize(int64_t n, std::vector<double> a) {
  for (int64_t k = 0; k + 2 < n; ++k) {
    std::vector<double> v(n, 0.0), p(n, 0.0);
    double norm = 0, vv = 0, vp = 0;
    for (int64_t i = k + 1; i < n; ++i) norm += (v[i] = a[i * n + k]) * v[i];
    v[k + 1] += std::copysign(std::sqrt(norm), v[k + 1]);
    for (double x : v) vv += x * x;
    if (vv == 0) continue;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) p[i] += a[i * n + j] * v[j] * 2 / vv;
    }
    for (int64_t i = 0; i < n; ++i) vp += v[i] * p[i] / vv;
    for (int64_t i = 0; i < n; ++i) p[i] -= vp * v[i];
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) a[i * n + j] -= v[i] * p[j] + p[i] * v[j];
    }
  }
  Tridiagonal<R> t;
  for (int64_t i = 0; i < n; ++i) {
    t.d.push_back(R(a[i * n + i]));
    if (i + 1 < n) t.e.push_back(R(a[(i + 1) * n + i]));
  }
  return t;
}

// Returns a matrix with these eigenvalues: applies random reflections to the diagonal matrix and
// reduces the result.
template <typename R>
Tridiagonal<R> WithSpectrum(int64_t n, std::mt19937_64& random,
                            const std::function<double(int64_t)>& eigenvalue) {
  std::normal_distribution<double> normal;
  std::vector<double> a(n * n, 0.0);
  for (int64_t i = 0; i < n; ++i) a[i * n + i] = eigenvalue(i);
  for (int reflection = 0; reflection < 3; ++reflection) {
    std::vector<double> v(n);
    double vv = 0;
    for (double& x : v) x = normal(random), vv += x * x;
    for (int side = 0; side < 2; ++side) {  // rows, then columns
      for (int64_t i = 0; i < n; ++i) {
        auto at = [&](int64_t j) -> double& { return side == 0 ? a[j * n + i] : a[i * n + j]; };
        double dot = 0;
        for (int64_t j = 0; j < n; ++j) dot += v[j] * at(j);
        for (int64_t j = 0; j < n; ++j) at(j) -= 2 * dot / vv * v[j];
      }
    }
  }
  return Tridiagonalize<R>(n, std::move(a));
}

template <typename R>
struct Kind {
  std::string name;
  // Makes a matrix of order n.
  std::function<Tridiagonal<R>(int64_t n, std::mt19937_64& random)> make;
  // The largest order; limited for kinds that take long to make.
  int64_t largest = std::numeric_limits<int64_t>::max();
};

// Returns a matrix whose elements are functions of i.
template <typename R, typename D, typename E>
Tridiagonal<R> FromElements(int64_t n, const D& d, const E& e) {
  Tridiagonal<R> t;
  for (int64_t i = 0; i < n; ++i) t.d.push_back(R(d(i)));
  for (int64_t i = 0; i + 1 < n; ++i) t.e.push_back(R(e(i)));
  return t;
}

// Returns the kinds of matrices with which LAPACK tests its tridiagonal eigensolvers.
template <typename R>
std::vector<Kind<R>> Kinds() {
  using Random = std::mt19937_64;
  constexpr double kEps = std::numeric_limits<R>::epsilon();
  constexpr double kTiny = sizeof(R) == 8 ? 1e-300 : 1e-36;
  auto constant = [](double value) { return [value](int64_t) { return value; }; };
  auto uniform = [](Random& random, double scale = 1) {
    return [&random, scale](int64_t) {
      return scale * std::uniform_real_distribution<double>(-1, 1)(random);
    };
  };
  auto normal = [](Random& random) {
    return [&random](int64_t) { return std::normal_distribution<double>()(random); };
  };
  auto plain = [&](const std::string& name, auto d, auto e) {
    return Kind<R>{name, [=](int64_t n, Random&) { return FromElements<R>(n, d, e); }};
  };
  auto spectrum = [](const std::string& name, std::function<double(int64_t, int64_t)> value) {
    auto make = [=](int64_t n, Random& random) {
      return WithSpectrum<R>(n, random, [&](int64_t i) { return value(i, n); });
    };
    return Kind<R>{name, make, 60};
  };
  auto share = [](int64_t i, int64_t n) { return n > 1 ? double(i) / (n - 1) : 0; };
  std::vector<Kind<R>> kinds = {
      plain("zero", constant(0), constant(0)),
      plain("identity", constant(1), constant(0)),
      plain("1-2-1", constant(2), constant(-1)),
      plain("1-2-1, tiny", constant(2 * kTiny), constant(kTiny)),
      plain("1-2-1, huge", constant(2 / kTiny), constant(-1 / kTiny)),
      plain("zero diagonal", constant(0), constant(1)),
      plain("equal, weakly coupled", constant(1), constant(10 * kEps)),
      plain("equal, coupled", constant(1), constant(1e-3)),
      plain(
          "glued Wilkinson", [](int64_t i) { return std::abs(i % 21 - 10); },
          [=](int64_t i) { return i % 21 == 20 ? std::sqrt(kEps) : 1; }),
      plain(
          "glued Wilkinson, weakly", [](int64_t i) { return std::abs(i % 21 - 10); },
          [=](int64_t i) { return i % 21 == 20 ? kEps : 1; }),
      plain("Clement", constant(0), [](int64_t i) { return std::sqrt((i + 1.0) * (i + 3)); }),
      plain("Legendre", constant(0),
            [](int64_t i) { return (i + 1) / std::sqrt(4.0 * (i + 1) * (i + 1) - 1); }),
      spectrum("one at 1, others at eps",
               [=](int64_t i, int64_t) { return i == 0 ? 1 : kEps * (1 + i % 3); }),
      spectrum("one at eps, others at 1", [=](int64_t i, int64_t) { return i == 0 ? kEps : 1; }),
      spectrum("geometric", [=](int64_t i, int64_t n) { return std::pow(kEps, share(i, n)); }),
      spectrum("arithmetic, of both signs",
               [=](int64_t i, int64_t n) { return (i % 2 ? 1 : -1) * (1 - share(i, n) / 2); }),
  };
  kinds.push_back({"Wilkinson", [](int64_t n, Random&) {
                     return FromElements<R>(
                         n, [=](int64_t i) { return std::abs(i - (n - 1) / 2.0); },
                         [](int64_t) { return 1; });
                   }});
  kinds.push_back({"uniform", [=](int64_t n, Random& random) {
                     return FromElements<R>(n, uniform(random), uniform(random));
                   }});
  kinds.push_back({"normal", [=](int64_t n, Random& random) {
                     return FromElements<R>(n, normal(random), normal(random));
                   }});
  for (double scale : {kTiny, 1 / kTiny}) {
    kinds.push_back({scale < 1 ? "tiny" : "huge", [=](int64_t n, Random& random) {
                       return FromElements<R>(n, uniform(random, scale), uniform(random, scale));
                     }});
  }
  kinds.push_back({"diagonal", [=](int64_t n, Random& random) {
                     return FromElements<R>(n, normal(random), constant(0));
                   }});
  kinds.push_back({"in two parts", [=](int64_t n, Random& random) {
                     Tridiagonal<R> t = FromElements<R>(n, normal(random), normal(random));
                     if (n > 1) t.e[n / 3] = 0;
                     return t;
                   }});
  for (int direction : {0, 1}) {
    kinds.push_back({direction ? "graded down" : "graded up", [=](int64_t n, Random& random) {
                       auto size = [=](int64_t i) {
                         return std::pow(kEps * kEps, share(direction ? i : n - 1 - i, n));
                       };
                       auto any = uniform(random);
                       return FromElements<R>(
                           n, [=](int64_t i) { return size(i) * (1 + any(i)); },
                           [=](int64_t i) { return std::sqrt(size(i) * size(i + 1)) * any(i); });
                     }});
  }
  return kinds;
}

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_TRIDIAGONAL_H_
