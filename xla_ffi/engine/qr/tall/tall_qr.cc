#include "xla_ffi/engine/qr/tall/tall_qr.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "xla_ffi/engine/core/host_copy.h"
#include "xla_ffi/engine/qr/tall/tall_products.h"
#include "xla_ffi/engine/qr/tall/tsqr.h"
#include "xla_ffi/engine/qr/whole_qr.h"

namespace jaxmg {
namespace {

constexpr Stream kMain = Stream::kMain;
// Limit for the squared distance of the second Gram matrix from I, in the Frobenius norm. A quarter
// is far below the limit of CholeskyQR2.
constexpr double kFarthest = 0.25 * 0.25;
// Limit for |L| |L^-1| / n, in the Frobenius norm, up to which the code multiplies by L^-1 itself.
// The rounding of L^-1 then changes A - Q R by no more than a few times n^(1/2) units of |A|.
constexpr double kModerate = 4;

template <typename T>
bool InRange(const T* squares, int64_t count) {
  // Products of these squares, or of their roots, neither overflow nor underflow.
  const Real<T> limit = std::ldexp(Real<T>(1), std::numeric_limits<Real<T>>::max_exponent / 2 - 4);
  return std::all_of(squares, squares + count, [&](const T& square) {
    return std::real(square) > 1 / limit && std::real(square) < limit;
  });
}

// Returns the e of `largest` = f 2^e, 1 <= f < 2, for a normal number. Returns 0 for zero and for
// values that are not finite.
template <typename R>
int ExponentOf(R largest) {
  if (!(largest > 0) || !std::isfinite(largest)) return 0;
  return std::max(std::ilogb(largest), std::numeric_limits<R>::min_exponent - 1);
}

template <typename T>
class TallQr {
 public:
  TallQr(const RankContext& context, const TallQrProblem<T>& problem)
      : context_(context),
        device_(context.device),
        comm_(context.comm),
        products_(context),
        p_(problem),
        s_(problem.sizes),
        n_(s_.n),
        nrhs_(s_.with_b ? s_.nrhs : 0),
        space_(s_, RanksOf(context)),
        memory_(space_.pieces),
        from_{p_.a, p_.b, p_.below} {}

  Status Prepare() {
    JAXMG_RETURN_IF_ERROR(device_.ReserveHandles());
    JAXMG_RETURN_IF_ERROR(memory_.Allocate(device_));
    JAXMG_RETURN_IF_ERROR(device_.AllocateOnHost(space_.host_bytes, &host_));
    return products_.works() ? blas().ReservePotrf(kMain, n_, gram(), n_) : Status::Ok();
  }

  Status Work() {
    JAXMG_RETURN_IF_ERROR(device_.FillInt32(kMain, p_.power, 1, 0));
    if (!s_.with_b) return ByQr();
    JAXMG_RETURN_IF_ERROR(device_.FillInt32(kMain, p_.powers, nrhs_, 0));
    if (s_.with_q) {
      JAXMG_RETURN_IF_ERROR(Scale());
      return ByQr();
    }
    bool in_range = false, good = false;
    JAXMG_RETURN_IF_ERROR(Seminormal(&in_range, &good));
    if (!in_range) {
      JAXMG_RETURN_IF_ERROR(Scale());
      JAXMG_RETURN_IF_ERROR(Seminormal(&in_range, &good));
    }
    return good ? Status::Ok() : ByQr();
  }

 private:
  // The operands that an algorithm reads: the caller's, or scaled copies.
  struct From {
    const T *a, *b, *below;
  };

  Blas<T>& blas() { return device_.blas<T>(); }
  MatrixKernels<T>& kernels() { return device_.matrix<T>(); }
  template <typename U>
  U* at(const Piece<U>& piece) const {
    return memory_.Get(piece);
  }
  T* gram() const { return at(space_.gram); }
  T* inverse() const { return at(space_.inverse); }
  double* Sums(int of) const { return at(space_.numbers) + of * kSquareSums; }
  T* Diagonal() const { return reinterpret_cast<T*>(Sums(kNumTallSums)); }
  T* Squares() const { return Diagonal() + n_; }
  T* Changes() const { return Squares() + nrhs_; }
  bool First() const { return comm_.rank() == kFirstRank; }
  // Returns the number of further rows that this rank handles: all of them on the first rank.
  int64_t further() const { return First() ? s_.further : 0; }

  // --- Decisions ---------------------------------------------------------------------------------

  struct Numbers {
    double sums[kNumTallSums];
    const T *diagonal, *squares, *changes;

