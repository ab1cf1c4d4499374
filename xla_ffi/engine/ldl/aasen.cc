#include "xla_ffi/engine/ldl/aasen.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/stage.h"

namespace jaxmg {
namespace {

template <typename T>
class AasenFactorization {
 public:
  AasenFactorization(const RankContext& context, Precision precision, bool hermitian,
                     const Columns<T>& columns, const Matrix<T>& matrix, const BlockBand<T>& band,
                     const BandLu<T>& lu, int32_t* pivots, int32_t* order, int32_t* info,
                     T* workspace)
      : context_(context),
        flow_(context, precision),
        conjugates_(hermitian || !kIsComplex<T>),
        adjoint_(conjugates_ ? Op::kConjTrans : Op::kTrans),
        columns_(columns),
        matrix_(matrix),
        tiles_(matrix.tiles),
        n_(matrix.rows),
        width_(tiles_.width()),
        count_(tiles_.nonempty()),
        rank_(matrix.rank),
        ranks_(tiles_.ranks()),
        band_(band),
        lu_(lu),
        pivots_(pivots),
        order_(order),
        info_(info) {
    const AasenWorkspace sizes(tiles_);
    rows_ = workspace;
    packed_ = rows_ + sizes.rows;
    gathered_ = packed_ + sizes.rows;
    column_ = gathered_ + sizes.rows;
    products_ = column_ + sizes.column;
    terms_ = products_ + sizes.products;
    term_ = terms_ + ranks_ * width_ * width_;
    other_ = term_ + width_ * width_;
  }

  Status Run() {
    if (n_ == 0) return Status::Ok();
    Stage stage(context_.device, "factor", count_, FactorWork(n_), kShrinks);
    {
      Step<T> on(flow_, Stream::kMain);
      on.SetZero(n_, tiles_.slots() * width_, matrix_.data, n_);
      on.SetZero(band_.ld(), n_, band_.data, band_.ld());
      if (Mine(0)) on.SetIdentity(tiles_.width(0), matrix_.tile(0), n_);
    }
    // The rows of the first tile stay: 0, 1, ...
    flow_.Do([&] {
      const int64_t first = tiles_.width(0);
      return context_.device.Copy(Stream::kMain, Block(pivots_, first, first, 1),
                                  Block(order_, first, first, 1));
    });
    for (int64_t j = 0; j < count_; ++j) {
      Step<T> on(flow_, Stream::kMain, "ldl", j);
      on.WaitAllSent();
      TakeColumn(on, j);
      GatherRows(on, j);
      ComputeDiagonal(on, j);
      if (j + 1 < count_) {
        SubtractProducts(on, j);
        FactorPanel(on, j);
        Interchange(on, j);
      }
      Step<T> beside(flow_, Stream::kSide, "band", j);
      beside.Follows(Stream::kMain);
      lu_.Take(beside, j);
      stage.Done(Stream::kMain, j + 1);
    }
    return flow_.Finish();
  }

 private:
  static constexpr const Real<T>* kNoFactors = nullptr;

  bool Mine(int64_t k) const { return tiles_.owner(k) == rank_; }
  int64_t Begin(int64_t k) const { return tiles_.offset(k); }
  int64_t Width(int64_t k) const { return tiles_.width(k); }
  // The rank that computes column j: the one that keeps the panel.
  int Worker(int64_t j) const { return tiles_.owner(std::min(j + 1, count_ - 1)); }
  // The first of a rank's columns of M, and their number.
  int64_t FirstOf(int rank) const { return std::min(rank * columns_.block, n_); }
  int64_t CountOf(int rank) const { return FirstOf(rank + 1) - FirstOf(rank); }
  // The columns of this rank's tiles before tile k, which are contiguous and of full width.
  int64_t ColumnsBefore(int64_t k) const { return tiles_.slots_before(rank_, k) * width_; }
  int64_t ColumnsBefore(int rank, int64_t k) const { return tiles_.slots_before(rank, k) * width_; }
  // L(j, k) after GatherRows.
  T* RowTile(int64_t j, int64_t k) const { return rows_ + Begin(k) * Width(j); }

