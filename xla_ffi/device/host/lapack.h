// The BLAS and LAPACK routines that the host device calls, as function pointers. The CPU plugin
// sets them to SciPy's, so that it doesn't need its own. They have Fortran conventions and 32-bit
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
  void (*geqrf)(int* m, int* n, T* a, int* lda, T* tau, T* work, int* lwork, int* info) = nullptr;
  // xORGQR for real dtypes, xUNGQR for complex ones.
  void (*orgqr)(int* m, int* n, int* k, T* a, int* lda, T* tau, T* work, int* lwork,
                int* info) = nullptr;
  // xSYEVD for real dtypes (no rwork), xHEEVD for complex ones.
  void (*syevd)(char* jobz, char* uplo, int* n, T* a, int* lda, R* w, T* work, int* lwork,
                int* iwork, int* liwork, int* info) = nullptr;
  void (*heevd)(char* jobz, char* uplo, int* n, T* a, int* lda, R* w, T* work, int* lwork, R* rwork,
                int* lrwork, int* iwork, int* liwork, int* info) = nullptr;
  // xGESDD for real dtypes (no rwork), and for complex ones.
  void (*gesdd)(char* jobz, int* m, int* n, T* a, int* lda, R* s, T* u, int* ldu, T* vt, int* ldvt,
                T* work, int* lwork, int* iwork, int* info) = nullptr;
  void (*complex_gesdd)(char* jobz, int* m, int* n, T* a, int* lda, R* s, T* u, int* ldu, T* vt,
                        int* ldvt, T* work, int* lwork, R* rwork, int* iwork, int* info) = nullptr;
  // Bunch and Kaufman's factorization of symmetric matrices, and solutions with it. xHETRF and
  // xHESV are for Hermitian matrices; for real dtypes they are null.
  void (*sytrf)(char* uplo, int* n, T* a, int* lda, int* ipiv, T* work, int* lwork,
                int* info) = nullptr;
  void (*hetrf)(char* uplo, int* n, T* a, int* lda, int* ipiv, T* work, int* lwork,
                int* info) = nullptr;
  void (*sysv)(char* uplo, int* n, int* nrhs, T* a, int* lda, int* ipiv, T* b, int* ldb, T* work,
               int* lwork, int* info) = nullptr;
  void (*hesv)(char* uplo, int* n, int* nrhs, T* a, int* lda, int* ipiv, T* b, int* ldb, T* work,
               int* lwork, int* info) = nullptr;
};

// Returns the table that host devices use. It must be filled before the first call.
template <typename T>
Lapack<T>& HostLapack();

// The functions that get and set the number of threads of a BLAS call, if the library has them.
struct BlasThreads {
  int (*get)() = nullptr;
  void (*set)(int threads) = nullptr;
};
BlasThreads& HostBlasThreads();

// Returns the number of cores that this thread may run on: batch systems, containers and taskset
// leave a process some of the machine's.
int HostCores();

// Returns BLAS's number of threads while no call has a share of them; 0: unknown.
int UnsharedBlasThreads();

// Gives each of several concurrent ranks a share of the cores: a BLAS that starts a thread on every
// core for every rank is many times slower. The setting applies to the process. So the smallest
// share of all concurrent calls is used, and the last one restores the previous setting.
class BlasThreadShare {
 public:
  explicit BlasThreadShare(int ranks);
  ~BlasThreadShare();
  BlasThreadShare(const BlasThreadShare&) = delete;
  BlasThreadShare& operator=(const BlasThreadShare&) = delete;
};

// Gives one rank the shares of its call's other ranks while these wait, unless other calls are
// running. Must be used on the thread that has the rank's own share.
class BlasThreadsOfAll {
 public:
  BlasThreadsOfAll();
  ~BlasThreadsOfAll();
  BlasThreadsOfAll(const BlasThreadsOfAll&) = delete;
  BlasThreadsOfAll& operator=(const BlasThreadsOfAll&) = delete;

 private:
  int share_ = 0;  // the share to restore; 0: unchanged
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_LAPACK_H_