    bool IsModerate(int64_t n) const {
      return std::sqrt(sums[kOfFactor]) * std::sqrt(sums[kOfInverse]) <= kModerate * n;
    }
  };

  // Copies the first rank's numbers to the hosts of all ranks. Waits for all work so far.
  Status Await(Numbers* numbers) {
    const int64_t count = NumberElements<T>(n_, nrhs_);
    const Bytes2D block = Block(at(space_.numbers), count, count, 1);
    JAXMG_RETURN_IF_ERROR(products_.FromFirst(block));
    double* const copy = host_->as<double>();
    JAXMG_RETURN_IF_ERROR(CopyToHost(device_, Block(copy, count, count, 1), block));
    for (int of = 0; of < kNumTallSums; ++of) {
      const double* sums = copy + of * kSquareSums;
      numbers->sums[of] = 0;
      for (int i = 0; i < kSquareSums; ++i) numbers->sums[of] += sums[i];
    }
    numbers->diagonal = reinterpret_cast<T*>(copy + kNumTallSums * kSquareSums);
    numbers->squares = numbers->diagonal + n_;
    numbers->changes = numbers->squares + nrhs_;
    return Status::Ok();
  }

  // --- Powers of two -----------------------------------------------------------------------------

  // Makes copies of all matrices, scaled to entries near 1.
  Status Scale() {
    const int64_t count = n_ + nrhs_;
    Real<T>* const mine = at(space_.largest);
    Real<T>* const all = mine + count;
    constexpr int64_t kWords = sizeof(Real<T>) / sizeof(int32_t);
    JAXMG_RETURN_IF_ERROR(
        device_.FillInt32(kMain, reinterpret_cast<int32_t*>(mine), count * kWords, 0));
    JAXMG_RETURN_IF_ERROR(kernels().LargestOfRows(kMain, n_, s_.block, p_.a, n_, mine));
    JAXMG_RETURN_IF_ERROR(kernels().LargestOfRows(kMain, n_, further(), p_.below, n_, mine));
    JAXMG_RETURN_IF_ERROR(kernels().LargestOfRows(kMain, nrhs_, s_.block, p_.b, nrhs_, mine + n_));
    JAXMG_RETURN_IF_ERROR(AllGather(comm_, device_, kMain, mine, all, count * sizeof(Real<T>)));
    auto* const copy =
        reinterpret_cast<Real<T>*>(host_->as<double>() + NumberElements<T>(n_, nrhs_));
    const int64_t of_all = count * comm_.size();
    JAXMG_RETURN_IF_ERROR(
        CopyToHost(device_, Block(copy, of_all, of_all, 1), Block(all, of_all, of_all, 1)));
    auto exponent = [&](int64_t begin, int64_t end) {
      Real<T> largest = 0;
      for (int rank = 0; rank < comm_.size(); ++rank) {
        for (int64_t i = begin; i < end; ++i) {
          const Real<T> value = copy[rank * count + i];
          largest = value <= largest ? largest : value;  // also keeps NaN
          if (std::isnan(largest)) return 0;
        }
      }
      return ExponentOf(largest);
    };
    const int power = exponent(0, n_);
    Real<T>* const factors = copy + of_all;
    auto* const powers = reinterpret_cast<int32_t*>(factors + nrhs_);
    for (int64_t r = 0; r < nrhs_; ++r) {
      powers[r] = exponent(n_ + r, n_ + r + 1);
      factors[r] = std::ldexp(Real<T>(1), -powers[r]);
    }
    JAXMG_RETURN_IF_ERROR(device_.FillInt32(kMain, p_.power, 1, power));
    JAXMG_RETURN_IF_ERROR(
        device_.Copy(kMain, Block(p_.powers, nrhs_, nrhs_, 1), Block(powers, nrhs_, nrhs_, 1)));
    JAXMG_RETURN_IF_ERROR(device_.Copy(kMain, Block(at(space_.factors_b), nrhs_, nrhs_, 1),
                                       Block(factors, nrhs_, nrhs_, 1)));
    JAXMG_RETURN_IF_ERROR(CopyScaled(s_.block, p_.a, power, at(space_.scaled_a)));
    JAXMG_RETURN_IF_ERROR(CopyScaled(s_.further, p_.below, power, at(space_.scaled_below)));
    T* const b = at(space_.scaled_b);
    JAXMG_RETURN_IF_ERROR(CopyIfApart(device_, p_.b, b, nrhs_ * s_.block));
    JAXMG_RETURN_IF_ERROR(kernels().ScaleRowsAndColumns(kMain, /*divide=*/false, nrhs_, s_.block,
                                                        at(space_.factors_b), nullptr, b, nrhs_));
    from_ = {at(space_.scaled_a), b, at(space_.scaled_below)};
    has_factor_ = false;
    return Status::Ok();
  }

