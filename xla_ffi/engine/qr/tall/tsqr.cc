#include "xla_ffi/engine/qr/tall/tsqr.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/qr/geqrf.h"
#include "xla_ffi/engine/qr/ormqr.h"

namespace jaxmg {
namespace {

constexpr Stream kMain = Stream::kMain;
// The tile width of a rank's own matrix, which has few columns.
constexpr int64_t kWidth = 2 * kPanelColumns;

Tiles SoloTiles(int64_t n) { return {n, n, 1, kWidth}; }

template <typename T>
class TsqrProgram {
 public:
  TsqrProgram(const RankContext& context, const TsqrProblem<T>& problem,
              const TsqrMemory<T>& memory)
      : device_(context.device),
        comm_(context.comm),
        products_(context),
        p_(problem),
        memory_(memory),
        count_(std::min(problem.rows, problem.n)),
        stack_rows_(StackRows(problem.n, problem.rows, problem.further, comm_.size())) {}

  Status Run() {
    T* turned = memory_.turned;
    JAXMG_RETURN_IF_ERROR(blas().ConjTranspose(kMain, p_.n, p_.rows, p_.m, p_.n, turned, p_.rows));
    JAXMG_RETURN_IF_ERROR(Factor(p_.rows, turned, memory_.triangle, count_));
    JAXMG_RETURN_IF_ERROR(Stack());
    if (products_.works()) JAXMG_RETURN_IF_ERROR(FactorStack());
    JAXMG_RETURN_IF_ERROR(products_.Spread(p_.n, p_.n, p_.l));
    JAXMG_RETURN_IF_ERROR(TakeMine());
    if (p_.q != nullptr) {
      JAXMG_RETURN_IF_ERROR(blas().Gemm(kMain, Op::kConjTrans, Op::kConjTrans, p_.n, p_.rows,
                                        count_, 1, mine_, ld_, turned, p_.rows, 0, p_.q, p_.n));
    }
    return MultiplyRightHandSides();
  }

 private:
  Blas<T>& blas() { return device_.blas<T>(); }
  MatrixKernels<T>& kernels() { return device_.matrix<T>(); }

  // Overwrites a (rows x n) with Q, and `r` (count x n) with R.
  Status Factor(int64_t rows, T* a, T* r, int64_t count) {
    SoloCommunicator solo;
    const RankContext alone = {device_, solo};
    const Matrix<T> matrix = {SoloTiles(p_.n), 0, rows, a, nullptr};
    JAXMG_RETURN_IF_ERROR(Geqrf(alone, Precision::kHighest, matrix, FurtherColumns<T>{},
                                memory_.reflectors, static_cast<T*>(nullptr), memory_.panels));
    JAXMG_RETURN_IF_ERROR(
        device_.CopyWithin(kMain, Block(r, count, count, p_.n), Block(a, rows, count, p_.n)));
    JAXMG_RETURN_IF_ERROR(kernels().ClearTriangle(kMain, Uplo::kLower, count, p_.n, r, count));
    return Orgqr(alone, Precision::kHighest, matrix, memory_.reflectors, memory_.panels);
  }

  Bytes2D InStack(int rank) const {
    return Block(memory_.stack + rank * count_, stack_rows_, count_, p_.n);
  }

  // Stacks R of all ranks, and the further rows, on the ranks that work.
  Status Stack() {
    const Bytes2D mine = Block(memory_.triangle, count_, count_, p_.n);
    for (int peer = 0; peer < comm_.size(); ++peer) {
      const bool has = peer != comm_.rank() && (!OnlyFirstWorks() || peer == kFirstRank);
      if (has) JAXMG_RETURN_IF_ERROR(comm_.Send(kMain, peer, mine));
    }
    if (products_.works()) {
      JAXMG_RETURN_IF_ERROR(device_.Copy(kMain, InStack(comm_.rank()), mine));
      for (int peer = 0; peer < comm_.size(); ++peer) {
        if (peer != comm_.rank()) JAXMG_RETURN_IF_ERROR(comm_.Recv(kMain, peer, InStack(peer)));
      }
      JAXMG_RETURN_IF_ERROR(blas().ConjTranspose(kMain, p_.n, p_.further, p_.below, p_.n,
                                                 memory_.stack + comm_.size() * count_,
                                                 stack_rows_));
    }
    return WaitAllSent(comm_, kMain);
  }

