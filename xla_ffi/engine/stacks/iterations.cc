#include "xla_ffi/engine/stacks/iterations.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <initializer_list>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "xla_ffi/device/products/noise.h"
#include "xla_ffi/engine/core/host_copy.h"
#include "xla_ffi/engine/svd/qdwh.h"

namespace jaxmg {
namespace {

constexpr Stream kStream = Stream::kMain;
// The number of steps of the power iteration, the largest numbers of steps of coupled Newton and of
// QDWH, and the number of steps of the inverse iteration.
constexpr int kPowers = 100, kNewtonSteps = 100, kMostSteps = 30, kInverseIterations = 6;
// Determines the smallest l for which a step has weights (StackedPolar::Step), l = 0.022. These
// weights are a = 32 and c = 268: the condition of I + c X^H X is low enough for the inverse of its
// factor. A step multiplies small singular values by a.
constexpr double kLargestC = 100;
// The smallest eigenvalue of X^H X is known if it exceeds its rounding by this factor.
constexpr double kDistinct = 3;

// Operations on stacks, with a sum or a few numbers for each matrix.
template <typename T>
class StackProgram {
 protected:
  using R = Real<T>;
  using Numbers = std::vector<double>;

  StackProgram(Device& device, int64_t count, int64_t n)
      : device_(device), count_(count), n_(n), size_(n * n) {}

  // Allocates `stacks` stacks of matrices, `vectors` stacks of vectors, and memory for numbers.
  Status Reserve(int stacks, int vectors) {
    const int64_t elements = count_ * (stacks * size_ + vectors * n_);
    JAXMG_RETURN_IF_ERROR(device_.Allocate(elements * sizeof(T), &elements_));
    JAXMG_RETURN_IF_ERROR(device_.Allocate(count_ * sizeof(double), &sums_));
    JAXMG_RETURN_IF_ERROR(device_.Allocate(3 * count_ * sizeof(R), &numbers_));
    JAXMG_RETURN_IF_ERROR(device_.AllocateOnHost(count_ * n_ * sizeof(T), &host_vectors_));
    return device_.AllocateOnHost(count_ * (sizeof(double) + kSlots * 3 * sizeof(R)), &host_);
  }
  T* stack(int i) const { return elements_->template as<T>() + i * count_ * size_; }
  double* sums() const { return sums_->template as<double>(); }
  StackElements<T>& elements() const { return device_.template elements<T>(); }
  StackKernels<T>& kernels() const { return device_.template stacks<T>(); }

  Status Multiply(Op op_x, Op op_y, const T* x, const T* y, T* product) const {
    return kernels().Multiply(kStream, op_x, op_y, count_, n_, n_, n_, x, y, product);
  }
  // product := op(A) V for a vector V of each matrix.
  Status Apply(Op op, const T* a, const T* v, T* product) const {
    return kernels().Multiply(kStream, op, Op::kNone, count_, n_, 1, n_, a, v, product);
  }

  // Computes the sums `what` (StackElements::Sum) and copies them to the host.
  Status Read(StackedSum what, int64_t size, const T* x, const T* y, Numbers* sums) const {
    JAXMG_RETURN_IF_ERROR(elements().Sum(kStream, what, count_, size, n_, x, y, this->sums()));
    JAXMG_RETURN_IF_ERROR(CopyToHost(device_,
                                     Block(host_->template as<double>(), count_, count_, 1),
                                     Block(this->sums(), count_, count_, 1)));
    sums->assign(host_->template as<double>(), host_->template as<double>() + count_);
    return Status::Ok();
  }
  Status ReadNorms(StackedSum what, int64_t size, const T* x, const T* y, Numbers* norms) const {
    JAXMG_RETURN_IF_ERROR(Read(what, size, x, y, norms));
    for (double& norm : *norms) norm = std::sqrt(norm);
    return Status::Ok();
  }

