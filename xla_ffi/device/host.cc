#include "xla_ffi/device/host.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "xla_ffi/device/lapack.h"
#include "xla_ffi/device/timeline.h"

namespace jaxmg {

namespace {

char Letter(Op op) {
  switch (op) {
    case Op::kNone:
      return 'N';
    case Op::kTrans:
      return 'T';
    case Op::kConjTrans:
      return 'C';
  }
  return 'N';
}

char Letter(Side side) { return side == Side::kLeft ? 'L' : 'R'; }

// LAPACK's 32-bit integers, checked where int64 narrows.
class Ints {
 public:
  template <typename... Int64>
  explicit Ints(Int64... values) : values_{static_cast<int64_t>(values)...} {
    for (size_t i = 0; i < values_.size(); ++i) narrow_.push_back(static_cast<int>(values_[i]));
  }
  Status Check(const char* routine) const {
    for (int64_t value : values_) {
      if (value < 0 || value > std::numeric_limits<int>::max()) {
        return Error(Code::kInvalidArgument, routine, ": size ", value,
                     " is beyond LAPACK's 32-bit integers");
      }
    }
    return Status::Ok();
  }
  int* operator[](size_t i) { return &narrow_[i]; }

 private:
  std::vector<int64_t> values_;
  std::vector<int> narrow_;
};

// Refuses a routine whose pointer nobody has filled in, or sizes that don't fit.
#define JAXMG_CHECK_LAPACK(routine, ints)                                                       \
  do {                                                                                          \
    if (HostLapack<T>().routine == nullptr) {                                                   \
      return Error(Code::kUnavailable, "LAPACK's " #routine " has not been loaded from SciPy"); \
    }                                                                                           \
    JAXMG_RETURN_IF_ERROR((ints).Check(#routine));                                              \
  } while (false)

template <typename T>
class HostBlas : public Blas<T> {
  using R = Real<T>;

 public:
  Status Gemm(Stream, Op op_a, Op op_b, int64_t m, int64_t n, int64_t k, R alpha, const T* a,
              int64_t lda, const T* b, int64_t ldb, R beta, T* c, int64_t ldc) override {
    if (m == 0 || n == 0) return Status::Ok();
    T t_alpha = alpha, t_beta = beta;
    // One row times a matrix: xGEMV reads the matrix at the speed of memory.
    if (m == 1 && op_a == Op::kNone && (op_b == Op::kNone || !kIsComplex<T>)) {
      char trans = op_b == Op::kNone ? 'T' : 'N';
      Ints ints(op_b == Op::kNone ? k : n, op_b == Op::kNone ? n : k, ldb, lda, ldc);
      JAXMG_CHECK_LAPACK(gemv, ints);
      HostLapack<T>().gemv(&trans, ints[0], ints[1], &t_alpha, const_cast<T*>(b), ints[2],
                           const_cast<T*>(a), ints[3], &t_beta, c, ints[4]);
      return Status::Ok();
    }
    char trans_a = Letter(op_a), trans_b = Letter(op_b);
    Ints ints(m, n, k, lda, ldb, ldc);
    JAXMG_CHECK_LAPACK(gemm, ints);
    HostLapack<T>().gemm(&trans_a, &trans_b, ints[0], ints[1], ints[2], &t_alpha, const_cast<T*>(a),
                         ints[3], const_cast<T*>(b), ints[4], &t_beta, c, ints[5]);
    return Status::Ok();
  }

  Status Herk(Stream, int64_t n, int64_t k, R alpha, const T* a, int64_t lda, R beta, T* c,
              int64_t ldc) override {
    if (n == 0) return Status::Ok();
    char uplo = 'L', trans = 'N';
    Ints ints(n, k, lda, ldc);
    JAXMG_CHECK_LAPACK(herk, ints);
    HostLapack<T>().herk(&uplo, &trans, ints[0], ints[1], &alpha, const_cast<T*>(a), ints[2], &beta,
                         c, ints[3]);
    return Status::Ok();
  }

  Status Trsm(Stream stream, Side side, Op op, int64_t m, int64_t n, const T* l, int64_t ldl, T* b,
              int64_t ldb) override {
    JAXMG_CHECK_LAPACK(trsm, Ints());
    // A panel. BLAS's TRSM runs at half the speed of its GEMM, so as much as possible goes there:
    // X1 = B1 L11^-H, B2 -= X1 L21^H, X2 = B2 L22^-H.
    constexpr int64_t kNarrow = 32;
    if (side == Side::kRight && op == Op::kConjTrans && n > kNarrow && m > n) {
      const int64_t half = n / 2, rest = n - half;
      T* right = b + half * ldb;
      JAXMG_RETURN_IF_ERROR(Trsm(stream, side, op, m, half, l, ldl, b, ldb));
      JAXMG_RETURN_IF_ERROR(Gemm(stream, Op::kNone, Op::kConjTrans, m, rest, half, -1, b, ldb,
                                 l + half, ldl, 1, right, ldb));
      return Trsm(stream, side, op, m, rest, l + half * ldl + half, ldl, right, ldb);
    }
    return Triangular(HostLapack<T>().trsm, "trsm", side, op, m, n, l, ldl, b, ldb);
  }

  Status SolveRight(Stream stream, Op op, int64_t m, int64_t n, const T* l, int64_t ldl, const T* b,
                    int64_t ldb, T* x, int64_t ldx) override {
    for (int64_t j = 0; j < n; ++j) std::copy_n(b + j * ldb, m, x + j * ldx);
    return Trsm(stream, Side::kRight, op, m, n, l, ldl, x, ldx);
  }

  Status Trmm(Stream, Side side, Op op, int64_t m, int64_t n, const T* l, int64_t ldl, T* b,
              int64_t ldb) override {
    JAXMG_CHECK_LAPACK(trmm, Ints());
    return Triangular(HostLapack<T>().trmm, "trmm", side, op, m, n, l, ldl, b, ldb);
  }

  Status Potrf(Stream, int64_t n, T* a, int64_t lda, int64_t offset, int32_t* info) override {
    if (n == 0) return Status::Ok();
    char uplo = 'L';
    Ints ints(n, lda);
    JAXMG_CHECK_LAPACK(potrf, ints);
    int failed = 0;
    HostLapack<T>().potrf(&uplo, ints[0], a, ints[1], &failed);
    // Not every LAPACK stops at a diagonal that is NaN or infinite.
    const int64_t factored = failed > 0 ? failed - 1 : n;
    for (int64_t j = 0; j < factored; ++j) {
      if (!std::isfinite(std::real(a[j * lda + j]))) {
        failed = static_cast<int>(j + 1);
        break;
      }
    }
    if (failed != 0) {
      *info = std::min(*info, static_cast<int32_t>(offset + failed));
      Fill(n, n, a, lda, T(std::numeric_limits<R>::quiet_NaN()));
    }
    return Status::Ok();
  }

  Status Trtri(Stream, int64_t n, const T* l, int64_t ldl, T* inverse, int64_t ld) override {
    if (n == 0) return Status::Ok();
    char uplo = 'L', diag = 'N';
    Ints ints(n, ld);
    JAXMG_CHECK_LAPACK(trtri, ints);
    for (int64_t j = 0; j < n; ++j) {
      std::fill_n(inverse + j * ld, j, T(0));
      std::copy_n(l + j * ldl + j, n - j, inverse + j * ld + j);
    }
    int info = 0;
    HostLapack<T>().trtri(&uplo, &diag, ints[0], inverse, ints[1], &info);
    return Status::Ok();
  }

  Status ConjTranspose(Stream, int64_t m, int64_t n, const T* a, int64_t lda, T* b,
                       int64_t ldb) override {
    // Square blocks that fit the nearest cache with their transposes.
    constexpr int64_t kBlock = 32;
    for (int64_t j0 = 0; j0 < n; j0 += kBlock) {
      const int64_t j1 = std::min(j0 + kBlock, n);
      for (int64_t i0 = 0; i0 < m; i0 += kBlock) {
        const int64_t i1 = std::min(i0 + kBlock, m);
        for (int64_t j = j0; j < j1; ++j) {
          for (int64_t i = i0; i < i1; ++i) b[i * ldb + j] = Conj(a[j * lda + i]);
        }
      }
    }
    return Status::Ok();
  }

  Status MirrorLower(Stream stream, int64_t n, T* a, int64_t lda) override {
    constexpr int64_t kBlock = 32;
    for (int64_t j0 = 0; j0 < n; j0 += kBlock) {
      const int64_t j1 = std::min(j0 + kBlock, n);
      for (int64_t j = j0; j < j1; ++j) {
        a[j * lda + j] = std::real(a[j * lda + j]);
        for (int64_t i = j + 1; i < j1; ++i) a[i * lda + j] = Conj(a[j * lda + i]);
      }
      JAXMG_RETURN_IF_ERROR(
          ConjTranspose(stream, n - j1, j1 - j0, a + j0 * lda + j1, lda, a + j1 * lda + j0, lda));
    }
    return Status::Ok();
  }

  Status Conjugate(Stream, int64_t m, int64_t n, T* a, int64_t lda) override {
    if constexpr (kIsComplex<T>) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < m; ++i) a[j * lda + i] = std::conj(a[j * lda + i]);
      }
    }
    return Status::Ok();
  }

  Status Add(Stream, int64_t m, int64_t n, const T* a, int64_t lda, T* b, int64_t ldb) override {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i) b[j * ldb + i] += a[j * lda + i];
    }
    return Status::Ok();
  }