  Status CopyScaled(int64_t columns, const T* source, int power, T* target) {
    JAXMG_RETURN_IF_ERROR(CopyIfApart(device_, source, target, n_ * columns));
    return kernels().TimesPowerOfTwo(kMain, n_, columns, -power, target, n_);
  }

  // --- Factors of Gram matrices ------------------------------------------------------------------

  // Computes the lower triangle of the Gram matrix of x and of the further rows `below`, on the
  // ranks that work.
  Status MakeGram(const T* x, const T* below) {
    JAXMG_RETURN_IF_ERROR(products_.Gram(n_, s_.block, x, 0, gram()));
    if (further() > 0) JAXMG_RETURN_IF_ERROR(products_.Gram(n_, further(), below, 1, gram()));
    return products_.SumOverRanks(n_, n_, gram(), /*lower=*/true, at(space_.received));
  }

  // Overwrites the Gram matrix with L, and computes the inverse of L. Both are NaN if the matrix
  // isn't positive definite.
  Status FactorGram() {
    JAXMG_RETURN_IF_ERROR(device_.status().InitInfo(kMain, at(space_.info)));
    JAXMG_RETURN_IF_ERROR(blas().Potrf(kMain, n_, gram(), n_, 0, at(space_.info)));
    JAXMG_RETURN_IF_ERROR(kernels().ClearTriangle(kMain, Uplo::kUpper, n_, n_, gram(), n_));
    return blas().Trtri(kMain, n_, gram(), n_, inverse(), n_);
  }

  // Scales the rows and columns of A's Gram matrix so that its diagonal is one, adds shift I, and
  // factors the sum. The scaled matrix is the Gram matrix of A with columns of length 1. Unscale
  // multiplies the factor by the lengths, which gives the factor of the Gram matrix itself.
  Status FactorScaled(const T* x, const T* below, Real<T> shift) {
    JAXMG_RETURN_IF_ERROR(MakeGram(x, below));
    if (!products_.works()) return Status::Ok();
    Real<T>* const lengths = at(space_.lengths);
    JAXMG_RETURN_IF_ERROR(
        device_.CopyWithin(kMain, Block(Diagonal(), 1, 1, n_), Block(gram(), n_ + 1, 1, n_)));
    JAXMG_RETURN_IF_ERROR(kernels().RootsOfDiagonal(kMain, n_, gram(), n_, lengths));
    JAXMG_RETURN_IF_ERROR(kernels().ScaleRowsAndColumns(kMain, /*divide=*/true, n_, n_, lengths,
                                                        lengths, gram(), n_));
    if (shift > 0) {
      JAXMG_RETURN_IF_ERROR(kernels().AddToDiagonal(kMain, n_, n_, 0, shift, gram(), n_));
    }
    JAXMG_RETURN_IF_ERROR(FactorGram());
    JAXMG_RETURN_IF_ERROR(
        kernels().SquareSums(kMain, /*apart=*/false, n_, n_, gram(), n_, Sums(kOfFactor)));
    return kernels().SquareSums(kMain, /*apart=*/false, n_, n_, inverse(), n_, Sums(kOfInverse));
  }

  Status Unscale() {
    if (!products_.works()) return Status::Ok();
    Real<T>* const lengths = at(space_.lengths);
    JAXMG_RETURN_IF_ERROR(kernels().ScaleRowsAndColumns(kMain, /*divide=*/false, n_, n_, lengths,
                                                        nullptr, gram(), n_));
    return kernels().ScaleRowsAndColumns(kMain, /*divide=*/true, n_, n_, nullptr, lengths,
                                         inverse(), n_);
  }

  // y := L^-1 x for `columns` columns, by the inverse or by substitution. Uses substitution if y is
  // x.
  Status Divide(bool by_inverse, int64_t columns, const T* x, T* y) {
    if (by_inverse && x != y) return products_.TimesLower(n_, columns, inverse(), x, y);
    JAXMG_RETURN_IF_ERROR(CopyIfApart(device_, x, y, n_ * columns));
    return blas().Trsm(kMain, Side::kLeft, Op::kNone, n_, columns, gram(), n_, y, n_);
  }