  // out := (of_x X + of_y Y + of_identity I) / divisor. May be called at most kSlots times between
  // two Reads. After a Read the numbers have been copied, so their slots are free.
  Status Combine(const Numbers& of_x, const T* x, const Numbers& of_y, const T* y,
                 const Numbers& of_identity, T* out, double divisor = 1) {
    R* const here =
        reinterpret_cast<R*>(host_->template as<double>() + count_) + slot_ * 3 * count_;
    slot_ = (slot_ + 1) % kSlots;
    R* const there = numbers_->template as<R>();
    int64_t i = 0;
    for (const Numbers* numbers : {&of_x, &of_y, &of_identity}) {
      for (int64_t matrix = 0; matrix < count_; ++matrix) {
        here[i++] = numbers->empty() ? R(0) : static_cast<R>((*numbers)[matrix]);
      }
    }
    JAXMG_RETURN_IF_ERROR(device_.Copy(kStream, Block(there, i, i, 1), Block(here, i, i, 1)));
    const StackedTerms<T> terms = {
        x, y, there, there + count_, there + 2 * count_, static_cast<R>(divisor)};
    return elements().Combine(kStream, count_, size_, n_, terms, out);
  }

  // Waits for copies from this program's host memory, because a later call may reuse the memory. A
  // Read also waits for them.
  Status AwaitCopies() const {
    std::shared_ptr<Event> copied;
    JAXMG_RETURN_IF_ERROR(device_.NewEvent(&copied));
    JAXMG_RETURN_IF_ERROR(device_.Record(kStream, copied.get()));
    return device_.AwaitOnHost(*copied);
  }

  // Fills the vector of each matrix with the same values. May be called once in a program.
  template <typename F>
  Status MakeVectors(const F& element, T* v) const {
    T* const here = host_vectors_->template as<T>();
    const int64_t all = count_ * n_;
    for (int64_t i = 0; i < all; ++i) here[i] = static_cast<R>(element(i % n_));
    return device_.Copy(kStream, Block(v, all, all, 1), Block(here, all, all, 1));
  }
  // V := V / |V|. Leaves the squares of the norms in sums().
  Status Normalize(T* v) const {
    JAXMG_RETURN_IF_ERROR(elements().Sum(kStream, StackedSum::kInner, count_, n_, 1, v, v, sums()));
    return elements().DivideByRoots(kStream, count_, n_, sums(), v, v);
  }

  Numbers Filled(double value) const { return Numbers(count_, value); }
  template <typename F>
  Numbers Map(const Numbers& numbers, const F& f) const {
    Numbers values(numbers.size());
    std::transform(numbers.begin(), numbers.end(), values.begin(), f);
    return values;
  }

  Bytes2D Whole(const T* x) const { return Block(x, count_ * size_, count_ * size_, 1); }

  static constexpr int kSlots = 2 * kMostSteps + 4;  // for numbers in transfer to the device

  Device& device_;
  const int64_t count_, n_, size_;
  std::unique_ptr<Buffer> elements_, sums_, numbers_, host_, host_vectors_;
  int slot_ = 0;
};

template <typename T>
class NewtonRoots : StackProgram<T> {
  using Base = StackProgram<T>;
  using typename Base::Numbers;
  using R = Real<T>;

 public:
  NewtonRoots(Device& device, int64_t count, int64_t n, int64_t p, double epsilon)
      : Base(device, count, n), p_(p), epsilon_(epsilon) {}