  // Overwrites the stack with Q2, and l with R^T. Chooses the signs so that the diagonal of R is
  // nonnegative.
  Status FactorStack() {
    T* r = memory_.triangle;
    JAXMG_RETURN_IF_ERROR(Factor(stack_rows_, memory_.stack, r, p_.n));
    JAXMG_RETURN_IF_ERROR(kernels().SignsOfDiagonal(kMain, p_.n, r, p_.n, memory_.signs));
    JAXMG_RETURN_IF_ERROR(kernels().ScaleRowsAndColumns(kMain, /*divide=*/false, p_.n, p_.n,
                                                        memory_.signs, nullptr, r, p_.n));
    JAXMG_RETURN_IF_ERROR(kernels().ScaleRowsAndColumns(kMain, /*divide=*/false, stack_rows_, p_.n,
                                                        nullptr, memory_.signs, memory_.stack,
                                                        stack_rows_));
    return blas().ConjTranspose(kMain, p_.n, p_.n, r, p_.n, p_.l, p_.n);
  }

  bool OnlyFirstWorks() const { return device_.tuning().qr.small_on_one; }

  // Finds this rank's rows of Q2: in the stack, or received from the first rank.
  Status TakeMine() {
    if (products_.works()) {
      mine_ = memory_.stack + comm_.rank() * count_;
      ld_ = stack_rows_;
      for (int peer = 0; OnlyFirstWorks() && peer < comm_.size(); ++peer) {
        if (peer != comm_.rank()) JAXMG_RETURN_IF_ERROR(comm_.Send(kMain, peer, InStack(peer)));
      }
    } else {
      mine_ = memory_.triangle;
      ld_ = count_;
      JAXMG_RETURN_IF_ERROR(
          comm_.Recv(kMain, kFirstRank, Block(memory_.triangle, count_, count_, p_.n)));
    }
    return WaitAllSent(comm_, kMain);
  }

  Status MultiplyRightHandSides() {
    if (p_.nrhs == 0) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(blas().Gemm(kMain, Op::kNone, Op::kNone, p_.nrhs, count_, p_.rows, 1,
                                      p_.b, p_.nrhs, memory_.turned, p_.rows, 0, memory_.product,
                                      p_.nrhs));
    JAXMG_RETURN_IF_ERROR(blas().Gemm(kMain, Op::kNone, Op::kNone, p_.nrhs, p_.n, count_, 1,
                                      memory_.product, p_.nrhs, mine_, ld_, 0, p_.c, p_.nrhs));
    JAXMG_RETURN_IF_ERROR(
        products_.SumOverRanks(p_.nrhs, p_.n, p_.c, /*lower=*/false, memory_.received));
    return products_.Spread(p_.nrhs, p_.n, p_.c);
  }

  Device& device_;
  Communicator& comm_;
  TallProducts<T> products_;
  const TsqrProblem<T>& p_;
  const TsqrMemory<T>& memory_;
  const int64_t count_, stack_rows_;
  const T* mine_ = nullptr;
  int64_t ld_ = 0;
};

}  // namespace

int64_t PanelElements(int64_t n, int64_t rows) {
  const Tiles tiles = SoloTiles(n);
  return std::max(GeqrfWorkspace(tiles, rows, 0), OrmqrWorkspace(tiles, rows));
}

template <typename T>
Status Tsqr(const RankContext& context, const TsqrProblem<T>& problem,
            const TsqrMemory<T>& memory) {
  return TsqrProgram<T>(context, problem, memory).Run();
}

#define JAXMG_INSTANTIATE(T) \
  template Status Tsqr(const RankContext&, const TsqrProblem<T>&, const TsqrMemory<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