  // Accumulates R^T of all passes so far, on the ranks that work.
  Status Accumulate(bool first) {
    if (!products_.works()) return Status::Ok();
    if (first) return CopyIfApart(device_, gram(), p_.r, n_ * n_);
    return blas().Trmm(kMain, Side::kRight, Op::kNone, n_, n_, gram(), n_, p_.r, n_);
  }

  // --- Right-hand sides --------------------------------------------------------------------------

  // right := the sum over ranks of B X^H, minus Y times the adjoint of the further rows if y isn't
  // null. With `squares`, also sums up the last column of `right`, the squares of the right-hand
  // sides.
  Status RightHandSides(const T* b, const T* x, const T* y, bool squares) {
    T* const right = at(space_.right);
    JAXMG_RETURN_IF_ERROR(blas().Gemm(kMain, Op::kNone, Op::kConjTrans, nrhs_, n_, s_.block, 1, b,
                                      nrhs_, x, n_, 0, right, nrhs_));
    if (y != nullptr && further() > 0) {
      JAXMG_RETURN_IF_ERROR(blas().Gemm(kMain, Op::kNone, Op::kConjTrans, nrhs_, n_, further(), -1,
                                        y, nrhs_, from_.below, n_, 1, right, nrhs_));
    }
    return products_.SumOverRanks(nrhs_, n_ + (squares ? 1 : 0), right, /*lower=*/false,
                                  at(space_.received));
  }

  // x := right L^-H L^-1, by products with the inverse of L.
  Status SolveNormal(T* x) {
    T* const right = at(space_.right);
    T* const half = p_.c;
    JAXMG_RETURN_IF_ERROR(blas().Gemm(kMain, Op::kNone, Op::kConjTrans, nrhs_, n_, n_, 1, right,
                                      nrhs_, inverse(), n_, 0, half, nrhs_));
    return blas().Gemm(kMain, Op::kNone, Op::kNone, nrhs_, n_, n_, 1, half, nrhs_, inverse(), n_, 0,
                       x, nrhs_);
  }

  Status TimesFactor(const T* x, T* product) {
    return blas().Gemm(kMain, Op::kNone, Op::kNone, nrhs_, n_, n_, 1, x, nrhs_, gram(), n_, 0,
                       product, nrhs_);
  }

  // --- Algorithms --------------------------------------------------------------------------------

  // Solves by the seminormal equations. Sets *in_range to whether no square or product overflows or
  // underflows, and *good to whether r and c are accurate.
  Status Seminormal(bool* in_range, bool* good) {
    *good = false;
    JAXMG_RETURN_IF_ERROR(FactorScaled(from_.a, from_.below, 0));
    T* const squares = at(space_.right) + nrhs_ * n_;
    JAXMG_RETURN_IF_ERROR(
        products_.RowSquares(nrhs_, s_.block, from_.b, at(space_.squares), squares));
    JAXMG_RETURN_IF_ERROR(RightHandSides(from_.b, from_.a, nullptr, /*squares=*/true));
    if (products_.works()) {
      JAXMG_RETURN_IF_ERROR(CopyIfApart(device_, squares, Squares(), nrhs_));
    }
    Numbers numbers;
    JAXMG_RETURN_IF_ERROR(Await(&numbers));
    *in_range = InRange(numbers.diagonal, n_) && InRange(numbers.squares, nrhs_);
    has_factor_ = true;
    factor_numbers_ = numbers;
    if (!*in_range && from_.a == p_.a) return Status::Ok();
    if (!numbers.IsModerate(n_)) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(Unscale());
    JAXMG_RETURN_IF_ERROR(Correct());
    JAXMG_RETURN_IF_ERROR(Await(&numbers));
    const double unit = std::numeric_limits<Real<T>>::epsilon();
    *good = true;
    for (int64_t r = 0; r < nrhs_; ++r) {
      const double changed = std::real(numbers.changes[r]);
      *good = *good && changed <= std::real(numbers.squares[r]) * unit;
    }
    has_factor_ = false;  // the factor now includes the lengths
    if (!*good) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(Accumulate(/*first=*/true));
    JAXMG_RETURN_IF_ERROR(products_.Spread(n_, n_, p_.r));
    return products_.Spread(nrhs_, n_, p_.c);
  }

