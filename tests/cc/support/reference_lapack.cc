#include "tests/cc/support/reference_lapack.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <utility>
#include <vector>

#include "xla_ffi/device/host/lapack.h"

namespace jaxmg::testing {
namespace {

// Returns op(A)(i, j).
template <typename T>
T At(char op, const T* a, int lda, int i, int j) {
  if (op == 'N') return a[j * lda + i];
  return op == 'C' ? Conj(a[i * lda + j]) : a[i * lda + j];
}

template <typename T>
void Gemm(char* transa, char* transb, int* m, int* n, int* k, T* alpha, T* a, int* lda, T* b,
          int* ldb, T* beta, T* c, int* ldc) {
  for (int j = 0; j < *n; ++j) {
    for (int i = 0; i < *m; ++i) {
      T sum = 0;
      for (int l = 0; l < *k; ++l) sum += At(*transa, a, *lda, i, l) * At(*transb, b, *ldb, l, j);
      T& target = c[j * *ldc + i];
      target = *alpha * sum + (*beta == T(0) ? T(0) : *beta * target);
    }
  }
}

template <typename T>
void Gemv(char* trans, int* m, int* n, T* alpha, T* a, int* lda, T* x, int* incx, T* beta, T* y,
          int* incy) {
  const int rows = *trans == 'N' ? *m : *n, inner = *trans == 'N' ? *n : *m;
  for (int i = 0; i < rows; ++i) {
    T sum = 0;
    for (int l = 0; l < inner; ++l) sum += At(*trans, a, *lda, i, l) * x[l * *incx];
    T& target = y[i * *incy];
    target = *alpha * sum + (*beta == T(0) ? T(0) : *beta * target);
  }
}

template <typename T>
void Herk(char*, char*, int* n, int* k, Real<T>* alpha, T* a, int* lda, Real<T>* beta, T* c,
          int* ldc) {
  for (int j = 0; j < *n; ++j) {
    for (int i = j; i < *n; ++i) {
      T sum = 0;
      for (int l = 0; l < *k; ++l) sum += a[l * *lda + i] * Conj(a[l * *lda + j]);
      c[j * *ldc + i] = *alpha * sum + *beta * c[j * *ldc + i];
    }
  }
}

// op(A) for a triangular A. Reads neither the other triangle nor a unit diagonal.
template <typename T>
struct Triangular {
  bool lower() const { return (uplo == 'L') == (op == 'N'); }
  T operator()(int i, int j) const {
    if (i == j && diag == 'U') return 1;
    return i == j || lower() == (i > j) ? At(op, a, lda, i, j) : T(0);
  }