  // Writes the rows of M that are now tile j, as columns, to the worker: those of tile j to term_,
  // those below to tile column j + 1 of L.
  void TakeColumn(Step<T>& on, int64_t j) {
    const int64_t width = Width(j), mine = CountOf(rank_);
    const int worker = Worker(j);
    T* const taken = rank_ == worker ? gathered_ + FirstOf(rank_) * width : column_;
    if (mine > 0) {
      on.TakeRows(width, mine, order_ + Begin(j), kNoFactors, columns_.data, n_, taken, width);
      if (rank_ != worker) on.Send(worker, Block(taken, width, width, mine));
    }
    if (rank_ != worker) return;
    for (int rank = 0; rank < ranks_; ++rank) {
      const int64_t columns = CountOf(rank);
      if (rank == rank_ || columns == 0) continue;
      on.Recv(rank, Block(gathered_ + FirstOf(rank) * width, width, width, columns));
    }
    Adjoint(on, width, n_, gathered_, width, column_, n_);
    on.TakeRows(width, width, order_ + Begin(j), kNoFactors, column_, n_, term_, width);
    if (j + 1 == count_) return;
    on.TakeRows(n_ - Begin(j + 1), width, order_ + Begin(j + 1), kNoFactors, column_, n_, Panel(j),
                n_);
  }

  // Gathers L(j, 0 .. j) in rows_ on every rank.
  void GatherRows(Step<T>& on, int64_t j) {
    const int64_t width = Width(j), mine = ColumnsBefore(j + 1);
    T* const packed = ranks_ == 1 ? rows_ : packed_;
    if (mine > 0) {
      on.Copy(Block(packed, width, width, mine), Block(matrix_.data + Begin(j), n_, width, mine));
    }
    if (ranks_ == 1) return;
    const int64_t most = ColumnsBefore(0, j + 1) * width;
    Gather(packed, gathered_, most);
    const int64_t tile = width * width_;
    for (int rank = 0; rank < ranks_; ++rank) {
      const int64_t slots = tiles_.slots_before(rank, j + 1);
      if (slots == 0) continue;
      on.Copy(Block(rows_ + rank * tile, ranks_ * tile, tile, slots),
              Block(gathered_ + rank * most, tile, tile, slots));
    }
  }

  // Computes H(k, j) for this rank's tile columns k <= j, and T(j, j).
  void ComputeDiagonal(Step<T>& on, int64_t j) {
    const int64_t width = Width(j), ld = ProductsLd(), before = ColumnsBefore(j);
    MultiplyBand(on, j);
    // The rank's term of T(j, j); the worker's has M(j, j).
    const bool worker = rank_ == Worker(j);
    if (!worker) on.SetZero(width, width, term_, width);
    if (before > 0) {
      on.ExactGemm(Op::kNone, Op::kNone, width, width, before, -1, ranks_ == 1 ? rows_ : packed_,
                   width, products_, ld, 1, term_, width);
    }
    T* const sum = ranks_ == 1 ? term_ : terms_;
    if (ranks_ > 1) {
      Gather(term_, terms_, width * width);
      for (int rank = 1; rank < ranks_; ++rank) {
        on.Add(width, width, terms_ + rank * width * width, width, sum, width);
      }
    }
    // other_ := T(j, j-1) L(j, j-1)^*
    const T* const diagonal = RowTile(j, j);
    if (j > 0) {
      on.ExactGemm(Op::kNone, adjoint_, width, width, width_, 1, band_.tile(j, j - 1), band_.ld(),
                   RowTile(j, j - 1), width, 0, other_, width);
      on.ExactGemm(Op::kNone, Op::kNone, width, width, width, -1, diagonal, width, other_, width, 1,
                   sum, width);
    }
    on.Trsm(Side::kLeft, Op::kNone, width, width, diagonal, width, sum, width, kUnitLower);
    on.Trsm(Side::kRight, adjoint_, width, width, diagonal, width, sum, width, kUnitLower);
    if (conjugates_) on.MakeHermitian(width, sum, width);
    on.Copy(Block(band_.tile(j, j), band_.ld(), width, width), Block(sum, width, width, width));
    if (j + 1 == count_ || !Mine(j)) return;
    T* const product = Product(j);
    on.ExactGemm(Op::kNone, adjoint_, width, width, width, 1, sum, width, diagonal, width, 0,
                 product, ld);
    if (j > 0) on.Add(width, width, other_, width, product, ld);
  }

