// The LU kernels of a RecordingDevice. Included only by recording_device.cc.
#ifndef JAXMG_TESTS_CC_SUPPORT_DEVICES_RECORDING_LU_H_
#define JAXMG_TESTS_CC_SUPPORT_DEVICES_RECORDING_LU_H_

#include <algorithm>

#include "tests/cc/support/devices/recorder.h"
#include "xla_ffi/device/lu_kernels.h"

namespace jaxmg::testing {

template <typename T>
class RecordingLu : public LuKernels<T> {
 public:
  RecordingLu(Recorder& to, LuKernels<T>& real) : to_(to), real_(real) {}

  Status FactorPanel(Stream s, int64_t m, int64_t n, T* a, int64_t lda, int64_t offset,
                     int32_t* pivots, int32_t* info) override {
    const int64_t count = std::min(m, n);
    to_.Add(s, "getrf",
            {to_.Write(a, lda, m, n), to_.Write(pivots, count, count, 1), to_.Write(info, 1, 1, 1)},
            offset);
    return real_.FactorPanel(s, m, n, a, lda, offset, pivots, info);
  }
  // Any row from the first one up to the leading dimension may change.
  Status SwapRows(Stream s, Order order, int64_t n, T* a, int64_t lda, int64_t offset,
                  int64_t count, const int32_t* pivots) override {
    // The rows that pivots name: a's own first row may be after that from which they count.
    int64_t rows = count;
    for (int64_t i = 0; i < count; ++i) rows = std::max(rows, pivots[i] - offset + 1);
    to_.Add(s, "swap rows", {to_.Write(a, lda, rows, n), to_.Read(pivots, count, count, 1)},
            int(order), offset);
    return real_.SwapRows(s, order, n, a, lda, offset, count, pivots);
  }
  Status SwapAllRows(Stream s, const std::vector<MovedColumns<T>>& all, int64_t rows, int64_t lda,
                     int64_t count, const int32_t* pivots, T* buffer, int64_t room) override {
    std::vector<MemoryAccess> accesses = {to_.Read(pivots, count, count, 1),
                                          to_.Write(buffer, room, room, 1)};
    for (const MovedColumns<T>& columns : all) {
      accesses.push_back(to_.Write(columns.a, lda, rows, columns.n));
    }
    to_.Add(s, "swap all rows", std::move(accesses));
    return real_.SwapAllRows(s, all, rows, lda, count, pivots, buffer, room);
  }
  Status SwapColumns(Stream s, Order order, int64_t m, T* a, int64_t lda, int64_t count,
                     const int32_t* pivots) override {
    to_.Add(s, "swap columns", {to_.Write(a, lda, m, count), to_.Read(pivots, count, count, 1)},
            int(order));
    return real_.SwapColumns(s, order, m, a, lda, count, pivots);
  }
  Status AddDeterminant(Stream s, int64_t n, const T* u, int64_t ldu, int64_t offset,
                        const int32_t* pivots, Real<T>* log_abs, T* sign) override {
    to_.Add(s, "determinant",
            {to_.Read(u, ldu, n, n), to_.Read(pivots, n, n, 1), to_.Write(log_abs, 1, 1, 1),
             to_.Write(sign, 1, 1, 1)},
            offset);
    return real_.AddDeterminant(s, n, u, ldu, offset, pivots, log_abs, sign);
  }

 private:
  Recorder& to_;
  LuKernels<T>& real_;
};

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_DEVICES_RECORDING_LU_H_