  char uplo, op, diag;
  const T* a;
  int lda;
};

// Solves op(A) x = x, or x op(A) = x, for one vector with stride inc.
template <typename T>
void SolveVector(const Triangular<T>& a, bool left, int n, T* x, int inc) {
  const bool forward = a.lower() == left;
  for (int step = 0; step < n; ++step) {
    const int i = forward ? step : n - 1 - step;
    T sum = x[i * inc];
    for (int k = forward ? 0 : i + 1; k < (forward ? i : n); ++k) {
      sum -= (left ? a(i, k) : a(k, i)) * x[k * inc];
    }
    x[i * inc] = sum / a(i, i);
  }
}

template <typename T>
void Trsm(char* side, char* uplo, char* transa, char* diag, int* m, int* n, T*, T* a, int* lda,
          T* b, int* ldb) {
  const Triangular<T> triangle = {*uplo, *transa, *diag, a, *lda};
  if (*side == 'L') {
    for (int j = 0; j < *n; ++j) SolveVector(triangle, true, *m, b + j * *ldb, 1);
  } else {
    for (int i = 0; i < *m; ++i) SolveVector(triangle, false, *n, b + i, *ldb);
  }
}

template <typename T>
void Trmm(char* side, char* uplo, char* transa, char* diag, int* m, int* n, T*, T* a, int* lda,
          T* b, int* ldb) {
  const std::vector<T> old(b, b + static_cast<size_t>(*n - 1) * *ldb + *m);
  const Triangular<T> triangle = {*uplo, *transa, *diag, a, *lda};
  for (int j = 0; j < *n; ++j) {
    for (int i = 0; i < *m; ++i) {
      T sum = 0;
      for (int k = 0; k < (*side == 'L' ? *m : *n); ++k) {
        sum +=
            *side == 'L' ? triangle(i, k) * old[j * *ldb + k] : old[k * *ldb + i] * triangle(k, j);
      }
      b[j * *ldb + i] = sum;
    }
  }
}

// The magnitude by which xGETRF selects pivots.
template <typename T>
Real<T> Size(const T& x) {
  return std::abs(std::real(x)) + std::abs(std::imag(x));
}

// Factors A = L L^H. In the upper triangle it stores L^H.
template <typename T>
void Potrf(char* uplo, int* n, T* a, int* lda, int* info) {
  const bool lower = *uplo == 'L';
  // Returns L(i, j), or its conjugate in the upper triangle.
  auto l = [&](int i, int j) -> T& { return lower ? a[j * *lda + i] : a[i * *lda + j]; };
  *info = 0;
  for (int j = 0; j < *n; ++j) {
    Real<T> diagonal = std::real(l(j, j));
    for (int k = 0; k < j; ++k) diagonal -= std::norm(l(j, k));
    if (!(diagonal > 0)) {
      *info = j + 1;
      return;
    }
    diagonal = std::sqrt(diagonal);
    l(j, j) = diagonal;
    for (int i = j + 1; i < *n; ++i) {
      T sum = l(i, j);
      for (int k = 0; k < j; ++k) sum -= l(i, k) * Conj(l(j, k));
      l(i, j) = sum / diagonal;
    }
  }
}

template <typename T>
void Getrf(int* m, int* n, T* a, int* lda, int* pivots, int* info) {
  *info = 0;
  for (int j = 0; j < std::min(*m, *n); ++j) {
    int pivot = j;
    for (int i = j + 1; i < *m; ++i) {
      if (Size(a[j * *lda + i]) > Size(a[j * *lda + pivot])) pivot = i;
    }
    pivots[j] = pivot + 1;
    for (int k = 0; k < *n; ++k) std::swap(a[k * *lda + j], a[k * *lda + pivot]);
    const T diagonal = a[j * *lda + j];
    if (diagonal == T(0)) {
      if (*info == 0) *info = j + 1;
      continue;
    }
    for (int i = j + 1; i < *m; ++i) {
      a[j * *lda + i] /= diagonal;
      for (int k = j + 1; k < *n; ++k) a[k * *lda + i] -= a[j * *lda + i] * a[k * *lda + j];
    }
  }
}

template <typename T>
void Trtri(char* uplo, char* diag, int* n, T* a, int* lda, int* info) {
  *info = 0;
  // A singular triangle is unchanged, as in LAPACK.
  for (int j = 0; j < *n && *diag != 'U'; ++j) {
    if (a[j * *lda + j] == T(0)) {
      *info = j + 1;
      return;
    }
  }
  // Uses LAPACK's order: lower triangles from the last column, upper ones from the first, so that
  // inverse * A is the identity up to rounding.
  const bool lower = *uplo == 'L';
  for (int step = 0; step < *n; ++step) {
    const int j = lower ? *n - 1 - step : step;
    T* column = a + j * *lda;
    const T reciprocal = *diag == 'U' ? T(1) : T(1) / column[j];
    if (*diag != 'U') column[j] = reciprocal;
    // The columns that are already processed hold the inverse of their block, without its unit
    // diagonal.
    auto inverse = [&](int i, int k) { return i == k && *diag == 'U' ? T(1) : a[k * *lda + i]; };
    const int begin = lower ? j + 1 : 0, end = lower ? *n : j;
    for (int next = 0; next < end - begin; ++next) {
      const int i = lower ? end - 1 - next : begin + next;
      T sum = 0;
      for (int k = lower ? begin : i; k < (lower ? i + 1 : end); ++k)
        sum += inverse(i, k) * column[k];
      column[i] = -sum * reciprocal;
    }
  }
}

// Computes eigenvalues with Jacobi rotations, which converge for every Hermitian matrix.
template <typename T>
void Jacobi(char* jobz, int n, T* a, int lda, Real<T>* w, int* info) {
  using R = Real<T>;
  std::vector<T> h(static_cast<size_t>(n) * n), v(h.size());
  for (int j = 0; j < n; ++j) {
    v[j * n + j] = 1;
    for (int i = j; i < n; ++i) {
      h[j * n + i] = i == j ? T(std::real(a[j * lda + j])) : a[j * lda + i];
      h[i * n + j] = Conj(h[j * n + i]);
    }
  }
  R largest = 0;
  for (const T& x : h) largest = std::max<R>(largest, std::abs(x));
  const bool vectors = *jobz == 'V';
  const R negligible = largest * std::numeric_limits<R>::epsilon() / 64;
  for (bool rotated = true; rotated;) {
    rotated = false;
    for (int p = 0; p < n; ++p) {
      for (int q = p + 1; q < n; ++q) {
        const T offdiagonal = h[q * n + p];
        const R size = std::abs(offdiagonal);
        if (size <= negligible) continue;
        rotated = true;
        const R tau = (std::real(h[q * n + q]) - std::real(h[p * n + p])) / (2 * size);
        const R t = (tau >= 0 ? 1 : -1) / (std::abs(tau) + std::sqrt(1 + tau * tau));
        const R c = 1 / std::sqrt(1 + t * t);
        const T s = t * c * offdiagonal / size, conj_s = Conj(s);
        for (auto* x : {&h, &v}) {  // columns: H := H J, V := V J
          if (x == &v && !vectors) continue;
          T *xp = x->data() + p * n, *xq = x->data() + q * n;
          for (int i = 0; i < n; ++i) {
            const T left = xp[i], right = xq[i];
            xp[i] = c * left - conj_s * right;
            xq[i] = s * left + c * right;
          }
        }
        for (int j = 0; j < n; ++j) {  // rows: H := J^H H
          const T hp = h[j * n + p], hq = h[j * n + q];
          h[j * n + p] = c * hp - s * hq;
          h[j * n + q] = conj_s * hp + c * hq;
        }
        h[q * n + p] = h[p * n + q] = 0;  // removes rounding errors, which would be rotated forever
      }
    }
  }
  std::vector<int> order(n);
  for (int j = 0; j < n; ++j) order[j] = j;
  for (int i = 1; i < n; ++i) {
    for (int j = i; j > 0 && std::real(h[order[j] * n + order[j]]) <
                                 std::real(h[order[j - 1] * n + order[j - 1]]);
         --j) {
      std::swap(order[j], order[j - 1]);
    }
  }
  for (int j = 0; j < n; ++j) {
    w[j] = std::real(h[order[j] * n + order[j]]);
    for (int i = 0; vectors && i < n; ++i) a[j * lda + i] = v[order[j] * n + i];
  }
  *info = 0;
}

template <typename T>
void Syevd(char* jobz, char*, int* n, T* a, int* lda, Real<T>* w, T*, int*, int*, int*, int* info) {
  Jacobi(jobz, *n, a, *lda, w, info);
}

template <typename T>
void Heevd(char* jobz, char*, int* n, T* a, int* lda, Real<T>* w, T*, int*, Real<T>*, int*, int*,
           int*, int* info) {
  Jacobi(jobz, *n, a, *lda, w, info);
}

// Computes unblocked reflectors, as LAPACK's geqr2: H_j = 1 - tau v v^H, v_j = 1. Scales each
// column to a size of 1 first, because squares, and quotients of denormal numbers, may vanish.
template <typename T>
void Geqrf(int* m, int* n, T* a, int* lda, T* tau, T*, int*, int* info) {
  for (int j = 0; j < std::min(*m, *n); ++j) {
    T* const x = a + int64_t{j} * *lda;
    Real<T> below = 0;
    for (int i = j + 1; i < *m; ++i) below = std::max<Real<T>>(below, std::abs(x[i]));
    tau[j] = 0;
    if (below > 0 || std::imag(x[j]) != 0) {
      const Real<T> largest = std::max<Real<T>>(below, std::abs(x[j]));
      Real<T> sum = 0;
      for (int i = j; i < *m; ++i) {
        x[i] /= largest;
        sum += std::norm(x[i]);
      }
      const Real<T> beta = std::real(x[j]) > 0 ? -std::sqrt(sum) : std::sqrt(sum);
      tau[j] = (T(beta) - x[j]) / beta;
      for (int i = j + 1; i < *m; ++i) x[i] /= x[j] - T(beta);
      x[j] = beta * largest;
    }
    for (int c = j + 1; c < *n; ++c) {
      T* const y = a + int64_t{c} * *lda;
      T sum = y[j];
      for (int i = j + 1; i < *m; ++i) sum += Conj(x[i]) * y[i];
      sum *= Conj(tau[j]);
      y[j] -= sum;
      for (int i = j + 1; i < *m; ++i) y[i] -= sum * x[i];
    }
  }
  *info = 0;
}

template <typename T>
void Orgqr(int* m, int* n, int* k, T* a, int* lda, T* tau, T*, int*, int* info) {
  std::vector<T> q(int64_t{*m} * *n);
  for (int c = 0; c < *n; ++c) {
    T* const y = q.data() + int64_t{c} * *m;
    y[c] = 1;
    for (int j = *k - 1; j >= 0; --j) {
      const T* const x = a + int64_t{j} * *lda;
      T sum = y[j];
      for (int i = j + 1; i < *m; ++i) sum += Conj(x[i]) * y[i];
      sum *= tau[j];
      y[j] -= sum;
      for (int i = j + 1; i < *m; ++i) y[i] -= sum * x[i];
    }
  }
  for (int c = 0; c < *n; ++c) {
    std::copy_n(q.data() + int64_t{c} * *m, *m, a + int64_t{c} * *lda);
  }
  *info = 0;
}

// Orthogonalizes x (n) against the columns of q in two passes, and normalizes it.
template <typename T>
void MakeUnit(int n, int columns, const T* q, int64_t ldq, T* x) {
  for (int pass = 0; pass < 2; ++pass) {
    for (int k = 0; k < columns; ++k) {
      T dot = 0;
      for (int i = 0; i < n; ++i) dot += Conj(q[k * ldq + i]) * x[i];
      for (int i = 0; i < n; ++i) x[i] -= dot * q[k * ldq + i];
    }
    Real<T> sum = 0;
    for (int i = 0; i < n; ++i) sum += std::norm(x[i]);
    for (int i = 0; sum > 0 && i < n; ++i) x[i] /= std::sqrt(sum);
  }
}

// Applies one-sided Jacobi rotations to a square matrix, so that A V has orthogonal columns.
// Completes U's columns for singular values of 0 to an orthonormal basis.
template <typename T>
void OneSided(const char* jobz, int n, T* a, int lda, Real<T>* s, T* u, int ldu, T* vt, int ldvt) {
  using R = Real<T>;
  std::vector<T> v(int64_t{n} * n);
  for (int i = 0; i < n; ++i) v[int64_t{i} * n + i] = 1;
  auto rotate = [](int count, T* x, T* y, R c, R sine, T phase) {
    for (int i = 0; i < count; ++i) {
      const T p = x[i], q = y[i] * Conj(phase);
      x[i] = c * p - sine * q;
      y[i] = sine * p + c * q;
    }
  };
  for (int sweep = 0; sweep < 60; ++sweep) {
    bool rotated = false;
    for (int p = 0; p < n; ++p) {
      for (int q = p + 1; q < n; ++q) {
        T *x = a + int64_t{p} * lda, *y = a + int64_t{q} * lda;
        R xx = 0, yy = 0;
        T xy = 0;
        for (int i = 0; i < n; ++i) {
          xx += std::norm(x[i]);
          yy += std::norm(y[i]);
          xy += Conj(x[i]) * y[i];
        }
        const R size = std::abs(xy);
        if (size <= std::numeric_limits<R>::epsilon() * std::sqrt(xx * yy) || size == 0) continue;
        rotated = true;
        const R zeta = (yy - xx) / (2 * size);
        const R t = (zeta < 0 ? -1 : 1) / (std::abs(zeta) + std::sqrt(1 + zeta * zeta));
        const R c = 1 / std::sqrt(1 + t * t);
        rotate(n, x, y, c, c * t, xy / size);
        rotate(n, v.data() + int64_t{p} * n, v.data() + int64_t{q} * n, c, c * t, xy / size);
      }
    }
    if (!rotated) break;
  }
  std::vector<R> norms(n);
  std::vector<T> right(int64_t{n} * n);
  std::vector<int> order(n);
  for (int j = 0; j < n; ++j) {
    R sum = 0;
    for (int i = 0; i < n; ++i) sum += std::norm(a[int64_t{j} * lda + i]);
    norms[j] = std::sqrt(sum);
    order[j] = j;
  }
  std::stable_sort(order.begin(), order.end(), [&](int i, int j) { return norms[i] > norms[j]; });
  const R tiny = n == 0 ? 0 : norms[order[0]] * std::numeric_limits<R>::epsilon() * n;
  for (int j = 0; j < n; ++j) {
    s[j] = norms[order[j]];
    if (*jobz == 'N') continue;
    T* const to = u + int64_t{j} * ldu;
    const T* const from = a + int64_t{order[j]} * lda;
    std::copy_n(v.data() + int64_t{order[j]} * n, n, right.data() + int64_t{j} * n);
    MakeUnit(n, j, right.data(), n, right.data() + int64_t{j} * n);
    for (int i = 0; i < n; ++i) vt[int64_t{i} * ldvt + j] = Conj(right[int64_t{j} * n + i]);
    for (int axis = -1; axis < n; ++axis) {
      if (axis < 0 && s[j] <= tiny) continue;
      for (int i = 0; i < n; ++i) to[i] = axis < 0 ? from[i] / s[j] : T(i == axis ? 1 : 0);
      for (int pass = 0; pass < 2; ++pass) {
        for (int k = 0; k < j; ++k) {
          T dot = 0;
          for (int i = 0; i < n; ++i) dot += Conj(u[int64_t{k} * ldu + i]) * to[i];
          for (int i = 0; i < n; ++i) to[i] -= dot * u[int64_t{k} * ldu + i];
        }
      }
      R norm = 0;
      for (int i = 0; i < n; ++i) norm += std::norm(to[i]);
      norm = std::sqrt(norm);
      if (norm < R(0.1) / std::sqrt(R(n))) continue;
      for (int i = 0; i < n; ++i) to[i] /= norm;
      break;
    }
  }
}

template <typename T>
void Gesdd(char* jobz, int* m, int* n, T* a, int* lda, Real<T>* s, T* u, int* ldu, T* vt, int* ldvt,
           T*, int*, int*, int* info) {
  *info = *m == *n ? 0 : -2;  // square matrices only
  if (*info == 0) OneSided(jobz, *n, a, *lda, s, u, *ldu, vt, *ldvt);
}

template <typename T>
void ComplexGesdd(char* jobz, int* m, int* n, T* a, int* lda, Real<T>* s, T* u, int* ldu, T* vt,
                  int* ldvt, T*, int*, Real<T>*, int*, int* info) {
  *info = *m == *n ? 0 : -2;  // square matrices only
  if (*info == 0) OneSided(jobz, *n, a, *lda, s, u, *ldu, vt, *ldvt);
}

template <typename T>
void Install() {
  HostLapack<T>() = {Gemm<T>,  Gemv<T>,  Herk<T>,  Trsm<T>,  Trmm<T>,  Potrf<T>, Getrf<T>,
                     Trtri<T>, Geqrf<T>, Orgqr<T>, Syevd<T>, Heevd<T>, Gesdd<T>, ComplexGesdd<T>};
}

}  // namespace

void InstallReferenceLapack() {
#define JAXMG_INSTALL(T) Install<T>();
  JAXMG_FOR_EACH_DTYPE(JAXMG_INSTALL)
#undef JAXMG_INSTALL
}

}  // namespace jaxmg::testing