  Status SetZero(Stream, int64_t m, int64_t n, T* a, int64_t lda) override {
    Fill(m, n, a, lda, T(0));
    return Status::Ok();
  }

  Status StoreInverse(Stream, int64_t n, const T* inverse, int64_t ld, T* a,
                      int64_t lda) override {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < j; ++i) a[j * lda + i] = Conj(inverse[i * ld + j]);
    }
    return Status::Ok();
  }

  Status LoadInverse(Stream, int64_t n, const T* a, int64_t lda, T* l, T* inverse) override {
    for (int64_t j = 0; j < n; ++j) {
      std::fill_n(l + j * n, j, T(0));
      std::fill_n(inverse + j * n, j, T(0));
      std::copy_n(a + j * lda + j, n - j, l + j * n + j);
      inverse[j * n + j] = 1 / std::real(a[j * lda + j]);
      for (int64_t i = j + 1; i < n; ++i) inverse[j * n + i] = Conj(a[i * lda + j]);
    }
    return Status::Ok();
  }

  Status AddLogDet(Stream, int64_t n, const T* l, int64_t ldl, R* sum) override {
    R log_det = 0;
    for (int64_t j = 0; j < n; ++j) log_det += std::log(std::real(l[j * ldl + j]));
    *sum += 2 * log_det;
    return Status::Ok();
  }

  Status PoisonIf(Stream, const int32_t* status, int64_t m, int64_t n, T* a, int64_t lda) override {
    if (*status != 0) Fill(m, n, a, lda, T(std::numeric_limits<R>::quiet_NaN()));
    return Status::Ok();
  }

  Status Syevd(Stream, bool vectors, int64_t n, T* a, int64_t lda, R* w, int32_t* info) override {
    *info = 0;
    if (n == 0) return Status::Ok();
    // LAPACK may not return at all from a matrix that holds NaN or infinity.
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = j; i < n; ++i) {
        if (!std::isfinite(std::real(a[j * lda + i])) ||
            !std::isfinite(std::imag(a[j * lda + i]))) {
          *info = static_cast<int32_t>(j + 1);
          return Status::Ok();
        }
      }
    }
    char jobz = vectors ? 'V' : 'N', uplo = 'L';
    Ints ints(n, lda);
    JAXMG_RETURN_IF_ERROR(ints.Check("syevd"));
    // LAPACK returns the sizes of its workspaces as floating-point numbers, which float32 rounds
    // down from 2^24 on: they are computed here from LAPACK's documentation instead.
    const int64_t nn = n;
    const int64_t iwork_size = vectors ? 3 + 5 * nn : 1;
    int64_t work_size, rwork_size;
    if constexpr (kIsComplex<T>) {
      work_size = vectors ? 2 * nn + nn * nn : nn + 1;
      rwork_size = vectors ? 1 + 5 * nn + 2 * nn * nn : nn;
      work_size = std::max(work_size, nn * 65);  // room for blocked code, 64 columns
    } else {
      work_size = vectors ? 1 + 6 * nn + 2 * nn * nn : 2 * nn + 1;
      work_size = std::max(work_size, nn * 66);
      rwork_size = 0;
    }
    Ints sizes(work_size, rwork_size, iwork_size);
    JAXMG_RETURN_IF_ERROR(sizes.Check("syevd workspace"));
    try {
      std::vector<T> work(std::max<int64_t>(work_size, 1));
      std::vector<R> rwork(std::max<int64_t>(rwork_size, 1));
      std::vector<int> iwork(std::max<int64_t>(iwork_size, 1));
      int failed = 0;
      if constexpr (kIsComplex<T>) {
        JAXMG_CHECK_LAPACK(heevd, sizes);
        HostLapack<T>().heevd(&jobz, &uplo, ints[0], a, ints[1], w, work.data(), sizes[0],
                              rwork.data(), sizes[1], iwork.data(), sizes[2], &failed);
      } else {
        JAXMG_CHECK_LAPACK(syevd, sizes);
        HostLapack<T>().syevd(&jobz, &uplo, ints[0], a, ints[1], w, work.data(), sizes[0],
                              iwork.data(), sizes[2], &failed);
      }
      *info = failed;
    } catch (const std::bad_alloc&) {
      return Error(Code::kResourceExhausted, "out of memory: syevd of order ", n, " needs ",
                   (work_size * sizeof(T) + rwork_size * sizeof(R)) >> 20, " MiB of workspace");
    }
    return Status::Ok();
  }

 private:
  template <typename Routine>
  static Status Triangular(Routine routine, const char* name, Side side, Op op, int64_t m,
                           int64_t n, const T* l, int64_t ldl, T* b, int64_t ldb) {
    if (m == 0 || n == 0) return Status::Ok();
    char c_side = Letter(side), uplo = 'L', trans = Letter(op), diag = 'N';
    T one = 1;
    Ints ints(m, n, ldl, ldb);
    JAXMG_RETURN_IF_ERROR(ints.Check(name));
    routine(&c_side, &uplo, &trans, &diag, ints[0], ints[1], &one, const_cast<T*>(l), ints[2], b,
            ints[3]);
    return Status::Ok();
  }

  static void Fill(int64_t m, int64_t n, T* a, int64_t lda, T value) {
    for (int64_t j = 0; j < n; ++j) std::fill_n(a + j * lda, m, value);
  }
};

