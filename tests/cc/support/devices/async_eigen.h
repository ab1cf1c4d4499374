// The eigensolver's kernels of an AsyncDevice. Included only by async_device.cc.
#ifndef JAXMG_TESTS_CC_SUPPORT_DEVICES_ASYNC_EIGEN_H_
#define JAXMG_TESTS_CC_SUPPORT_DEVICES_ASYNC_EIGEN_H_

#include "tests/cc/support/devices/async_workers.h"

namespace jaxmg::testing {

template <typename T>
class AsyncPanel : public PanelKernels<T> {
 public:
  AsyncPanel(Workers& workers, PanelKernels<T>& real) : workers_(workers), real_(real) {}

  Status QrPanel(Stream s, int64_t m, int64_t n, T* a, int64_t lda, T* t, int64_t ldt) override {
    return Later(workers_, s, [=] { return real_.QrPanel(s, m, n, a, lda, t, ldt); });
  }
  Status UnpackReflectors(Stream s, int64_t m, int64_t k, const T* a, int64_t lda, T* v,
                          int64_t ldv) override {
    return Later(workers_, s, [=] { return real_.UnpackReflectors(s, m, k, a, lda, v, ldv); });
  }
  Status PackBand(Stream s, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, T* band,
                  int64_t ldb) override {
    return Later(workers_, s, [=] { return real_.PackBand(s, m, n, k, a, lda, band, ldb); });
  }
  Status CheckFinite(Stream s, int64_t m, int64_t n, const T* a, int64_t lda, int64_t offset,
                     int32_t* first) override {
    return Later(workers_, s, [=] { return real_.CheckFinite(s, m, n, a, lda, offset, first); });
  }
  Status FromReal(Stream s, int64_t m, int64_t n, const Real<T>* a, int64_t lda, T* b,
                  int64_t ldb) override {
    return Later(workers_, s, [=] { return real_.FromReal(s, m, n, a, lda, b, ldb); });
  }

 private:
  Workers& workers_;
  PanelKernels<T>& real_;
};

template <typename T>
class AsyncChase : public ChaseKernels<T> {
 public:
  AsyncChase(Workers& workers, ChaseKernels<T>& real) : workers_(workers), real_(real) {}

  Status Chase(Stream s, int64_t n, int64_t b, T* band, int64_t ldb, int64_t first, int64_t sweeps,
               T* v, int64_t ldv, T* tau, int64_t ldtau) override {
    return Later(workers_, s, [=] {
      return real_.Chase(s, n, b, band, ldb, first, sweeps, v, ldv, tau, ldtau);
    });
  }
  Status TakeTridiagonal(Stream s, int64_t n, const T* band, int64_t ldb, Real<T>* d,
                         Real<T>* e) override {
    return Later(workers_, s, [=] { return real_.TakeTridiagonal(s, n, band, ldb, d, e); });
  }
  Status ExpandReflectors(Stream s, int64_t n, int64_t b, int64_t first, int64_t sweeps, const T* v,
                          int64_t ldv, const T* tau, int64_t ldtau, T* blocks,
                          T* weighted) override {
    return Later(workers_, s, [=] {
      return real_.ExpandReflectors(s, n, b, first, sweeps, v, ldv, tau, ldtau, blocks, weighted);
    });
  }

  Status ApplyGroups(Stream s, const SweepGroups& groups, int64_t columns, int64_t at_once,
                     const T* blocks, const T* weighted, T* z, int64_t ldz, T* products) override {
    return Later(workers_, s, [=] {
      return real_.ApplyGroups(s, groups, columns, at_once, blocks, weighted, z, ldz, products);
    });
  }

 private:
  Workers& workers_;
  ChaseKernels<T>& real_;
};

template <typename T>
class AsyncSecular : public SecularKernels<T> {
  using R = Real<T>;

 public:
  AsyncSecular(Workers& workers, SecularKernels<T>& real) : workers_(workers), real_(real) {}

  Status Roots(Stream s, int64_t k, int64_t begin, int64_t end, const R* d, const R* z, R rho,
               int limit, R* origin, R* tau, R* roots, int32_t* info) override {
    return Later(workers_, s, [=] {
      return real_.Roots(s, k, begin, end, d, z, rho, limit, origin, tau, roots, info);
    });
  }
  Status RefineZ(Stream s, int64_t k, int64_t begin, int64_t end, const int32_t* order, const R* d,
                 const R* z, R rho, const R* origin, const R* tau, R* refined) override {
    return Later(workers_, s, [=] {
      return real_.RefineZ(s, k, begin, end, order, d, z, rho, origin, tau, refined);
    });
  }
  Status Vectors(Stream s, int64_t k, int64_t begin, int64_t end, const R* d, const R* z,
                 const R* origin, const R* tau, R* u, int64_t ldu) override {
    return Later(workers_, s,
                 [=] { return real_.Vectors(s, k, begin, end, d, z, origin, tau, u, ldu); });
  }
  Status RotateColumns(Stream s, int64_t rows, int64_t chains, const int32_t* starts,
                       const int32_t* first, const int32_t* second, const R* c, const R* sines,
                       R* q, int64_t ldq) override {
    return Later(workers_, s, [=] {
      return real_.RotateColumns(s, rows, chains, starts, first, second, c, sines, q, ldq);
    });
  }
  Status CopyColumns(Stream s, int64_t rows, int64_t columns, const int32_t* from, const R* source,
                     int64_t lds, const int32_t* to, R* target, int64_t ldt) override {
    return Later(workers_, s, [=] {
      return real_.CopyColumns(s, rows, columns, from, source, lds, to, target, ldt);
    });
  }

 private:
  Workers& workers_;
  SecularKernels<T>& real_;
};

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_DEVICES_ASYNC_EIGEN_H_
