#include "xla_ffi/engine/eigen/sygvd.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/cholesky/potrf.h"
#include "xla_ffi/engine/cholesky/solve_rows.h"
#include "xla_ffi/engine/core/exchange.h"
#include "xla_ffi/engine/core/host_copy.h"
#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/core/symmetrize.h"
#include "xla_ffi/engine/eigen/eigenproblem.h"

namespace jaxmg {
namespace {

// Returns the number of elements of a rank's rows.
int64_t RowsWorkspace(const Sizes& sizes) { return sizes.n * sizes.block; }

template <typename T>
class Generalized {
 public:
  Generalized(const RankContext& context, const Operand<T>& a, const Operand<T>& b,
              const Subset& subset, Real<T>* w, T* v)
      : context_(context),
        problem_(context, a, subset, w, v, RowsWorkspace(a.sizes())),
        a_(problem_.frame()),
        b_space_(b.sizes(), RanksOf(context)),
        b_(context, b, b_space_),
        rows_({a.n, a.block}),
        subset_(subset),
        v_(v) {}

  Status Prepare() {
    JAXMG_RETURN_IF_ERROR(problem_.Prepare());
    JAXMG_RETURN_IF_ERROR(b_.Prepare());
    return ReservePotrf(context_.device, b_.matrix());
  }

  Status Run() {
    const int64_t n = rows_.count, columns = v_ != nullptr ? subset_.count() : 0;
    const Tuning tuning = context_.device.tuning();
    AnnounceWork(context_.device,
                 FactorWork(n) + 2 * SolveWork(n, n) + SolveWork(n, columns) +
                     EigenWork(n, tuning.eigen.band_width, context_.comm.size(), columns));
    int32_t status = 0;
    JAXMG_RETURN_IF_ERROR(Factor(&status));
    if (status == 0) {
      JAXMG_RETURN_IF_ERROR(Reduce());
      JAXMG_RETURN_IF_ERROR(problem_.Solve());
      JAXMG_RETURN_IF_ERROR(Return());
    } else {
      // A negative status is not b's info.
      const int32_t order = status > 0 ? static_cast<int32_t>(rows_.count) : 0;
      JAXMG_RETURN_IF_ERROR(
          context_.device.FillInt32(Stream::kMain, a_.outcome().status(), 1, order + status));
    }
    JAXMG_RETURN_IF_ERROR(problem_.PoisonIfFailed());
    return WaitAllSent(context_.comm, Stream::kMain);
  }

 private:
  // Factors N to L. The host waits for the status, which is equal on all ranks, because continuing
  // after a failure would take as long as solving the problem.
  Status Factor(int32_t* status) {
    const Outcome<T>& outcome = b_.outcome();
    JAXMG_RETURN_IF_ERROR(b_.Take(Region::kLower));
    JAXMG_RETURN_IF_ERROR(Potrf(context_, Precision::kHighest, b_.matrix(), RightHandSides<T>{},
                                b_.panels(), outcome.info(), static_cast<Real<T>*>(nullptr)));
    JAXMG_RETURN_IF_ERROR(outcome.Set());
    auto* found = static_cast<int32_t*>(b_.host());
    JAXMG_RETURN_IF_ERROR(
        CopyToHost(context_.device, Block(found, 1, 1, 1), Block(outcome.status(), 1, 1, 1)));
    *status = *found;
    return Status::Ok();
  }

  // Overwrites M with C. Both solves work on rows. The rows of a Hermitian matrix are the conjugate
  // transposes of its columns. M L^-H is not Hermitian, so the second solve follows an exchange
  // between rows and columns.
  Status Reduce() {
    const Range range(context_.device, Stream::kMain, "reduce", 0);
    JAXMG_RETURN_IF_ERROR(Symmetrize(context_, a_.matrix(), a_.panels()));
    JAXMG_RETURN_IF_ERROR(RowsOfMatrix());
    JAXMG_RETURN_IF_ERROR(Solve(Op::kConjTrans, width()));
    JAXMG_RETURN_IF_ERROR(ColumnsToRows(context_, rows_, rows_, rows(), a_.matrix().data));
    JAXMG_RETURN_IF_ERROR(RowsOfMatrix());
    JAXMG_RETURN_IF_ERROR(Solve(Op::kConjTrans, width()));
    return context_.device.blas<T>().ConjTranspose(Stream::kMain, width(), rows_.count, rows(),
                                                   ld(), a_.matrix().data, rows_.count);
  }

  // Transforms Y^H in v to U^H.
  Status Return() {
    if (v_ == nullptr) return Status::Ok();
    const Distribution columns = DistributionOf(subset_, context_.comm.size());
    JAXMG_RETURN_IF_ERROR(RowsToColumns(context_, rows_, columns, v_, rows()));
    JAXMG_RETURN_IF_ERROR(Solve(Op::kNone, columns.width(context_.comm.rank())));
    return ColumnsToRows(context_, rows_, columns, rows(), v_);
  }

  // Copies this rank's columns of the matrix, conjugated and transposed, to rows().
  Status RowsOfMatrix() {
    return context_.device.blas<T>().ConjTranspose(Stream::kMain, rows_.count, width(),
                                                   a_.matrix().data, rows_.count, rows(), ld());
  }

  Status Solve(Op op, int64_t count) {
    return SolveRows(context_, b_.matrix(), op, count, rows(), b_.panels());
  }

  // Memory for as many rows of a matrix as this rank has columns. The eigensolver uses it later.
  T* rows() const { return problem_.workspace(); }
  int64_t width() const { return rows_.width(context_.comm.rank()); }
  int64_t ld() const { return std::max<int64_t>(width(), 1); }

  const RankContext& context_;
  Eigenproblem<T> problem_;
  const Frame<T>& a_;
  const SygstSpace<T> b_space_;
  Frame<T> b_;
  const Distribution rows_;
  const Subset subset_;
  T* const v_;
};

}  // namespace

template <typename T>
EigenproblemSpace<T> SygvdSpace(const Sizes& sizes, bool vectors, const Subset& subset,
                                const Ranks& ranks) {
  return EigenproblemSpace<T>(sizes, vectors, subset, ranks, RowsWorkspace(sizes));
}

template <typename T>
SygstSpace<T>::SygstSpace(const Sizes& sizes, const Ranks& ranks)
    : RoutineSpace<T>(sizes, ranks, TilesOf(sizes, ranks.size, ranks.tuning)) {
  const Precision precision = ChosenPrecision<T>(sizes.precision, sizes.n, ranks.tuning);
  this->ReservePanels(std::max(PotrfWorkspace<T>(this->tiles, sizes.n, precision, ranks.tuning),
                               SolveRowsWorkspace(this->tiles)));
  this->ReserveOverflow();
  this->host_bytes = sizeof(int32_t);
}

template <typename T>
Status SygvdRoutine(const RankContext& context, const Operand<T>& a, const Operand<T>& b,
                    const Subset& subset, Real<T>* w, T* v) {
  Generalized<T> problem(context, a, b, subset, w, v);
  return RunOnAllRanks(
      context.comm, [&] { return problem.Prepare(); }, [&] { return problem.Run(); });
}

#define JAXMG_INSTANTIATE(T)                                                                 \
  template EigenproblemSpace<T> SygvdSpace(const Sizes&, bool, const Subset&, const Ranks&); \
  template struct SygstSpace<T>;                                                             \
  template Status SygvdRoutine(const RankContext&, const Operand<T>&, const Operand<T>&,     \
                               const Subset&, Real<T>*, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