  // Solves the seminormal equations and corrects x once. Sets c, and Changes() to the squares of R
  // times the correction.
  Status Correct() {
    if (nrhs_ == 0) return Status::Ok();
    T *const x = at(space_.x), *const change = at(space_.change), *const rest = at(space_.work);
    if (products_.works()) JAXMG_RETURN_IF_ERROR(SolveNormal(x));
    JAXMG_RETURN_IF_ERROR(products_.Spread(nrhs_, n_, x));
    JAXMG_RETURN_IF_ERROR(CopyIfApart(device_, from_.b, rest, nrhs_ * s_.block));
    JAXMG_RETURN_IF_ERROR(blas().Gemm(kMain, Op::kNone, Op::kNone, nrhs_, s_.block, n_, -1, x,
                                      nrhs_, from_.a, n_, 1, rest, nrhs_));
    JAXMG_RETURN_IF_ERROR(blas().Gemm(kMain, Op::kNone, Op::kNone, nrhs_, further(), n_, 1, x,
                                      nrhs_, from_.below, n_, 0, at(space_.y), nrhs_));
    JAXMG_RETURN_IF_ERROR(RightHandSides(rest, from_.a, at(space_.y), /*squares=*/false));
    if (!products_.works()) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(SolveNormal(change));
    JAXMG_RETURN_IF_ERROR(TimesFactor(change, p_.c));
    JAXMG_RETURN_IF_ERROR(products_.RowSquares(nrhs_, n_, p_.c, at(space_.squares), Changes()));
    JAXMG_RETURN_IF_ERROR(blas().Add(kMain, nrhs_, n_, change, nrhs_, x, nrhs_));
    return TimesFactor(x, p_.c);
  }

  Status ByQr() {
    bool good = false, finite = true;
    for (const bool shifted : {false, true}) {
      if (!good && finite) JAXMG_RETURN_IF_ERROR(CholeskyQr2(shifted, &finite, &good));
    }
    return good ? Status::Ok() : ByHouseholder();
  }

  Status CholeskyQr2(bool shifted, bool* finite, bool* good) {
    *good = false;
    const T *x = from_.a, *below = from_.below;
    const Real<T> shift = 10 * n_ * std::numeric_limits<Real<T>>::epsilon();
    const int passes = shifted ? 2 : 1;
    for (int pass = 0; pass < passes; ++pass) {
      Numbers numbers = factor_numbers_;
      if (!has_factor_) {
        JAXMG_RETURN_IF_ERROR(FactorScaled(x, below, pass + 1 < passes ? shift : 0));
        JAXMG_RETURN_IF_ERROR(Await(&numbers));
      }
      has_factor_ = false;
      for (int64_t i = 0; i < n_; ++i) {
        *finite = *finite && std::isfinite(std::real(numbers.diagonal[i]));
      }
      if (!*finite || !std::isfinite(numbers.sums[kOfFactor])) return Status::Ok();
      const bool by_inverse = numbers.IsModerate(n_);
      // If Q is requested, alternates between Q's memory and `work` so that the last product reads
      // `work` and writes Q.
      T* const to = p_.q != nullptr && pass + 2 == passes ? p_.q : at(space_.work);
      JAXMG_RETURN_IF_ERROR(Unscale());
      JAXMG_RETURN_IF_ERROR(products_.Spread(n_, n_, by_inverse && x != to ? inverse() : gram()));
      JAXMG_RETURN_IF_ERROR(Divide(by_inverse, s_.block, x, to));
      if (further() > 0) {
        T* const rows = at(space_.below);
        JAXMG_RETURN_IF_ERROR(CopyIfApart(device_, below, rows, n_ * further()));
        JAXMG_RETURN_IF_ERROR(Divide(false, further(), rows, rows));
        below = rows;
      }
      JAXMG_RETURN_IF_ERROR(Accumulate(pass == 0));
      x = to;
    }
    return FinishQr(x, below, good);
  }

