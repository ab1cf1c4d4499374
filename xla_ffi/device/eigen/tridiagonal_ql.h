// The implicit QL iteration for small symmetric tridiagonal matrices, shared by the host and
// kernels: LAPACK's steqr. NVRTC compiles this header without the standard library.
//
// Source: B. N. Parlett, The Symmetric Eigenvalue Problem (1998), chapter 8.
#ifndef JAXMG_XLA_FFI_DEVICE_EIGEN_TRIDIAGONAL_QL_H_
#define JAXMG_XLA_FFI_DEVICE_EIGEN_TRIDIAGONAL_QL_H_

#ifdef __CUDACC__
#define JAXMG_DEVICE __device__
#else
#include <cmath>
#define JAXMG_DEVICE
#endif

namespace jaxmg::tridiagonal {

#ifndef __CUDACC__
// CUDA has these functions without std.
using std::copysign;
using std::fabs;
using std::sqrt;
#endif

// Replaces the diagonal d (n) by the matrix's eigenvalues, in no order, and the off-diagonal e (n -
// 1 numbers in an array of n) by zeros up to rounding of the largest entry. Calls rotate(i, c, s)
// for each rotation in turn. With it the columns (x, y) = (i, i + 1) become (c x - s y, s x + c y);
// applied to the identity, the rotations give the eigenvectors. Returns false if an eigenvalue took
// more than kMostSweeps.
template <typename R, typename Rotate>
JAXMG_DEVICE bool SolveByQl(int n, R* d, R* e, const Rotate& rotate) {
  constexpr bool kSingle = sizeof(R) == 4;
  constexpr R kEps = kSingle ? R(0x1p-24) : R(0x1p-53);
  // Below this size the square of a number may not be a normal number.
  constexpr R kTiny = kSingle ? R(0x1p-60) : R(0x1p-500);
  constexpr int kMostSweeps = 60;
  R largest = 0;
  for (int i = 0; i < n; ++i) {
    if (largest < fabs(d[i])) largest = fabs(d[i]);
    if (i + 1 < n && largest < fabs(e[i])) largest = fabs(e[i]);
  }
  const R nothing = kEps / 8 * largest;
  for (int first = 0; first < n; ++first) {
    for (int sweep = 0;; ++sweep) {
      int last = first;  // last row that is not separated from the first
      while (last + 1 < n && fabs(e[last]) > nothing + kEps * (fabs(d[last]) + fabs(d[last + 1]))) {
        ++last;
      }
      if (last == first) break;
      if (sweep == kMostSweeps) return false;
      // Computes Wilkinson's shift. It creates a bulge, which is chased upwards.
      const R ratio = (d[first + 1] - d[first]) / (2 * e[first]);
      R g = d[last] - d[first] + e[first] / (ratio + copysign(sqrt(ratio * ratio + 1), ratio));
      R c = 1, s = 1, moved = 0;
      int i = last - 1;
      for (; i >= first; --i) {
        const R f = s * e[i], b = c * e[i];
        const R r = sqrt(f * f + g * g);
        if (r < kTiny) break;
        e[i + 1] = r;
        s = f / r;
        c = g / r;
        g = d[i + 1] - moved;
        const R t = (d[i] - g) * s + 2 * c * b;
        moved = s * t;
        d[i + 1] = g + moved;
        g = c * t - b;
        rotate(i, c, s);
      }
      e[last] = 0;
      if (i >= first) {  // the matrix splits into two
        d[i + 1] -= moved;
        e[i + 1] = 0;
        continue;
      }
      d[first] -= moved;
      e[first] = g;
    }
  }
  return true;
}

}  // namespace jaxmg::tridiagonal

#undef JAXMG_DEVICE

#endif  // JAXMG_XLA_FFI_DEVICE_EIGEN_TRIDIAGONAL_QL_H_
