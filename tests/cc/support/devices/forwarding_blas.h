// ForwardingBlas: a Blas that runs every operation of another Blas through Run. Subclasses override
// only Run to change how, when or whether operations run. Run also receives the memory that an
// operation reads and writes.
#ifndef JAXMG_TESTS_CC_SUPPORT_DEVICES_FORWARDING_BLAS_H_
#define JAXMG_TESTS_CC_SUPPORT_DEVICES_FORWARDING_BLAS_H_

#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cc/support/devices/recorder.h"
#include "xla_ffi/device/blas.h"

namespace jaxmg::testing {

template <typename T>
class ForwardingBlas : public Blas<T> {
  using R = Real<T>;

 public:
  explicit ForwardingBlas(Blas<T>& real) : real_(real) {}

  Status Gemm(Stream s, Op op_a, Op op_b, int64_t m, int64_t n, int64_t k, R alpha, const T* a,
              int64_t lda, const T* b, int64_t ldb, R beta, T* c, int64_t ldc) override {
    const bool ta = op_a != Op::kNone, tb = op_b != Op::kNone;
    return Run(s, "gemm",
               {Recorder::Read(a, lda, ta ? k : m, ta ? m : k),
                Recorder::Read(b, ldb, tb ? n : k, tb ? k : n), Recorder::Write(c, ldc, m, n)},
               Values(int(op_a), int(op_b), alpha, beta), [=] {
                 return real_.Gemm(s, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
               });
  }
  Status Herk(Stream s, int64_t n, int64_t k, R alpha, const T* a, int64_t lda, R beta, T* c,
              int64_t ldc) override {
    return Run(s, "herk", {Recorder::Read(a, lda, n, k), Recorder::Write(c, ldc, n, n)},
               Values(alpha, beta),
               [=] { return real_.Herk(s, n, k, alpha, a, lda, beta, c, ldc); });
  }
  PartsShape parts() const override { return real_.parts(); }
  Status PartScales(Stream s, bool turned, int64_t m, int64_t n, const T* a, int64_t lda,
                    R* scales) override {
    const int64_t rows = turned ? n : m;
    return Run(s, "part scales",
               {Recorder::Read(a, lda, m, n), Recorder::Write(scales, rows, rows, 1)},
               Values(turned), [=] { return real_.PartScales(s, turned, m, n, a, lda, scales); });
  }
  Status Scale(Stream s, bool lower, bool divide, int64_t m, int64_t n, const R* left,
               const R* right, T* a, int64_t lda) override {
    // `left` has m elements and `right` has n. A null pointer is not read.
    return Run(
        s, "scale",
        {Recorder::Read(left, 1, left != nullptr ? m : 0, 1),
         Recorder::Read(right, 1, right != nullptr ? n : 0, 1), Recorder::Write(a, lda, m, n)},
        Values(lower, divide),
        [=] { return real_.Scale(s, lower, divide, m, n, left, right, a, lda); });
  }
  Status RowLargest(Stream s, int64_t m, int64_t n, const T* a, int64_t lda, R* largest) override {
    return Run(s, "row largest", {Recorder::Read(a, lda, m, n), Recorder::Write(largest, m, m, 1)},
               Values(), [=] { return real_.RowLargest(s, m, n, a, lda, largest); });
  }
  Status PowersOfTwo(Stream s, bool root, int64_t n, R* x) override {
    return Run(s, "powers of two", {Recorder::Write(x, n, n, 1)}, Values(root),
               [=] { return real_.PowersOfTwo(s, root, n, x); });
  }
  Status SolveRight(Stream s, Op op, int64_t m, int64_t n, const T* l, int64_t ldl, const T* b,
                    int64_t ldb, T* x, int64_t ldx) override {
    return Run(
        s, "solve",
        {Recorder::Read(l, ldl, n, n), Recorder::Read(b, ldb, m, n), Recorder::Write(x, ldx, m, n)},
        Values(int(op)), [=] { return real_.SolveRight(s, op, m, n, l, ldl, b, ldb, x, ldx); });
  }
  Status Potrf(Stream s, int64_t n, T* a, int64_t lda, int64_t offset, int32_t* info) override {
    return Run(s, "potrf", {Recorder::Write(a, lda, n, n), Recorder::Write(info, 1, 1, 1)},
               Values(offset), [=] { return real_.Potrf(s, n, a, lda, offset, info); });
  }
  Status ConjTranspose(Stream s, int64_t m, int64_t n, const T* a, int64_t lda, T* b,
                       int64_t ldb) override {
    return Run(s, "transpose", {Recorder::Read(a, lda, m, n), Recorder::Write(b, ldb, n, m)},
               Values(), [=] { return real_.ConjTranspose(s, m, n, a, lda, b, ldb); });
  }
  Status MirrorLower(Stream s, int64_t n, T* a, int64_t lda) override {
    return Run(s, "mirror", {Recorder::Write(a, lda, n, n)}, Values(),
               [=] { return real_.MirrorLower(s, n, a, lda); });
  }
  Status Conjugate(Stream s, int64_t m, int64_t n, T* a, int64_t lda) override {
    return Run(s, "conjugate", {Recorder::Write(a, lda, m, n)}, Values(),
               [=] { return real_.Conjugate(s, m, n, a, lda); });
  }
  Status SetZero(Stream s, int64_t m, int64_t n, T* a, int64_t lda) override {
    return Run(s, "zero", {Recorder::Write(a, lda, m, n)}, Values(),
               [=] { return real_.SetZero(s, m, n, a, lda); });
  }
  Status SetIdentity(Stream s, int64_t n, T* a, int64_t lda) override {
    return Run(s, "identity", {Recorder::Write(a, lda, n, n)}, Values(),
               [=] { return real_.SetIdentity(s, n, a, lda); });
  }
  Status AddLogDet(Stream s, int64_t n, const T* l, int64_t ldl, R* sum) override {
    return Run(s, "logdet", {Recorder::Read(l, ldl, n, n), Recorder::Write(sum, 1, 1, 1)}, Values(),
               [=] { return real_.AddLogDet(s, n, l, ldl, sum); });
  }
  Status Add(Stream s, int64_t m, int64_t n, const T* a, int64_t lda, T* b, int64_t ldb) override {
    return Run(s, "add", {Recorder::Read(a, lda, m, n), Recorder::Write(b, ldb, m, n)}, Values(),
               [=] { return real_.Add(s, m, n, a, lda, b, ldb); });
  }
  Status StoreInverse(Stream s, int64_t n, const T* v, int64_t ldv, T* a, int64_t lda) override {
    return Run(s, "store inverse", {Recorder::Read(v, ldv, n, n), Recorder::Write(a, lda, n, n)},
               Values(), [=] { return real_.StoreInverse(s, n, v, ldv, a, lda); });
  }
  Status LoadInverse(Stream s, int64_t n, bool transposed, const T* a, int64_t lda, T* l,
                     T* v) override {
    return Run(
        s, transposed ? "load inverse transposed" : "load inverse",
        {Recorder::Read(a, lda, n, n), Recorder::Write(l, n, n, n), Recorder::Write(v, n, n, n)},
        Values(), [=] { return real_.LoadInverse(s, n, transposed, a, lda, l, v); });
  }

 protected:
  Status DoTrsm(Stream s, Side side, Op op, Triangle triangle, int64_t m, int64_t n, const T* a,
                int64_t lda, T* b, int64_t ldb) override {
    const int64_t order = side == Side::kLeft ? m : n;
    return Run(s, "trsm", {Recorder::Read(a, lda, order, order), Recorder::Write(b, ldb, m, n)},
               Values(int(side), int(op)),
               [=] { return real_.Trsm(s, side, op, m, n, a, lda, b, ldb, triangle); });
  }
  Status DoTrmm(Stream s, Side side, Op op, Triangle triangle, int64_t m, int64_t n, const T* a,
                int64_t lda, T* b, int64_t ldb) override {
    const int64_t order = side == Side::kLeft ? m : n;
    return Run(s, "trmm", {Recorder::Read(a, lda, order, order), Recorder::Write(b, ldb, m, n)},
               Values(int(side), int(op)),
               [=] { return real_.Trmm(s, side, op, m, n, a, lda, b, ldb, triangle); });
  }
  Status DoTrtri(Stream s, Triangle triangle, int64_t n, const T* a, int64_t lda, T* inverse,
                 int64_t ld) override {
    return Run(s, "trtri", {Recorder::Read(a, lda, n, n), Recorder::Write(inverse, ld, n, n)},
               Values(), [=] { return real_.Trtri(s, n, a, lda, inverse, ld, triangle); });
  }
  Status DoSplit(Stream s, Side side, bool turned, int64_t m, int64_t n, const T* a, int64_t lda,
                 const R* scales, Part* parts, int64_t ld) override {
    const PartsShape shape = real_.parts();
    const int64_t lines = turned ? n : m, rows = lines * (side == Side::kLeft ? shape.rows : 1);
    return Run(s, "split",
               {Recorder::Read(a, lda, m, n), ReadScales(scales, lines),
                Recorder::Write(parts, ld, rows, shape.Depth(turned ? m : n))},
               Values(int(side), turned),
               [=] { return real_.Split(s, side, turned, m, n, a, lda, parts, ld, scales); });
  }
  Status DoGemmOfParts(Stream s, int64_t m, int64_t n, int64_t depth, R alpha, const Part* a,
                       int64_t lda, const Part* b, int64_t ldb, const ProductScales<R>& scales,
                       R beta, T* c, int64_t ldc) override {
    return Run(
        s, "gemm of parts",
        {Recorder::Read(a, lda, m * real_.parts().rows, depth), Recorder::Read(b, ldb, n, depth),
         ReadScales(scales.left, m), ReadScales(scales.right, n), Recorder::Write(c, ldc, m, n)},
        Values(alpha, beta), [=] {
          return real_.GemmOfParts(s, m, n, depth, alpha, a, lda, b, ldb, beta, c, ldc, scales);
        });
  }

  // Runs or skips `work`, which is the operation `name` of the other Blas with these scalars.
  virtual Status Run(Stream stream, const char* name, std::vector<MemoryAccess> accesses,
                     const std::string& scalars, std::function<Status()> work) = 0;

  Blas<T>& real_;

 private:
  // Null pointers are not read.
  static MemoryAccess ReadScales(const R* scales, int64_t count) {
    return Recorder::Read(scales, 1, scales != nullptr ? count : 0, 1);
  }
  template <typename... Scalars>
  static std::string Values(const Scalars&... scalars) {
    std::ostringstream text;
    const char* space = "";
    ((text << space << scalars, space = " "), ...);
    return text.str();
  }
};

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_DEVICES_FORWARDING_BLAS_H_
