// The LU kernels of an AsyncDevice. Included only by async_device.cc.
#ifndef JAXMG_TESTS_CC_SUPPORT_DEVICES_ASYNC_LU_H_
#define JAXMG_TESTS_CC_SUPPORT_DEVICES_ASYNC_LU_H_

#include <algorithm>
#include <limits>
#include <vector>

#include "tests/cc/support/devices/async_workers.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/lu_kernels.h"

namespace jaxmg::testing {

template <typename T>
class AsyncLu : public LuKernels<T> {
 public:
  AsyncLu(Workers& workers, LuKernels<T>& real) : workers_(workers), real_(real) {}

  Status FactorPanel(Stream s, int64_t m, int64_t n, T* a, int64_t lda, int64_t offset,
                     int32_t* pivots, int32_t* info) override {
    return Later(workers_, s,
                 [=] { return real_.FactorPanel(s, m, n, a, lda, offset, pivots, info); });
  }
  Status SwapRows(Stream s, Order order, int64_t n, T* a, int64_t lda, int64_t offset,
                  int64_t count, const int32_t* pivots) override {
    return Later(workers_, s,
                 [=] { return real_.SwapRows(s, order, n, a, lda, offset, count, pivots); });
  }
  Status SwapAllRows(Stream s, const std::vector<MovedColumns<T>>& all, int64_t rows, int64_t lda,
                     int64_t count, const int32_t* pivots, T* buffer, int64_t room) override {
    return Later(workers_, s, [=] {
      EXPECT(room == 0 || room >= rows);
      std::fill_n(buffer, room, std::numeric_limits<Real<T>>::quiet_NaN());  // the buffer is empty
      return real_.SwapAllRows(s, all, rows, lda, count, pivots, buffer, room);
    });
  }
  Status SwapColumns(Stream s, Order order, int64_t m, T* a, int64_t lda, int64_t count,
                     const int32_t* pivots) override {
    return Later(workers_, s,
                 [=] { return real_.SwapColumns(s, order, m, a, lda, count, pivots); });
  }
  Status AddDeterminant(Stream s, int64_t n, const T* u, int64_t ldu, int64_t offset,
                        const int32_t* pivots, Real<T>* log_abs, T* sign) override {
    return Later(workers_, s,
                 [=] { return real_.AddDeterminant(s, n, u, ldu, offset, pivots, log_abs, sign); });
  }

 private:
  Workers& workers_;
  LuKernels<T>& real_;
};

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_DEVICES_ASYNC_LU_H_