  Status Run(const T* a, T* roots) {
    JAXMG_RETURN_IF_ERROR(this->Reserve(5, 2));
    m_ = this->stack(0), h_ = roots;
    spare_ = {this->stack(1), this->stack(2), this->stack(3), this->stack(4)};
    v_ = this->stack(5), w_ = v_ + count() * this->n_;
    std::unique_ptr<Buffer> exponents;
    JAXMG_RETURN_IF_ERROR(this->device_.Allocate(count() * sizeof(int32_t), &exponents));
    // For small p, scales by a power of 2^p, whose p-th root is exact.
    const int64_t step = p_ <= 32 ? p_ : 1;
    JAXMG_RETURN_IF_ERROR(this->elements().Scale(kStream, count(), this->size_, step, a, m_,
                                                 exponents->template as<int32_t>()));
    Numbers norms, start;
    JAXMG_RETURN_IF_ERROR(Shift(&norms));
    // Scales M to eigenvalues below p + 1.
    const double p = static_cast<double>(p_);
    const Numbers scale = this->Map(norms, [p](double norm) { return (1 + p) / (2 * norm); });
    JAXMG_RETURN_IF_ERROR(this->Combine(scale, m_, {}, nullptr, {}, m_));
    start = this->Map(scale, [p](double x) { return std::pow(x, 1 / p); });
    JAXMG_RETURN_IF_ERROR(this->Combine(this->Filled(0), m_, {}, nullptr, start, h_));
    Numbers error;
    JAXMG_RETURN_IF_ERROR(Iterate(&error));
    JAXMG_RETURN_IF_ERROR(this->elements().MakeHermitian(kStream, count(), this->n_, h_));
    std::vector<int32_t> exponent;
    JAXMG_RETURN_IF_ERROR(ReadExponents(exponents->template as<int32_t>(), &exponent));
    Numbers back(count());
    for (int64_t i = 0; i < count(); ++i) {
      const int64_t below = ((exponent[i] % p_) + p_) % p_;
      const R rest = std::exp2(static_cast<R>(-static_cast<double>(below) / p));
      const auto power = static_cast<int>(-((exponent[i] - below) / p_));
      back[i] = error[i] <= 0.3 ? std::ldexp(static_cast<double>(rest), power)
                                : std::numeric_limits<double>::quiet_NaN();
    }
    JAXMG_RETURN_IF_ERROR(this->Combine(back, h_, {}, nullptr, {}, roots));
    return this->AwaitCopies();
  }

 private:
  int64_t count() const { return this->count_; }

  Status ReadExponents(const int32_t* there, std::vector<int32_t>* exponents) const {
    auto* const here = this->host_->template as<int32_t>();
    JAXMG_RETURN_IF_ERROR(CopyToHost(this->device_, Block(here, count(), count(), 1),
                                     Block(there, count(), count(), 1)));
    exponents->assign(here, here + count());
    return Status::Ok();
  }

  // M := A + epsilon w I, where w comes from the power iteration. Also reads the norms of M.
  Status Shift(Numbers* norms) {
    JAXMG_RETURN_IF_ERROR(
        this->MakeVectors([](int64_t i) { return std::cos(static_cast<double>(i)); }, v_));
    for (int i = 0; i < kPowers; ++i) {
      JAXMG_RETURN_IF_ERROR(this->Apply(Op::kNone, m_, v_, w_));
      std::swap(v_, w_);
      JAXMG_RETURN_IF_ERROR(this->Normalize(v_));
    }
    JAXMG_RETURN_IF_ERROR(this->Apply(Op::kNone, m_, v_, w_));
    Numbers inner, square;
    JAXMG_RETURN_IF_ERROR(this->Read(StackedSum::kInner, this->n_, v_, w_, &inner));
    JAXMG_RETURN_IF_ERROR(this->Read(StackedSum::kInner, this->n_, v_, v_, &square));
    Numbers shift(count());
    for (int64_t i = 0; i < count(); ++i) {
      shift[i] = epsilon_ * inner[i] / std::max(square[i], 1e-30);
    }
    JAXMG_RETURN_IF_ERROR(this->Combine(this->Filled(1), m_, {}, nullptr, shift, m_));
    return this->ReadNorms(StackedSum::kInner, this->size_, m_, m_, norms);
  }