  // H(k, j) := T(k, k-1 .. k+1) L(j, k-1 .. k+1)^* for this rank's k < j. The first column of T has
  // fewer tiles, and the last one may have a narrower tile; all others are one batch.
  void MultiplyBand(Step<T>& on, int64_t j) {
    const int64_t width = Width(j);
    auto multiply = [&](int64_t k, int64_t count) {
      const int64_t first = band_.first(k);
      on.ExactGemmBatched(adjoint_, adjoint_, width_, width, band_.height(k), 1,
                          band_.tile(first, k), band_.ld(), ranks_ * width_ * band_.ld(),
                          RowTile(j, first), width, ranks_ * width_ * width, 0, Product(k),
                          ProductsLd(), width_, count);
    };
    int64_t k = rank_;
    if (k == 0 && k < j) {
      multiply(0, 1);
      k += ranks_;
    }
    const int64_t end = width == width_ ? j : j - 1;
    const int64_t count = end > k ? (end - k + ranks_ - 1) / ranks_ : 0;
    if (count > 0) multiply(k, count);
    k += count * ranks_;
    if (k < j) multiply(k, 1);
  }

  // Subtracts the products of all ranks from the worker's column, below tile j.
  void SubtractProducts(Step<T>& on, int64_t j) {
    const int64_t width = Width(j), below = n_ - Begin(j + 1), depth = ColumnsBefore(j + 1);
    const bool worker = rank_ == Worker(j);
    T* const target = worker ? Panel(j) : column_;
    const int64_t ld = worker ? n_ : below;
    if (depth > 0) {
      on.Gemm(Op::kNone, Op::kNone, below, width, depth, -1, matrix_.data + Begin(j + 1), n_,
              products_, ProductsLd(), worker ? 1 : 0, target, ld);
      if (!worker) on.Send(Worker(j), Block(column_, below, below, width));
    }
    for (int rank = 0; worker && rank < ranks_; ++rank) {
      if (rank == rank_ || ColumnsBefore(rank, j + 1) == 0) continue;
      on.Recv(rank, Block(column_, below, below, width));
      on.Add(below, width, column_, below, target, n_);
    }
  }

  // Factors the worker's column: L(:, j+1) and T(j+1, j) = U L(j, j)^-*.
  void FactorPanel(Step<T>& on, int64_t j) {
    const int64_t width = Width(j), next = Width(j + 1), begin = Begin(j + 1), ld = band_.ld();
    T* const beside = band_.tile(j + 1, j);
    const Bytes2D u = Block(other_, next, next, width);
    const Bytes2D pivots = Block(pivots_ + begin, next, next, 1);
    const int worker = Worker(j);
    if (rank_ == worker) {
      T* const panel = Panel(j);
      on.FactorPanel(n_ - begin, width, panel, n_, begin, pivots_ + begin, info_);
      on.Copy(u, Block(panel, n_, next, width));
      // L's ones and zeros, for products. Columns beyond the last row have none of L.
      on.SetIdentity(next, term_, next);
      on.Trmm(Side::kLeft, Op::kNone, next, next, panel, n_, term_, next, kUnitLower);
      on.SetZero(next, width, panel, n_);
      on.Copy(Block(panel, n_, next, next), Block(term_, next, next, next));
      on.ClearTriangle(Uplo::kLower, next, width, other_, next);
    }
    if (ranks_ > 1) {
      on.Broadcast(worker, u);
      on.Broadcast(worker, pivots);
    }
    on.Copy(Block(beside, ld, next, width), u);
    on.Trsm(Side::kRight, adjoint_, next, width, RowTile(j, j), width, beside, ld, kUnitLower);
    Adjoint(on, next, width, beside, ld, band_.tile(j, j + 1), ld);
  }

