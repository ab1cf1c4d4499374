#include "xla_ffi/engine/svd/qdwh.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <numeric>
#include <utility>

#include "xla_ffi/engine/core/host_copy.h"
#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/products/products.h"

namespace jaxmg {
namespace {

// A step uses QR if its c exceeds this value (Nakatsukasa and Higham, section 3) and n / 8: the
// inverse is accurate to c units of rounding, and other results to n units.
constexpr double kCholesky = 100;
constexpr int kMostSteps = 24;
// The l from which on steps use the binomial series.
constexpr double kNear = 0.99;
constexpr int kInverseIterations = 8;
// The factor by which the power method's norm of a Hermitian matrix is increased.
constexpr double kMargin = 1.25;
// The smallest eigenvalue of X^H X is known if it exceeds its rounding by this factor.
constexpr double kDistinct = 3;
// The number of columns of a matrix to multiply at a time.
constexpr int64_t kColumns = 512;

// Returns an l slightly larger than the l whose weights have this c. Uses b = 4^(1/3) l^(-4/3),
// which holds for small l.
double LowOf(double c) {
  const double root = std::sqrt(c + 1) - 1;
  return std::pow(std::cbrt(4.0) / (root * root), 0.75);
}

// Returns the smaller of x and y; NaN if x is NaN.
double Least(double x, double y) { return std::isnan(x) || x < y ? x : y; }

// C := alpha T^H B + beta C for n x n matrices, T lower triangular with zeros above its diagonal.
// Takes half of the operations of a product.
template <typename T>
Status AdjointTriangleTimes(Blas<T>& blas, int64_t n, double alpha, const T* triangle, const T* b,
                            double beta, T* c) {
  for (int64_t begin = 0; begin < n; begin += kColumns) {
    JAXMG_RETURN_IF_ERROR(blas.Gemm(Stream::kMain, Op::kConjTrans, Op::kNone,
                                    std::min(kColumns, n - begin), n, n - begin,
                                    static_cast<Real<T>>(alpha), triangle + begin * (n + 1), n,
                                    b + begin, n, static_cast<Real<T>>(beta), c + begin, n));
  }
  return Status::Ok();
}

}  // namespace

Weights WeightsOf(double low) {
  const double square = low * low;
  const double d = std::cbrt(4 * (1 - square) / (square * square)), root = std::sqrt(1 + d);
  const double inner = 8 - 4 * d + 8 * (2 - square) / (square * root);
  const double a = root + std::sqrt(std::max(inner, 0.0)) / 2;
  const double b = (a - 1) * (a - 1) / 4;
  return {a, b, a + b - 1};
}

template <typename T>
QdwhSpace<T>::QdwhSpace(Pieces& pieces, const Sizes& sizes, const Ranks& ranks, bool of_gram)
    : gram(pieces.Reserve<T>(of_gram ? sizes.n * sizes.block : 0)), factor(pieces, sizes, ranks) {
  const int64_t n = sizes.n, block = sizes.block;
  for (int i = 0; i < 3; ++i) {
    matrices[i] = pieces.Reserve<T>(i < 2 || ranks.size > 1 ? n * block : 0);
  }
  const RowBlocks<T> shape = {n, n, block, nullptr};
  stage = pieces.Reserve<T>(
      std::max({RowsTimesRowsSpace(ranks, shape), RowsTimesAdjointSpace(ranks, shape),
                GramSpace(ranks, shape, shape), ranks.size > 1 ? 0 : n * std::min(n, kColumns)}));
  vectors = pieces.Reserve<T>(block * ranks.size + block);
  sums = pieces.Reserve<double>(kSquareSums * (2 + ranks.size));
  info = pieces.Reserve<int32_t>(1);
  host_bytes = static_cast<int64_t>(sizeof(double)) * kSquareSums * (1 + ranks.size);
}

template <typename T>
Qdwh<T>::Qdwh(const RankContext& context, const Sizes& sizes, const QdwhSpace<T>& space,
              const Workspace& workspace, T* gram, void* host)
    : context_(context),
      space_(space),
      workspace_(workspace),
      n_(sizes.n),
      block_(sizes.block),
      begin_(std::min(context.comm.rank() * sizes.block, sizes.n)),
      width_(std::min(begin_ + sizes.block, sizes.n) - begin_),
      factor_(context, space.factor, workspace, workspace.Get(space.info)),
      gram_(gram),
      host_(static_cast<double*>(host)) {
  for (int i = 0; i < 3; ++i) spare_[i] = workspace.Get(space.matrices[i]);
}

template <typename T>
Status Qdwh<T>::Prepare() {
  JAXMG_RETURN_IF_ERROR(factor_.Prepare(gram_));
  return device().FillInt32(Stream::kMain, workspace_.Get(space_.info), 1, kNoInfo);
}

// --- Numbers -------------------------------------------------------------------------------------

template <typename T>
double Qdwh<T>::unit() const {
  return std::numeric_limits<Real<T>>::epsilon() / 2;
}

// Returns the rounding of X^H X, or of another product, in the 2-norm, for X of norm 1. n units
// bound it, and independent roundings stay below n^(1/2) units (N. J. Higham, T. Mary, SIAM J. Sci.
// Comput. 41, 2019).
template <typename T>
double Qdwh<T>::RoundingOfGram() const {
  return unit() * std::sqrt(static_cast<double>(n_));
}

// Returns the least l of a step. Its weights have a c of about 0.025 / RoundingOfGram(), so the
// smallest eigenvalue of I + c X^H X, which is at least 1, is 40 times the rounding of this matrix.
template <typename T>
double Qdwh<T>::LeastLow() const {
  return 2 / std::pow(4 * (0.01 / RoundingOfGram()), 0.75);
}

// --- Operations ----------------------------------------------------------------------------------

template <typename T>
Status Qdwh<T>::Combine(double alpha, const T* a, double beta, T* c) {
  return matrix().Combine(Stream::kMain, n_, width_, static_cast<Real<T>>(alpha), a, n_,
                          static_cast<Real<T>>(beta), c, n_);
}

template <typename T>
Status Qdwh<T>::AddToDiagonal(double value, T* a) {
  return matrix().AddToDiagonal(Stream::kMain, n_, width_, -begin_, static_cast<Real<T>>(value), a,
                                n_);
}

template <typename T>
Status Qdwh<T>::PlusIdentity(double factor, T* gram) {
  JAXMG_RETURN_IF_ERROR(Combine(0, gram, factor, gram));
  return AddToDiagonal(1, gram);
}

template <typename T>
Status Qdwh<T>::GramOf(T* x, double alpha, double beta, T* gram) {
  return Gram<T>(context_, Terms(alpha, beta), Rows(x), Rows(gram), stage());
}

template <typename T>
Status Qdwh<T>::Normalize(T* v) {
  double* sums = workspace_.Get(space_.sums) + kSquareSums;
  JAXMG_RETURN_IF_ERROR(matrix().SquareSums(Stream::kMain, false, n_, 1, v, n_, sums));
  return matrix().DivideByRoot(Stream::kMain, n_, 1, sums, v, n_);
}

template <typename T>
Status Qdwh<T>::MakeNoise(T* v) {
  JAXMG_RETURN_IF_ERROR(blas().SetZero(Stream::kMain, n_, 1, v, n_));
  JAXMG_RETURN_IF_ERROR(matrix().AddNoise(Stream::kMain, n_, 1, 0, 0, 1, v, n_));
  return Normalize(v);
}

template <typename T>
Status Qdwh<T>::ReadNorms(const T* v, const T* of, double* vector, double* frobenius) {
  const int ranks = context_.comm.size();
  double *mine = workspace_.Get(space_.sums), *of_vector = mine + kSquareSums;
  double* all = of_vector + kSquareSums;
  JAXMG_RETURN_IF_ERROR(matrix().SquareSums(Stream::kMain, false, n_, width_, of, n_, mine));
  JAXMG_RETURN_IF_ERROR(
      AllGather(context_.comm, device(), Stream::kMain, mine, all, kSquareSums * sizeof(double)));
  if (v != nullptr) {
    JAXMG_RETURN_IF_ERROR(matrix().SquareSums(Stream::kMain, false, n_, 1, v, n_, of_vector));
  }
  const double* source = v == nullptr ? all : of_vector;
  const int64_t count = kSquareSums * (ranks + (v == nullptr ? 0 : 1));
  JAXMG_RETURN_IF_ERROR(
      CopyToHost(device(), Block(host_, count, count, 1), Block(source, count, count, 1)));
  const double* terms = host_;
  if (v != nullptr) {
    *vector = std::sqrt(std::accumulate(terms, terms + kSquareSums, 0.0));
    terms += kSquareSums;
  }
  *frobenius = std::sqrt(std::accumulate(terms, terms + ranks * kSquareSums, 0.0));
  return Status::Ok();
}

// Uses the power method. If many eigenvalues are just below the largest one, its result is too
// small by a factor of n^(1/2 / steps). The number of steps makes this factor at most kMargin; two
// more steps are taken. The Frobenius norm is a bound, too.
template <typename T>
Status Qdwh<T>::Norm(const T* hermitian, double* norm) {
  T *v = workspace_.Get(space_.vectors), *part = v + block_ * context_.comm.size();
  const double needed = std::log(static_cast<double>(n_)) / (2 * std::log(kMargin));
  const int steps = 2 + static_cast<int>(std::ceil(needed));
  JAXMG_RETURN_IF_ERROR(MakeNoise(v));
  for (int step = 0; step < steps; ++step) {
    if (step > 0) JAXMG_RETURN_IF_ERROR(Normalize(v));
    JAXMG_RETURN_IF_ERROR(blas().Gemm(Stream::kMain, Op::kConjTrans, Op::kNone, width_, 1, n_, 1,
                                      hermitian, n_, v, n_, 0, part, std::max<int64_t>(width_, 1)));
    JAXMG_RETURN_IF_ERROR(
        AllGather(context_.comm, device(), Stream::kMain, part, v, block_ * sizeof(T)));
  }
  double found = 0, frobenius = 0;
  JAXMG_RETURN_IF_ERROR(ReadNorms(v, hermitian, &found, &frobenius));
  *norm = Least(kMargin * found, frobenius);
  return Status::Ok();
}

// --- The iteration -------------------------------------------------------------------------------

template <typename T>
Status Qdwh<T>::Run(T** x, bool* finite) {
  x_ = *x;
  State state;
  double bound = 0;
  AnnounceWork(device(), PolarWork(n_));
  JAXMG_RETURN_IF_ERROR(GramOf(x_, 1, 0, gram_));
  JAXMG_RETURN_IF_ERROR(Norm(gram_, &bound));
  state.finite = std::isfinite(bound);
  if (state.finite && bound > 0) {
    JAXMG_RETURN_IF_ERROR(Combine(0, gram_, 1 / bound, gram_));
    JAXMG_RETURN_IF_ERROR(Combine(0, x_, 1 / std::sqrt(bound), x_));
  }
  for (int steps = 0; steps < kMostSteps && state.apart && state.finite; ++steps) {
    if (!state.known) JAXMG_RETURN_IF_ERROR(Estimate(state));
    if (!state.finite) break;
    if (!state.known && steps > 0) {
      const double size = 4 * unit() / std::sqrt(static_cast<double>(n_));
      JAXMG_RETURN_IF_ERROR(matrix().AddNoise(Stream::kMain, n_, width_, 0, begin_,
                                              static_cast<Real<T>>(size), x_, n_));
    }
    JAXMG_RETURN_IF_ERROR(Step(state));
    if (state.apart && state.finite) {
      JAXMG_RETURN_IF_ERROR(GramOf(x_, 1, 0, gram_));
    }
  }
  *x = x_;
  *finite = state.finite;
  return Status::Ok();
}

template <typename T>
Status Qdwh<T>::Step(State& state) {
  if (state.low >= kNear) return BySeries(state);
  const double low = state.low, least = LeastLow();
  // A step by the inverse for a slightly larger l costs less than a step by QR.
  const double most = std::max(kCholesky, static_cast<double>(n_) / 8);
  const double invertible = std::max(LowOf(most), least);
  const Weights weights = WeightsOf(std::max(low, low >= invertible / 3 ? invertible : least));
  const double square = low * low;
  state.low = std::min(low * (weights.a + weights.b * square) / (1 + weights.c * square), 1.0);
  return weights.c > most ? ByQr(weights) : ByInverse(weights);
}

// Estimates l for X from its Gram matrix in gram_. On entry state.low is the l that the previous
// step leads to, which holds if the step's own l was small enough, or 0.
template <typename T>
Status Qdwh<T>::Estimate(State& state) {
  const double rounding = 8 * RoundingOfGram(), least = LeastLow();
  T *v = workspace_.Get(space_.vectors), *shifted = spare_[0];
  JAXMG_RETURN_IF_ERROR(Combine(1, gram_, 0, shifted));
  JAXMG_RETURN_IF_ERROR(AddToDiagonal(rounding, shifted));
  JAXMG_RETURN_IF_ERROR(factor_.Factor(shifted, /*for_vectors=*/true));
  JAXMG_RETURN_IF_ERROR(MakeNoise(v));
  for (int i = 0; i < kInverseIterations; ++i) {
    if (i > 0) JAXMG_RETURN_IF_ERROR(Normalize(v));
    JAXMG_RETURN_IF_ERROR(factor_.SolveVector(v));
  }
  double growth = 0, frobenius = 0;
  JAXMG_RETURN_IF_ERROR(ReadNorms(v, gram_, &growth, &frobenius));
  state.finite = std::isfinite(frobenius);
  const double smallest = 1 / growth - rounding;
  state.known = smallest > kDistinct * rounding;
  if (!state.known) {
    // Most hidden values are not far below rounding. Smaller values take one more step with this l.
    state.low = std::max(least, std::sqrt(kDistinct * rounding) / 100);
    return Status::Ok();
  }
  // The estimate is an upper bound.
  const double found = std::sqrt(smallest);
  if (!(state.low > 0 && found >= 0.9 * state.low)) state.low = found / 2;
  return Status::Ok();
}

// X := b / c X + (a - b / c) X (I + c X^H X)^-1
template <typename T>
Status Qdwh<T>::ByInverse(const Weights& weights) {
  const double kept = weights.b / weights.c;
  JAXMG_RETURN_IF_ERROR(PlusIdentity(weights.c, gram_));
  JAXMG_RETURN_IF_ERROR(factor_.Factor(gram_));
  JAXMG_RETURN_IF_ERROR(Combine(1, x_, 0, spare_[0]));
  JAXMG_RETURN_IF_ERROR(factor_.Solve(width_, spare_[0], spare_[1]));
  return Combine(weights.a - kept, spare_[0], kept, x_);
}

// X := b / c X + (a - b / c) / sqrt(c) Q1 Q2^H, where [sqrt(c) X; I] = [Q1; Q2] R.
//
// R comes from a Cholesky factorization. [Q1; Q2] = [sqrt(c) X; I] R^-1 is orthogonal only as far
// as its Gram matrix G is I. So Q1 G^-1 Q2^H, which is exact, replaces Q1 Q2^H. G^-1 is computed as
// I - (G - I) if the square of G - I, in the Frobenius norm, is no larger than rounding.
template <typename T>
Status Qdwh<T>::ByQr(const Weights& weights) {
  const double root = std::sqrt(weights.c), kept = weights.b / weights.c;
  JAXMG_RETURN_IF_ERROR(PlusIdentity(weights.c, gram_));
  JAXMG_RETURN_IF_ERROR(factor_.Factor(gram_));
  JAXMG_RETURN_IF_ERROR(FormQ(root));
  T *q2 = spare_[0], *q1 = spare_[1];
  JAXMG_RETURN_IF_ERROR(GramOf(q1, 1, 0, gram_));
  JAXMG_RETURN_IF_ERROR(GramOf(q2, 1, 1, gram_));
  JAXMG_RETURN_IF_ERROR(AddToDiagonal(-1, gram_));
  double apart = 0;
  JAXMG_RETURN_IF_ERROR(ReadNorms(nullptr, gram_, nullptr, &apart));
  JAXMG_RETURN_IF_ERROR(Correct(apart * apart <= RoundingOfGram()));
  const double factor = (weights.a - kept) / root;
  q1 = spare_[1];
  if (alone()) return AdjointTriangleTimes(blas(), n_, factor, q2, q1, kept, x_);
  return RowsTimesAdjoint<T>(context_, Terms(factor, kept), Rows(q1), Rows(q2), Rows(x_), stage());
}

template <typename T>
Status Qdwh<T>::FormQ(double root) {
  T *q2 = spare_[0], *q1 = spare_[1];
  JAXMG_RETURN_IF_ERROR(factor_.Invert(width_, q2, q1));
  return RowsTimesRows<T>(context_, Terms(root, 0), Rows(x_), Rows(q2), Rows(q1), stage(),
                          Factor::kUpper);
}

template <typename T>
Status Qdwh<T>::Correct(bool near) {
  T* q1 = spare_[1];
  if (!near) {
    JAXMG_RETURN_IF_ERROR(AddToDiagonal(1, gram_));
    JAXMG_RETURN_IF_ERROR(factor_.Factor(gram_));
    return factor_.Solve(width_, q1, spare_[2]);
  }
  if (!alone()) {
    JAXMG_RETURN_IF_ERROR(Combine(1, q1, 0, spare_[2]));
    std::swap(spare_[1], spare_[2]);
    return RowsTimesRows<T>(context_, Terms(-1, 1), Rows(q1), Rows(gram_), Rows(spare_[1]),
                            stage());
  }
  for (int64_t begin = 0; begin < width_; begin += kColumns) {
    const int64_t columns = std::min(kColumns, width_ - begin);
    T *part = q1 + begin * n_, *product = stage();
    JAXMG_RETURN_IF_ERROR(blas().Gemm(Stream::kMain, Op::kNone, Op::kNone, n_, columns, n_, 1,
                                      gram_, n_, part, n_, 0, product, n_));
    JAXMG_RETURN_IF_ERROR(
        matrix().Combine(Stream::kMain, n_, columns, -1, product, n_, 1, part, n_));
  }
  return Status::Ok();
}

template <typename T>
Status Qdwh<T>::BySeries(State& state) {
  double norm = 0;
  JAXMG_RETURN_IF_ERROR(AddToDiagonal(-1, gram_));
  JAXMG_RETURN_IF_ERROR(Norm(gram_, &norm));
  state.finite = std::isfinite(norm);
  if (!state.finite) return Status::Ok();
  // The errors of two, three and five terms. An error below that of the product itself is harmless.
  const double limit = RoundingOfGram();
  const bool third = 3.0 / 8 * norm * norm > limit;
  const bool fifth = 5.0 / 16 * std::pow(norm, 3) > limit;
  state.apart = 63.0 / 256 * std::pow(norm, 5) > limit;
  T *square = spare_[0], *other = spare_[1];
  if (third) JAXMG_RETURN_IF_ERROR(GramOf(gram_, 1, 0, square));
  if (fifth) {
    JAXMG_RETURN_IF_ERROR(Combine(1, square, 0, other));
    JAXMG_RETURN_IF_ERROR(Combine(-4.0 / 7, gram_, 1, other));
    JAXMG_RETURN_IF_ERROR(Combine(2.0 / 7, square, -0.5, gram_));
    JAXMG_RETURN_IF_ERROR(GramOf(other, 35.0 / 128, 1, gram_));
  } else if (third) {
    JAXMG_RETURN_IF_ERROR(Combine(3.0 / 8, square, -0.5, gram_));
  } else {
    JAXMG_RETURN_IF_ERROR(Combine(0, gram_, -0.5, gram_));
  }
  JAXMG_RETURN_IF_ERROR(AddToDiagonal(1, gram_));
  JAXMG_RETURN_IF_ERROR(
      RowsTimesRows<T>(context_, Terms(1, 0), Rows(x_), Rows(gram_), Rows(spare_[0]), stage()));
  std::swap(x_, spare_[0]);
  return Status::Ok();
}

#define JAXMG_INSTANTIATE(T)    \
  template struct QdwhSpace<T>; \
  template class Qdwh<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
