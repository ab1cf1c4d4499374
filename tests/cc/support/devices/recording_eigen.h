// The eigensolver's kernels of a RecordingDevice. Included only by recording_device.cc.
#ifndef JAXMG_TESTS_CC_SUPPORT_DEVICES_RECORDING_EIGEN_H_
#define JAXMG_TESTS_CC_SUPPORT_DEVICES_RECORDING_EIGEN_H_

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/cc/support/devices/recorder.h"

namespace jaxmg::testing {

template <typename T>
class RecordingPanel : public PanelKernels<T> {
 public:
  RecordingPanel(Recorder& to, PanelKernels<T>& real) : to_(to), real_(real) {}

  Status QrPanel(Stream s, int64_t m, int64_t n, T* a, int64_t lda, T* t, int64_t ldt) override {
    const int64_t k = std::min(m, n);
    to_.Add(s, "qr", {to_.Write(a, lda, m, n), to_.Write(t, ldt, k, k)});
    return real_.QrPanel(s, m, n, a, lda, t, ldt);
  }
  Status UnpackReflectors(Stream s, int64_t m, int64_t k, const T* a, int64_t lda, T* v,
                          int64_t ldv) override {
    to_.Add(s, "unpack", {to_.Read(a, lda, m, k), to_.Write(v, ldv, m, k)});
    return real_.UnpackReflectors(s, m, k, a, lda, v, ldv);
  }
  Status PackBand(Stream s, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, T* band,
                  int64_t ldb) override {
    to_.Add(s, "pack band", {to_.Read(a, lda, m + k, n), to_.Write(band, ldb, ldb, n)});
    return real_.PackBand(s, m, n, k, a, lda, band, ldb);
  }
  Status CheckFinite(Stream s, int64_t m, int64_t n, const T* a, int64_t lda, int64_t offset,
                     int32_t* first) override {
    to_.Add(s, "check finite", {to_.Read(a, lda, m, n), to_.Write(first, 1, 1, 1)});
    return real_.CheckFinite(s, m, n, a, lda, offset, first);
  }
  Status FromReal(Stream s, int64_t m, int64_t n, const Real<T>* a, int64_t lda, T* b,
                  int64_t ldb) override {
    to_.Add(s, "from real", {to_.Read(a, lda, m, n), to_.Write(b, ldb, m, n)});
    return real_.FromReal(s, m, n, a, lda, b, ldb);
  }

 private:
  Recorder& to_;
  PanelKernels<T>& real_;
};

template <typename T>
class RecordingChase : public ChaseKernels<T> {
 public:
  RecordingChase(Recorder& to, ChaseKernels<T>& real) : to_(to), real_(real) {}

  Status Chase(Stream s, int64_t n, int64_t b, T* band, int64_t ldb, int64_t first, int64_t sweeps,
               T* v, int64_t ldv, T* tau, int64_t ldtau) override {
    std::vector<MemoryAccess> accesses = {to_.Write(band, ldb, ldb, n)};
    if (v != nullptr) {
      accesses.push_back(to_.Write(v, ldv, n - 1 - first, sweeps));
      accesses.push_back(to_.Write(tau, ldtau, (n - 1 - first + b - 1) / b, sweeps));
    }
    to_.Add(s, "chase", std::move(accesses), b, first);
    return real_.Chase(s, n, b, band, ldb, first, sweeps, v, ldv, tau, ldtau);
  }
  Status TakeTridiagonal(Stream s, int64_t n, const T* band, int64_t ldb, Real<T>* d,
                         Real<T>* e) override {
    to_.Add(s, "take tridiagonal",
            {to_.Read(band, ldb, ldb, n), to_.Write(d, n, n, 1), to_.Write(e, n - 1, n - 1, 1)});
    return real_.TakeTridiagonal(s, n, band, ldb, d, e);
  }
  Status ExpandReflectors(Stream s, int64_t n, int64_t b, int64_t first, int64_t sweeps, const T* v,
                          int64_t ldv, const T* tau, int64_t ldtau, T* blocks,
                          T* weighted) override {
    const int64_t steps = (n - 1 - first + b - 1) / b, elements = steps * (b + sweeps) * sweeps;
    to_.Add(s, "expand",
            {to_.Read(v, ldv, n - 1 - first, sweeps), to_.Read(tau, ldtau, steps, sweeps),
             to_.Write(blocks, elements, elements, 1), to_.Write(weighted, elements, elements, 1)});
    return real_.ExpandReflectors(s, n, b, first, sweeps, v, ldv, tau, ldtau, blocks, weighted);
  }

