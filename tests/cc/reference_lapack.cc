#include "tests/cc/reference_lapack.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <utility>
#include <vector>

#include "xla_ffi/device/lapack.h"

namespace jaxmg::testing {
namespace {

// op(A)(i, j)
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
    y[i * *incy] = *alpha * sum + *beta * y[i * *incy];
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

// Solves op(L) x = x for one vector with stride inc.
template <typename T>
void SolveVector(char op, int n, const T* l, int ldl, T* x, int inc) {
  for (int step = 0; step < n; ++step) {
    const int i = op == 'N' ? step : n - 1 - step;
    T sum = x[i * inc];
    for (int j = op == 'N' ? 0 : i + 1; j < (op == 'N' ? i : n); ++j) {
      sum -= At(op, l, ldl, i, j) * x[j * inc];
    }
    x[i * inc] = sum / At(op, l, ldl, i, i);
  }
}

template <typename T>
void Trsm(char* side, char*, char* transa, char*, int* m, int* n, T*, T* a, int* lda, T* b,
          int* ldb) {
  if (*side == 'L') {
    for (int j = 0; j < *n; ++j) SolveVector(*transa, *m, a, *lda, b + j * *ldb, 1);
    return;
  }
  // x op(L) = b is op(L)^T x^T = b^T; the conjugate is taken along where op is 'C'.
  for (int i = 0; i < *m; ++i) {
    if (*transa == 'N') {
      SolveVector('T', *n, a, *lda, b + i, *ldb);
    } else {
      for (int j = 0; j < *n; ++j) b[j * *ldb + i] = Conj(b[j * *ldb + i]);
      SolveVector('N', *n, a, *lda, b + i, *ldb);
      for (int j = 0; j < *n; ++j) b[j * *ldb + i] = Conj(b[j * *ldb + i]);
    }
  }
}

template <typename T>
void Trmm(char* side, char*, char* transa, char*, int* m, int* n, T*, T* a, int* lda, T* b,
          int* ldb) {
  const std::vector<T> old(b, b + static_cast<size_t>(*n - 1) * *ldb + *m);
  auto l = [&](int i, int j) {
    const bool lower = *transa == 'N' ? i >= j : i <= j;
    return lower ? At(*transa, a, *lda, i, j) : T(0);
  };
  for (int j = 0; j < *n; ++j) {
    for (int i = 0; i < *m; ++i) {
      T sum = 0;
      for (int k = 0; k < (*side == 'L' ? *m : *n); ++k) {
        sum += *side == 'L' ? l(i, k) * old[j * *ldb + k] : old[k * *ldb + i] * l(k, j);
      }
      b[j * *ldb + i] = sum;
    }
  }
}

template <typename T>
void Potrf(char*, int* n, T* a, int* lda, int* info) {
  *info = 0;
  for (int j = 0; j < *n; ++j) {
    Real<T> diagonal = std::real(a[j * *lda + j]);
    for (int k = 0; k < j; ++k) diagonal -= std::norm(a[k * *lda + j]);
    if (!(diagonal > 0)) {
      *info = j + 1;
      return;
    }
    diagonal = std::sqrt(diagonal);
    a[j * *lda + j] = diagonal;
    for (int i = j + 1; i < *n; ++i) {
      T sum = a[j * *lda + i];
      for (int k = 0; k < j; ++k) sum -= a[k * *lda + i] * Conj(a[k * *lda + j]);
      a[j * *lda + i] = sum / diagonal;
    }
  }
}

template <typename T>
void Trtri(char*, char*, int* n, T* a, int* lda, int* info) {
  *info = 0;
  // From the last column on, as LAPACK: inverse * L is the identity to rounding.
  for (int j = *n - 1; j >= 0; --j) {
    T* column = a + j * *lda;
    column[j] = T(1) / column[j];
    for (int i = *n - 1; i > j; --i) {
      T sum = 0;
      for (int k = j + 1; k <= i; ++k) sum += a[k * *lda + i] * column[k];
      column[i] = -sum * column[j];
    }
  }
}

// Eigenvalues by Jacobi rotations, which converge for every Hermitian matrix.
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
        const T s = t * c * offdiagonal / size;
        for (int i = 0; i < n; ++i) {  // columns: H := H J, V := V J
          for (auto* x : {&h, &v}) {
            const T xp = (*x)[p * n + i], xq = (*x)[q * n + i];
            (*x)[p * n + i] = c * xp - Conj(s) * xq;
            (*x)[q * n + i] = s * xp + c * xq;
          }
        }
        for (int j = 0; j < n; ++j) {  // rows: H := J^H H
          const T hp = h[j * n + p], hq = h[j * n + q];
          h[j * n + p] = c * hp - s * hq;
          h[j * n + q] = Conj(s) * hp + c * hq;
        }
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
    for (int i = 0; *jobz == 'V' && i < n; ++i) a[j * lda + i] = v[order[j] * n + i];
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

template <typename T>
void Install() {
  HostLapack<T>() = {Gemm<T>,  Gemv<T>,  Herk<T>,  Trsm<T>, Trmm<T>,
                     Potrf<T>, Trtri<T>, Syevd<T>, Heevd<T>};
}

}  // namespace

void InstallReferenceLapack() {
#define JAXMG_INSTALL(T) Install<T>();
  JAXMG_FOR_EACH_DTYPE(JAXMG_INSTALL)
#undef JAXMG_INSTALL
}

}  // namespace jaxmg::testing