  // Interchanges what the panel's pivots move: the order, and rows of L before the panel.
  void Interchange(Step<T>& on, int64_t j) {
    const int64_t begin = Begin(j + 1), count = Width(j + 1);
    // Interchanges move bits, so that those of numbers of this size serve.
    static_assert(sizeof(float) == sizeof(int32_t), "the order is interchanged as numbers");
    flow_.Do([&] {
      return context_.device.lu<float>().SwapRows(Stream::kMain, Order::kForward, 1,
                                                  reinterpret_cast<float*>(order_ + begin), n_,
                                                  begin, count, pivots_ + begin);
    });
    on.SwapRows(Order::kForward, ColumnsBefore(j + 1), matrix_.data + begin, n_, begin, count,
                pivots_ + begin);
  }

  // b := a^*, a m x n.
  void Adjoint(Step<T>& on, int64_t m, int64_t n, const T* a, int64_t lda, T* b, int64_t ldb) {
    on.ConjTranspose(m, n, a, lda, b, ldb);
    if (!conjugates_) on.Conjugate(n, m, b, ldb);
  }
  void Gather(const T* mine, T* all, int64_t elements) {
    flow_.Do([&] {
      return AllGather(context_.comm, context_.device, Stream::kMain, mine, all,
                       elements * sizeof(T));
    });
  }

  // The worker's column below tile j, where L(:, j+1) is to be.
  T* Panel(int64_t j) const { return matrix_.tile(j + 1, Begin(j + 1)); }
  int64_t ProductsLd() const { return tiles_.slots() * width_; }
  T* Product(int64_t k) const { return products_ + tiles_.slot(k) * width_; }

  const RankContext& context_;
  Flow flow_;
  const bool conjugates_;
  const Op adjoint_;
  const Columns<T> columns_;
  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  const int64_t n_, width_, count_;
  const int rank_, ranks_;
  const BlockBand<T>& band_;
  const BandLu<T>& lu_;
  int32_t* const pivots_;
  int32_t* const order_;
  int32_t* const info_;
  T *rows_, *packed_, *gathered_, *column_, *products_, *terms_, *term_, *other_;
};

}  // namespace

Tiles LdlTiles(int64_t n, int ranks, int64_t tile) {
  const int64_t width = std::clamp<int64_t>(tile, 1, std::max<int64_t>(n, 1));
  const int64_t tiles = (n + width - 1) / width, slots = (tiles + ranks - 1) / ranks;
  return Tiles(n, slots * width, ranks, width);
}

AasenWorkspace::AasenWorkspace(const Tiles& tiles)
    : rows(tiles.width() * tiles.width() * tiles.count()),
      column(tiles.width() * tiles.columns()),
      products(tiles.width() * tiles.width() * tiles.slots()),
      sums((tiles.ranks() + 2) * tiles.width() * tiles.width()) {}

template <typename T>
Status Aasen(const RankContext& context, Precision precision, bool hermitian,
             const Columns<T>& columns, const Matrix<T>& matrix, const BlockBand<T>& band,
             const BandLu<T>& lu, int32_t* pivots, int32_t* order, int32_t* info, T* workspace) {
  return AasenFactorization<T>(context, precision, hermitian, columns, matrix, band, lu, pivots,
                               order, info, workspace)
      .Run();
}

#define JAXMG_INSTANTIATE(T)                                                                      \
  template Status Aasen(const RankContext&, Precision, bool, const Columns<T>&, const Matrix<T>&, \
                        const BlockBand<T>&, const BandLu<T>&, int32_t*, int32_t*, int32_t*, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
