#include "xla_ffi/engine/eigen/divide/tridiagonal_leaf.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace jaxmg {
namespace {

// (x, y) := (c x + s y, c y - s x).
template <typename R>
void Rotate(int64_t n, R c, R s, R* x, R* y) {
  constexpr int kLanes = 8;  // the compiler vectorizes them
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    R old_x[kLanes], old_y[kLanes];
    std::copy_n(x + i, kLanes, old_x);
    std::copy_n(y + i, kLanes, old_y);
    for (int lane = 0; lane < kLanes; ++lane) {
      const R a = old_x[lane], b = old_y[lane];
      old_x[lane] = c * a + s * b;
      old_y[lane] = c * b - s * a;
    }
    std::copy_n(old_x, kLanes, x + i);
    std::copy_n(old_y, kLanes, y + i);
  }
  for (; i < n; ++i) {
    const R old = x[i];
    x[i] = c * old + s * y[i];
    y[i] = c * y[i] - s * old;
  }
}

// Requires numbers whose squares don't overflow.
template <typename R>
R Norm(R x, R y) {
  const R square = x * x + y * y;
  constexpr R kSmall = std::numeric_limits<R>::min() / std::numeric_limits<R>::epsilon();
  return square > kSmall ? std::sqrt(square) : std::hypot(x, y);
}

// Performs one sweep on rows [begin, end], which have no negligible off-diagonal element.
template <typename R>
void Sweep(int64_t begin, int64_t end, R* d, R* e, int64_t rows, R* q, int64_t ldq) {
  // The shift: the eigenvalue of the last 2 x 2 block that is closer to its last element.
  const R half = (d[end - 1] - d[end]) / 2, off = e[end - 1];
  const R shift = d[end] - off * (off / (half + std::copysign(Norm(half, off), half)));
  R x = d[begin] - shift, bulge = e[begin];
  for (int64_t i = begin; i < end; ++i) {
    const R norm = Norm(x, bulge);
    const R c = norm > 0 ? x / norm : 1, s = norm > 0 ? bulge / norm : 0;
    if (i > begin) e[i - 1] = norm;
    const R mixed = 2 * c * e[i] + s * (d[i + 1] - d[i]);
    d[i] += s * mixed;
    d[i + 1] -= s * mixed;
    e[i] = c * mixed - e[i];
    if (i + 1 < end) {
      x = e[i];
      bulge = s * e[i + 1];
      e[i + 1] *= c;
    }
    Rotate(rows, c, s, q + i * ldq, q + (i + 1) * ldq);
  }
}

}  // namespace

template <typename R>
bool SolveLeaf(int64_t n, R* d, R* e, int64_t rows, R* q, int64_t ldq, int sweeps) {
  constexpr R kEps = std::numeric_limits<R>::epsilon() / 2;
  auto negligible = [&](int64_t i) {
    return std::abs(e[i]) <= kEps * (std::abs(d[i]) + std::abs(d[i + 1])) ||
           std::abs(e[i]) < std::numeric_limits<R>::min();
  };
  bool converged = true;
  int64_t left = sweeps * n;
  for (int64_t end = n - 1; end > 0;) {
    if (negligible(end - 1)) {
      --end;
      continue;
    }
    if (left-- <= 0) {
      converged = false;
      break;
    }
    int64_t begin = end - 1;
    while (begin > 0 && !negligible(begin - 1)) --begin;
    Sweep(begin, end, d, e, rows, q, ldq);
  }
  for (int64_t j = 0; j + 1 < n; ++j) {
    const int64_t least = std::min_element(d + j, d + n) - d;
    if (least == j) continue;
    std::swap(d[j], d[least]);
    std::swap_ranges(q + j * ldq, q + j * ldq + rows, q + least * ldq);
  }
  return converged;
}

template bool SolveLeaf(int64_t, float*, float*, int64_t, float*, int64_t, int);
template bool SolveLeaf(int64_t, double*, double*, int64_t, double*, int64_t, int);

}  // namespace jaxmg