  Status ApplyGroups(Stream s, const SweepGroups& groups, int64_t columns, int64_t at_once,
                     const T* blocks, const T* weighted, T* z, int64_t ldz, T* products) override {
    const int64_t size = (groups.end - groups.begin) * groups.width * columns;
    std::vector<MemoryAccess> accesses = {
        to_.Write(products, size, size, 1),
        to_.Write(z + groups.row(groups.begin, 0) * ldz, ldz, columns,
                  groups.n - groups.row(groups.begin, 0))};
    for (int64_t g = groups.begin; g < groups.end; ++g) {
      const int64_t elements = groups.steps(g) * groups.height() * groups.width;
      accesses.push_back(to_.Read(blocks + groups.block(g, 0), elements, elements, 1));
      accesses.push_back(to_.Read(weighted + groups.block(g, 0), elements, elements, 1));
    }
    to_.Add(s, "apply groups", std::move(accesses));
    return real_.ApplyGroups(s, groups, columns, at_once, blocks, weighted, z, ldz, products);
  }

 private:
  Recorder& to_;
  ChaseKernels<T>& real_;
};

template <typename T>
class RecordingSecular : public SecularKernels<T> {
  using R = Real<T>;

 public:
  RecordingSecular(Recorder& to, SecularKernels<T>& real) : to_(to), real_(real) {}

  Status Roots(Stream s, int64_t k, int64_t begin, int64_t end, const R* d, const R* z, R rho,
               int limit, R* origin, R* tau, R* roots, int32_t* info) override {
    to_.Add(s, "roots",
            {to_.Read(d, k, k, 1), to_.Read(z, k, k, 1), Share(origin, begin, end),
             Share(tau, begin, end), Share(roots, begin, end), to_.Write(info, 1, 1, 1)});
    return real_.Roots(s, k, begin, end, d, z, rho, limit, origin, tau, roots, info);
  }
  Status RefineZ(Stream s, int64_t k, int64_t begin, int64_t end, const int32_t* order, const R* d,
                 const R* z, R rho, const R* origin, const R* tau, R* refined) override {
    to_.Add(s, "refine z",
            {to_.Read(order, k, k, 1), to_.Read(d, k, k, 1), to_.Read(z, k, k, 1),
             to_.Read(origin, k, k, 1), to_.Read(tau, k, k, 1), Share(refined, begin, end)});
    return real_.RefineZ(s, k, begin, end, order, d, z, rho, origin, tau, refined);
  }
  Status Vectors(Stream s, int64_t k, int64_t begin, int64_t end, const R* d, const R* z,
                 const R* origin, const R* tau, R* u, int64_t ldu) override {
    to_.Add(s, "vectors",
            {to_.Read(d, k, k, 1), to_.Read(z, k, k, 1), to_.Read(origin, k, k, 1),
             to_.Read(tau, k, k, 1), to_.Write(u, ldu, k, end - begin)});
    return real_.Vectors(s, k, begin, end, d, z, origin, tau, u, ldu);
  }
  Status RotateColumns(Stream s, int64_t rows, int64_t chains, const int32_t* starts,
                       const int32_t* first, const int32_t* second, const R* c, const R* sines,
                       R* q, int64_t ldq) override {
    const int64_t count = starts[chains];
    to_.Add(s, "rotate",
            {to_.Read(starts, chains + 1, chains + 1, 1), to_.Read(first, count, count, 1),
             to_.Read(second, count, count, 1), to_.Read(c, count, count, 1),
             to_.Read(sines, count, count, 1), Columns(rows, count, first, q, ldq, true),
             Columns(rows, count, second, q, ldq, true)});
    return real_.RotateColumns(s, rows, chains, starts, first, second, c, sines, q, ldq);
  }
  Status CopyColumns(Stream s, int64_t rows, int64_t columns, const int32_t* from, const R* source,
                     int64_t lds, const int32_t* to, R* target, int64_t ldt) override {
    const int64_t froms = from != nullptr ? columns : 0, tos = to != nullptr ? columns : 0;
    to_.Add(s, "copy columns",
            {to_.Read(from, froms, froms, 1), to_.Read(to, tos, tos, 1),
             Columns(rows, columns, from, source, lds, false),
             Columns(rows, columns, to, target, ldt, true)});
    return real_.CopyColumns(s, rows, columns, from, source, lds, to, target, ldt);
  }

 private:
  MemoryAccess Share(R* data, int64_t begin, int64_t end) {
    return to_.Write(data + begin, end - begin, end - begin, 1);
  }
  // Returns the access to all columns from the smallest to the largest index.
  MemoryAccess Columns(int64_t rows, int64_t count, const int32_t* index, const R* data, int64_t ld,
                       bool writes) {
    int64_t begin = 0, end = count;
    if (index != nullptr) {
      const auto bounds = std::minmax_element(index, index + count);
      begin = *bounds.first, end = *bounds.second + 1;
    }
    return {Block(data + begin * ld, ld, rows, end - begin), writes};
  }

  Recorder& to_;
  SecularKernels<T>& real_;
};

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_DEVICES_RECORDING_EIGEN_H_