class HostBuffer : public Buffer {
 public:
  HostBuffer(size_t alignment, size_t size) : Buffer(std::aligned_alloc(alignment, size)) {}
  ~HostBuffer() override { std::free(data_); }
};

class HostDevice : public Device {
 public:
  Tuning tuning() const override {
    Tuning tuning;
    tuning.borrow_panels = true;
    return tuning;
  }

  Status Allocate(size_t bytes, std::unique_ptr<Buffer>* buffer) override {
    // Large pages where there are any: a workspace is new in every call, and a fault on each of its
    // small pages would cost as much as filling it.
    constexpr size_t kLargePage = size_t{2} << 20;
    const size_t alignment = bytes >= 2 * kLargePage ? kLargePage : 64;
    const size_t size = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    if (size >= bytes) *buffer = std::make_unique<HostBuffer>(alignment, size);
    if (size < bytes || (*buffer)->data() == nullptr) {
      buffer->reset();
      return Error(Code::kResourceExhausted, "out of memory: ", bytes, " bytes of workspace");
    }
    if (alignment == kLargePage) madvise((*buffer)->data(), size, MADV_HUGEPAGE);
    return Status::Ok();
  }

  Status NewEvent(std::shared_ptr<Event>* event) override {
    // What was enqueued has been done, so all events are the same one.
    static const std::shared_ptr<Event>* done =
        new std::shared_ptr<Event>(std::make_shared<Event>());
    *event = *done;
    return Status::Ok();
  }
  Status Record(Stream, Event*) override { return Status::Ok(); }
  Status Wait(Stream, const Event&) override { return Status::Ok(); }
  Status Synchronize() override { return Status::Ok(); }