  Status Iterate(Numbers* error) {
    const double enough = 10 * static_cast<double>(std::numeric_limits<R>::epsilon());
    Numbers before = this->Filled(std::numeric_limits<double>::infinity());
    JAXMG_RETURN_IF_ERROR(this->ReadNorms(StackedSum::kFromIdentity, this->size_, m_, m_, error));
    const double p = static_cast<double>(p_);
    for (int step = 0; step < kNewtonSteps; ++step) {
      // An error e below 1 / (p + 1) becomes (p + 1) / 2 e^2 in a step, up to rounding. So a matrix
      // has converged if a step doesn't halve such an error; it is then multiplied by I.
      Numbers of_m(count()), of_identity(count());
      bool any = false;
      for (int64_t i = 0; i < count(); ++i) {
        const double now = (*error)[i];
        const bool far = now > enough && (before[i] > 1 / (p + 1) || now < before[i] / 2);
        any |= far;
        of_m[i] = far ? -1 : 0;
        of_identity[i] = far ? p + 1 : p;
      }
      if (!any) return Status::Ok();
      T* const factor = spare_[0];
      JAXMG_RETURN_IF_ERROR(this->Combine(of_m, m_, {}, nullptr, of_identity, factor, p));
      JAXMG_RETURN_IF_ERROR(TimesPower(factor));
      JAXMG_RETURN_IF_ERROR(this->Multiply(Op::kNone, Op::kNone, h_, factor, spare_[1]));
      std::swap(h_, spare_[1]);
      Numbers now;
      JAXMG_RETURN_IF_ERROR(this->ReadNorms(StackedSum::kFromIdentity, this->size_, m_, m_, &now));
      for (int64_t i = 0; i < count(); ++i) {
        if (of_m[i] == 0) continue;
        before[i] = (*error)[i];
        (*error)[i] = now[i];
      }
    }
    return Status::Ok();
  }

  // M := factor^p M, by repeated squaring. `factor` is unchanged.
  Status TimesPower(T* factor) {
    const T* square = factor;
    int next = 1;
    for (int64_t left = p_; left > 0; left /= 2) {
      if (left % 2 == 1) {
        JAXMG_RETURN_IF_ERROR(this->Multiply(Op::kNone, Op::kNone, square, m_, spare_[3]));
        std::swap(m_, spare_[3]);
      }
      if (left == 1) break;
      T* const to = spare_[next];
      JAXMG_RETURN_IF_ERROR(this->Multiply(Op::kNone, Op::kNone, square, square, to));
      square = to;
      next = 3 - next;
    }
    return Status::Ok();
  }

  const int64_t p_;
  const double epsilon_;
  T *m_ = nullptr, *h_ = nullptr, *v_ = nullptr, *w_ = nullptr;
  std::vector<T*> spare_;
};

template <typename T>
class StackedPolar : StackProgram<T> {
  using Base = StackProgram<T>;
  using typename Base::Numbers;
  using R = Real<T>;

 public:
  StackedPolar(Device& device, int64_t count, int64_t n) : Base(device, count, n) {}

  Status Run(const T* a, T* u, T* h, int32_t* exponents) {
    JAXMG_RETURN_IF_ERROR(this->Reserve(4, 2));
    scaled_ = this->stack(0), x_ = u;
    gram_ = this->stack(1), next_ = this->stack(2), spare_ = this->stack(3);
    v_ = this->stack(4), w_ = v_ + count() * this->n_;
    JAXMG_RETURN_IF_ERROR(
        this->elements().Scale(kStream, count(), this->size_, 1, a, scaled_, exponents));
    JAXMG_RETURN_IF_ERROR(Begin());
    Numbers change = this->Filled(1);
    for (int step = 0; step < kMostSteps && Apart(change); ++step) {
      JAXMG_RETURN_IF_ERROR(Step(&change));
    }
    if (x_ != u)
      JAXMG_RETURN_IF_ERROR(this->device_.Copy(kStream, this->Whole(u), this->Whole(x_)));
    if (h == nullptr) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(this->Multiply(Op::kConjTrans, Op::kNone, u, scaled_, h));
    return this->elements().MakeHermitian(kStream, count(), this->n_, h);
  }

