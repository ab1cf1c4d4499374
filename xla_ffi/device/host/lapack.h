// The BLAS and LAPACK routines that the host device calls, as pointers that its owner fills in:
// the CPU plugin with SciPy's, so that it carries none of its own. Fortran conventions, 32-bit
// integers.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_LAPACK_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_LAPACK_H_

#include "xla_ffi/base/dtype.h"

namespace jaxmg {

template <typename T>
struct Lapack {
  using R = Real<T>;
  void (*gemm)(char* transa, char* transb, int* m, int* n, int* k, T* alpha, T* a, int* lda, T* b,
               int* ldb, T* beta, T* c, int* ldc) = nullptr;
  void (*gemv)(char* trans, int* m, int* n, T* alpha, T* a, int* lda, T* x, int* incx, T* beta,
               T* y, int* incy) = nullptr;
  // xSYRK for real dtypes, xHERK for complex ones.
  void (*herk)(char* uplo, char* trans, int* n, int* k, R* alpha, T* a, int* lda, R* beta, T* c,
               int* ldc) = nullptr;
  void (*trsm)(char* side, char* uplo, char* transa, char* diag, int* m, int* n, T* alpha, T* a,
               int* lda, T* b, int* ldb) = nullptr;
  void (*trmm)(char* side, char* uplo, char* transa, char* diag, int* m, int* n, T* alpha, T* a,
               int* lda, T* b, int* ldb) = nullptr;
  void (*potrf)(char* uplo, int* n, T* a, int* lda, int* info) = nullptr;
  void (*getrf)(int* m, int* n, T* a, int* lda, int* ipiv, int* info) = nullptr;
  void (*trtri)(char* uplo, char* diag, int* n, T* a, int* lda, int* info) = nullptr;
  // xSYEVD for real dtypes (no rwork), xHEEVD for complex ones.
  void (*syevd)(char* jobz, char* uplo, int* n, T* a, int* lda, R* w, T* work, int* lwork,
                int* iwork, int* liwork, int* info) = nullptr;
  void (*heevd)(char* jobz, char* uplo, int* n, T* a, int* lda, R* w, T* work, int* lwork, R* rwork,
                int* lrwork, int* iwork, int* liwork, int* info) = nullptr;
};

// The table that host devices use; fill it before the first call.
template <typename T>
Lapack<T>& HostLapack();

// How many threads one BLAS call may use, where the library lets the process set it.
struct BlasThreads {
  int (*get)() = nullptr;
  void (*set)(int threads) = nullptr;
};
BlasThreads& HostBlasThreads();

// While ranks run side by side, of one call or of several, each has its share of the cores: a BLAS
// that starts a thread on every core for every rank is many times slower. The setting is the
// process's, so the smallest share of all calls under way holds, and the setting from before comes
// back with the last of them.
class BlasThreadShare {
 public:
  explicit BlasThreadShare(int ranks);
  ~BlasThreadShare();
  BlasThreadShare(const BlasThreadShare&) = delete;
  BlasThreadShare& operator=(const BlasThreadShare&) = delete;
};

// While one rank works and the others of its call wait: it has their shares too, unless other calls
// are under way. On the thread that has the rank's own share.
class BlasThreadsOfAll {
 public:
  BlasThreadsOfAll();
  ~BlasThreadsOfAll();
  BlasThreadsOfAll(const BlasThreadsOfAll&) = delete;
  BlasThreadsOfAll& operator=(const BlasThreadsOfAll&) = delete;

 private:
  int share_ = 0;  // that holds again afterwards; 0: it has not been changed
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_LAPACK_H_