  Status Copy(Stream, const Bytes2D& target, const Bytes2D& source) override {
    const char* from = static_cast<const char*>(source.data);
    char* to = static_cast<char*>(target.data);
    if (source.pitch == source.height && target.pitch == target.height) {
      std::memcpy(to, from, source.height * source.columns);
      return Status::Ok();
    }
    for (size_t j = 0; j < source.columns; ++j) {
      std::memcpy(to + j * target.pitch, from + j * source.pitch, source.height);
    }
    return Status::Ok();
  }

  void BeginRange(Stream stream, const char* name, int64_t index) override {
    if (!timeline_wanted_) return;
    open_.Open(stream, ranges_.size());
    ranges_.push_back({name, index, stream, SteadySeconds(), 0});
  }
  void EndRange(Stream stream) override {
    if (timeline_wanted_) ranges_[open_.Close(stream)].end = SteadySeconds();
  }
  std::vector<TimelineRange> TakeRanges() override { return std::move(ranges_); }

  Status FillInt32(Stream, int32_t* data, int64_t count, int32_t value) override {
    std::fill_n(data, count, value);
    return Status::Ok();
  }

  Status Digest(Stream, const void* words, int64_t count, int32_t* digest) override {
    // Odd factors, so that a change of any one word shows.
    uint32_t sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      uint32_t word;
      std::memcpy(&word, static_cast<const char*>(words) + i * sizeof(word), sizeof(word));
      sum += word * static_cast<uint32_t>(2 * i + 1);
    }
    *digest = static_cast<int32_t>(sum);
    return Status::Ok();
  }

  Status ReduceInfo(Stream, const int32_t* pairs, int64_t stride, int64_t count,
                    int32_t* status) override {
    int32_t least = kNoInfo;
    for (int64_t i = 0; i < count; ++i) {
      least = std::min(least, pairs[i * stride]);
      if (pairs[i * stride + 1] != pairs[1]) least = std::min(least, kDifferentOperands);
    }
    *status = least == kNoInfo ? 0 : least;
    return Status::Ok();
  }

  Status SumReals(Stream, const float* terms, int64_t stride, int64_t count, float* sum) override {
    return Sum(terms, stride, count, sum);
  }
  Status SumReals(Stream, const double* terms, int64_t stride, int64_t count,
                  double* sum) override {
    return Sum(terms, stride, count, sum);
  }

 protected:
  Blas<float>& BlasOf(const float*) override { return float_; }
  Blas<double>& BlasOf(const double*) override { return double_; }
  Blas<std::complex<float>>& BlasOf(const std::complex<float>*) override { return complex64_; }
  Blas<std::complex<double>>& BlasOf(const std::complex<double>*) override { return complex128_; }

 private:
  template <typename R>
  static Status Sum(const R* terms, int64_t stride, int64_t count, R* sum) {
    R total = 0;
    for (int64_t i = 0; i < count; ++i) total += terms[i * stride];
    *sum = total;
    return Status::Ok();
  }

  const bool timeline_wanted_ = TimelineWanted();
  std::vector<TimelineRange> ranges_;
  OpenRanges open_;
  HostBlas<float> float_;
  HostBlas<double> double_;
  HostBlas<std::complex<float>> complex64_;
  HostBlas<std::complex<double>> complex128_;
};

}  // namespace

std::unique_ptr<Device> NewHostDevice() { return std::make_unique<HostDevice>(); }

}  // namespace jaxmg