 private:
  int64_t count() const { return this->count_; }
  double unit() const { return static_cast<double>(std::numeric_limits<R>::epsilon()) / 2; }

  // Sets X, of norm at most 1, and l, a lower bound of its singular values.
  Status Begin() {
    JAXMG_RETURN_IF_ERROR(this->Multiply(Op::kConjTrans, Op::kNone, scaled_, scaled_, gram_));
    // An upper bound of the square of the largest singular value, at most n^(1/2) times too large.
    Numbers bound;
    JAXMG_RETURN_IF_ERROR(this->ReadNorms(StackedSum::kInner, this->size_, gram_, gram_, &bound));
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    for (double& x : bound) x = !std::isfinite(x) ? kNan : x > 0 ? x : 1;
    const Numbers inverse = this->Map(bound, [](double x) { return 1 / x; });
    const Numbers root = this->Map(bound, [](double x) { return 1 / std::sqrt(x); });
    JAXMG_RETURN_IF_ERROR(this->Combine(root, scaled_, {}, nullptr, {}, x_));
    const double rounding = 8 * static_cast<double>(this->n_) * unit();
    const Numbers shift = this->Filled(rounding);
    JAXMG_RETURN_IF_ERROR(this->Combine(inverse, gram_, {}, nullptr, shift, gram_));
    Numbers growth;
    JAXMG_RETURN_IF_ERROR(InverseIteration(&growth));
    // The estimate is an upper bound of the smallest singular value, so l is a quarter of it. If
    // rounding hides the value, noise is added, whose smallest singular value may be much smaller
    // than its entries. So l is far below rounding.
    low_ = this->Filled(unit() / (1000 * static_cast<double>(this->n_)));
    for (int64_t i = 0; i < count(); ++i) {
      const double smallest = 1 / growth[i] - rounding;
      if (std::isnan(bound[i])) {
        low_[i] = 1;  // needs no step
      } else if (smallest > kDistinct * rounding) {
        low_[i] = std::sqrt(smallest) / 4;
      } else {
        const auto size = static_cast<R>(4 * unit() / std::sqrt(static_cast<double>(this->n_)));
        JAXMG_RETURN_IF_ERROR(this->device_.template matrix<T>().AddNoise(
            kStream, this->n_, this->n_, 0, 0, size, x_ + i * this->size_, this->n_));
      }
    }
    return Status::Ok();
  }

  // Estimates the largest eigenvalues of the inverse of the Gram matrix, from below.
  Status InverseIteration(Numbers* growth) {
    JAXMG_RETURN_IF_ERROR(InvertFactor(gram_));
    JAXMG_RETURN_IF_ERROR(this->MakeVectors([](int64_t i) { return NoiseAt(i, 0); }, v_));
    for (int i = 0; i < kInverseIterations; ++i) {
      JAXMG_RETURN_IF_ERROR(this->Normalize(v_));
      JAXMG_RETURN_IF_ERROR(this->Apply(Op::kNone, gram_, v_, w_));
      JAXMG_RETURN_IF_ERROR(this->Apply(Op::kConjTrans, gram_, w_, v_));
    }
    return this->ReadNorms(StackedSum::kInner, this->n_, v_, v_, growth);
  }

  // a := L^-1, where a = L L^H on entry.
  Status InvertFactor(T* a) const {
    JAXMG_RETURN_IF_ERROR(this->kernels().FactorCholesky(kStream, false, count(), this->n_, a));
    return this->kernels().InvertTriangle(kStream, false, count(), this->n_, a);
  }

  bool Apart(const Numbers& change) const {
    const double close = std::cbrt(10 * unit());
    return LowIsApart() ||
           std::any_of(change.begin(), change.end(), [close](double x) { return x > close; });
  }
  bool LowIsApart() const {
    return std::any_of(low_.begin(), low_.end(),
                       [this](double low) { return 1 - low > 10 * unit(); });
  }