  // Runs the last pass, for an x that is orthonormal or nearly so. The products are enqueued before
  // the host knows whether it is.
  Status FinishQr(const T* x, const T* below, bool* good) {
    JAXMG_RETURN_IF_ERROR(MakeGram(x, below));
    if (products_.works()) {
      JAXMG_RETURN_IF_ERROR(blas().MirrorLower(kMain, n_, gram(), n_));
      JAXMG_RETURN_IF_ERROR(
          kernels().SquareSums(kMain, /*apart=*/true, n_, n_, gram(), n_, Sums(kOfIdentity)));
      JAXMG_RETURN_IF_ERROR(FactorGram());
    }
    JAXMG_RETURN_IF_ERROR(Accumulate(/*first=*/false));
    if (p_.q != nullptr) {
      JAXMG_RETURN_IF_ERROR(products_.Spread(n_, n_, inverse()));
      JAXMG_RETURN_IF_ERROR(products_.TimesLower(n_, s_.block, inverse(), x, p_.q));
    }
    if (nrhs_ > 0) {
      JAXMG_RETURN_IF_ERROR(RightHandSides(from_.b, x, nullptr, /*squares=*/false));
      if (products_.works()) {
        JAXMG_RETURN_IF_ERROR(blas().Gemm(kMain, Op::kNone, Op::kConjTrans, nrhs_, n_, n_, 1,
                                          at(space_.right), nrhs_, inverse(), n_, 0, p_.c, nrhs_));
      }
    }
    Numbers numbers;
    JAXMG_RETURN_IF_ERROR(Await(&numbers));
    *good = numbers.sums[kOfIdentity] < kFarthest;
    if (!*good) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(products_.Spread(n_, n_, p_.r));
    return products_.Spread(nrhs_, n_, p_.c);
  }

  Status ByHouseholder() {
    bool finite = true;
    JAXMG_RETURN_IF_ERROR(CheckFinite(&finite));
    if (!finite) return Poison();
    return Tsqr<T>(
        context_,
        {n_, s_.block, from_.a, s_.further, from_.below, nrhs_, from_.b, p_.q, p_.r, p_.c},
        {at(space_.work), at(space_.stack), at(space_.triangle), at(space_.reflectors),
         at(space_.panels), at(space_.received), at(space_.x), at(space_.lengths)});
  }

  Status CheckFinite(bool* finite) {
    int32_t* const info = at(space_.info);
    JAXMG_RETURN_IF_ERROR(device_.FillInt32(kMain, info, 1, kNoInfo));
    for (const auto& [rows, count] :
         {std::pair{from_.a, n_ * s_.block}, std::pair{from_.below, n_ * further()}}) {
      if (count == 0) continue;
      JAXMG_RETURN_IF_ERROR(device_.eigen<T>().panel->CheckFinite(kMain, count, 1, rows, count,
                                                                  kNotFinite - 1, info));
    }
    auto* const copy = host_->as<int32_t>();
    JAXMG_RETURN_IF_ERROR(CopyToHost(device_, Block(copy, 1, 1, 1), Block(info, 1, 1, 1)));
    std::vector<int64_t> all;
    JAXMG_RETURN_IF_ERROR(comm_.Share(*copy, &all));
    *finite = std::all_of(all.begin(), all.end(), [](int64_t one) { return one == kNoInfo; });
    return Status::Ok();
  }

  Status Poison() {
    int32_t* const info = at(space_.info);
    JAXMG_RETURN_IF_ERROR(device_.FillInt32(kMain, info, 1, kNotFinite));
    StatusKernels& status = device_.status();
    if (p_.q != nullptr) {
      JAXMG_RETURN_IF_ERROR(status.PoisonIf(kMain, info, n_, s_.block, p_.q, n_));
    }
    JAXMG_RETURN_IF_ERROR(status.PoisonIf(kMain, info, n_, n_, p_.r, n_));
    JAXMG_RETURN_IF_ERROR(kernels().ClearTriangle(kMain, Uplo::kUpper, n_, n_, p_.r, n_));
    return status.PoisonIf(kMain, info, nrhs_, n_, p_.c, nrhs_);
  }

  const RankContext& context_;
  Device& device_;
  Communicator& comm_;
  TallProducts<T> products_;
  const TallQrProblem<T>& p_;
  const TallSizes& s_;
  const int64_t n_, nrhs_;
  const TallQrSpace<T> space_;
  Workspace memory_;
  std::unique_ptr<Buffer> host_;
  From from_;
  // Whether the factor of A's scaled Gram matrix and its inverse are available. Their numbers are
  // in factor_numbers_.
  bool has_factor_ = false;
  Numbers factor_numbers_ = {};
};

}  // namespace

template <typename T>
Status TallQrRoutine(const RankContext& context, const TallQrProblem<T>& problem) {
  if (IsWholeQr(problem.sizes, context.comm.size(), context.device.tuning())) {
    return WholeQrRoutine<T>(context, problem);
  }
  TallQr<T> program(context, problem);
  auto work = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(program.Work());
    return WaitAllSent(context.comm, kMain);
  };
  return RunOnAllRanks(context.comm, [&] { return program.Prepare(); }, work);
}

#define JAXMG_INSTANTIATE(T) \
  template Status TallQrRoutine(const RankContext&, const TallQrProblem<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