  // X := b / c X + (a - b / c) X (I + c X^H X)^-1. Reads the change of X only once l is 1, because
  // the host waits for it. From the least l, l reaches 1 in fewer than kMostSteps steps.
  Status Step(Numbers* change) {
    const double least = 2 / std::pow(4 * kLargestC, 0.75);
    Numbers kept(count()), added(count()), of_gram(count());
    for (int64_t i = 0; i < count(); ++i) {
      const Weights weights = WeightsOf(std::max(low_[i], least));
      kept[i] = weights.b / weights.c;
      added[i] = weights.a - kept[i];
      of_gram[i] = weights.c;
      const double square = low_[i] * low_[i];
      low_[i] =
          std::min(low_[i] * (weights.a + weights.b * square) / (1 + weights.c * square), 1.0);
    }
    JAXMG_RETURN_IF_ERROR(this->Multiply(Op::kConjTrans, Op::kNone, x_, x_, gram_));
    JAXMG_RETURN_IF_ERROR(this->Combine(of_gram, gram_, {}, nullptr, this->Filled(1), gram_));
    JAXMG_RETURN_IF_ERROR(InvertFactor(gram_));
    JAXMG_RETURN_IF_ERROR(this->Multiply(Op::kNone, Op::kConjTrans, x_, gram_, spare_));
    JAXMG_RETURN_IF_ERROR(this->Multiply(Op::kNone, Op::kNone, spare_, gram_, next_));
    JAXMG_RETURN_IF_ERROR(this->Combine(kept, x_, added, next_, {}, next_));
    std::swap(x_, next_);
    if (LowIsApart()) return Status::Ok();
    return this->ReadNorms(StackedSum::kDifference, this->size_, x_, next_, change);
  }

  T *scaled_ = nullptr, *x_ = nullptr, *gram_ = nullptr, *next_ = nullptr, *spare_ = nullptr;
  T *v_ = nullptr, *w_ = nullptr;
  Numbers low_;
};

}  // namespace

template <typename T>
Status NormalizeStack(Device& device, int64_t count, int64_t size, const T* a, T* x) {
  std::unique_ptr<Buffer> exponents, sums;
  JAXMG_RETURN_IF_ERROR(device.Allocate(count * sizeof(double), &sums));
  StackElements<T>& elements = device.elements<T>();
  if constexpr (!std::is_same_v<Real<T>, float>) {  // squares of floats are in double's range
    JAXMG_RETURN_IF_ERROR(device.Allocate(count * sizeof(int32_t), &exponents));
    JAXMG_RETURN_IF_ERROR(
        elements.Scale(kStream, count, size, 1, a, x, exponents->template as<int32_t>()));
    a = x;
  }
  double* const squares = sums->template as<double>();
  JAXMG_RETURN_IF_ERROR(elements.Sum(kStream, StackedSum::kInner, count, size, 1, a, a, squares));
  return elements.DivideByRoots(kStream, count, size, squares, a, x);
}

template <typename T>
Status InverseRootsOfStack(Device& device, int64_t count, int64_t n, int64_t p, double epsilon,
                           const T* a, T* roots) {
  return NewtonRoots<T>(device, count, n, p, epsilon).Run(a, roots);
}

template <typename T>
Status PolarOfStack(Device& device, int64_t count, int64_t n, const T* a, T* u, T* h,
                    int32_t* exponents) {
  return StackedPolar<T>(device, count, n).Run(a, u, h, exponents);
}

#define JAXMG_INSTANTIATE(T)                                                                     \
  template Status NormalizeStack(Device&, int64_t, int64_t, const T*, T*);                       \
  template Status InverseRootsOfStack(Device&, int64_t, int64_t, int64_t, double, const T*, T*); \
  template Status PolarOfStack(Device&, int64_t, int64_t, const T*, T*, T*, int32_t*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
