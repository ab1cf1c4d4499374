#include "xla_ffi/engine/eigen/eigen.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/host_copy.h"
#include "xla_ffi/engine/core/redistribute.h"
#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/core/symmetrize.h"
#include "xla_ffi/engine/eigen/band.h"
#include "xla_ffi/engine/eigen/chase.h"

namespace jaxmg {

ChaseShape ChaseOf(int64_t n, const Tiles& tiles, const Tuning& tuning) {
  const int64_t group = std::min(tuning.eigen.sweep_group, tiles.width());
  return {n, tiles.width(), group, std::max(group, tuning.eigen.sweep_bundle), tiles.ranks()};
}

namespace {

Distribution RowsOf(const Tiles& tiles) { return {tiles.columns(), tiles.block()}; }

// Equal on all ranks.
int64_t StagingOf(const Tiles& tiles) {
  return std::max(tiles.columns() * tiles.width(), MinimumStaging(RowsOf(tiles)));
}

template <typename T>
int64_t ElementsOf(int64_t bytes) {
  return (bytes + static_cast<int64_t>(sizeof(T)) - 1) / static_cast<int64_t>(sizeof(T));
}

}  // namespace

template <typename T>
int64_t BandWidth(int64_t block, int64_t tile, const Tuning& tuning) {
  const int64_t most =
      sizeof(T) == 16 ? tuning.eigen.band_width_complex128 : tuning.eigen.band_width;
  return Tiles::EvenWidth(block, tile > 0 ? std::min(tile, most) : most);
}

template <typename T>
EigenSpace<T>::EigenSpace(const Tiles& tiles, int rank, bool vectors, const Subset& subset,
                          const Tuning& tuning) {
  const int64_t n = tiles.columns(), block = tiles.block();
  const ChaseShape chase = ChaseOf(n, tiles, tuning);
  const int64_t own = vectors ? DistributionOf(subset, tiles.ranks()).width(rank) : 0;
  const DivideBytes bytes = DivideWorkspace<Real<T>>(n, block, vectors);
  const int64_t divide = ElementsOf<T>(bytes.device);
  host_bytes = HostBytesOfBand<T>(n, bytes.host);
  int64_t size = 0;
  auto piece = [&](int64_t wanted) {
    const int64_t begin = size;
    size += ElementsOf<T>(static_cast<int64_t>(Aligned(wanted * sizeof(T))));
    return begin;
  };
  factors = piece(BandFactors(tiles));
  band = piece(rank == kRoot ? BandRows(tiles) * n : 0);
  tridiagonal = piece(2 * n);
  bundles = piece(vectors ? chase.stored(rank) : 0);
  rows = piece(vectors ? n * block : 0);
  columns = piece(vectors ? n * block : 0);
  const int64_t on_the_way_back = vectors
                                      ? std::max({StagingOf(tiles), ApplyChaseWorkspace(chase, own),
                                                  ApplyBandWorkspace(tiles, own)})
                                      : 0;
  const int64_t size_of_stage =
      std::max({ReduceToBandWorkspace(tiles), ChaseWorkspace(chase, rank, vectors), divide,
                on_the_way_back});
  stage = piece(size_of_stage);
  elements = size;
}

template <typename T>
Status DiagonalizeBand(const RankContext& context, const ChaseShape& chase, int64_t block,
                       const BandSpace<T>& space, const EigenvectorRows<Real<T>>* rows,
                       const Outcome<T>& outcome) {
  using R = Real<T>;
  Device& device = context.device;
  const int64_t n = chase.n;
  R* d = reinterpret_cast<R*>(space.tridiagonal);
  R* e = d + n;
  JAXMG_RETURN_IF_ERROR(ChaseBulges(context, chase, space.bundles != nullptr, space.band, space.ldb,
                                    d, e, space.bundles, space.stage));
  auto* numbers = static_cast<R*>(space.host);
  JAXMG_RETURN_IF_ERROR(
      CopyToHost(device, Block(numbers, 2 * n, 2 * n, 1), Block(d, 2 * n, 2 * n, 1)));
  int32_t info = 0;
  const DivideSpace divide = {space.stage,
                              static_cast<char*>(space.host) + Aligned(2 * n * sizeof(R))};
  {
    const Range range(device, Stream::kMain, "divide", 0);
    JAXMG_RETURN_IF_ERROR(
        DivideAndConquer(context, n, block, numbers, numbers + n, rows, divide, &info));
  }
  // Possibly only some ranks fail. All continue, and the results are undefined.
  if (info > 0) JAXMG_RETURN_IF_ERROR(device.FillInt32(Stream::kMain, outcome.info(), 1, info));
  return outcome.Set();
}

template <typename T>
Status SpreadEigen(const RankContext& context, const Matrix<T>& matrix, const Subset& subset,
                   Real<T>* w, T* v, T* staging, T* space, void* host, const Outcome<T>& outcome) {
  using R = Real<T>;
  Device& device = context.device;
  const Tiles& tiles = matrix.tiles;
  const int64_t n = tiles.columns(), block = tiles.block();
  const int rank = context.comm.rank();
  const bool vectors = v != nullptr;
  const Tuning tuning = device.tuning();
  const EigenSpace<T> at(tiles, rank, vectors, subset, tuning);
  const Distribution rows = RowsOf(tiles), columns = DistributionOf(subset, tiles.ranks());
  const ChaseShape chase = ChaseOf(n, tiles, tuning);
  T *factors = space + at.factors, *stage = space + at.stage;
  const int64_t begin = rows.begin(rank), width = rows.width(rank);

  // Checked first, because elements that are not finite would keep iterations from converging.
  JAXMG_RETURN_IF_ERROR(device.eigen<T>().panel->CheckFinite(
      Stream::kMain, n - begin, width, matrix.data + begin, n, begin, outcome.info()));
  JAXMG_RETURN_IF_ERROR(outcome.Set());
  auto* status = static_cast<int32_t*>(host);
  JAXMG_RETURN_IF_ERROR(
      CopyToHost(device, Block(status, 1, 1, 1), Block(outcome.status(), 1, 1, 1)));
  if (*status != 0) return WaitAllSent(context.comm, Stream::kMain);

  AnnounceWork(device, EigenWork(n, chase.b, tiles.ranks(), vectors ? subset.count() : 0));
  JAXMG_RETURN_IF_ERROR(Symmetrize(context, matrix, staging));
  JAXMG_RETURN_IF_ERROR(ToBlockCyclic(context, matrix, Region::kFull, staging));
  JAXMG_RETURN_IF_ERROR(ReduceToBand(context, matrix, factors, space + at.band, stage));
  R* q = reinterpret_cast<R*>(space + at.rows);
  R* more = kIsComplex<T> ? q + n * block : reinterpret_cast<R*>(space + at.columns);
  const int64_t ldq = std::max<int64_t>(width, 1);
  const EigenvectorRows<R> wanted = {subset.first, subset.last, q, more, ldq};
  T* bundles = vectors ? space + at.bundles : nullptr;
  const BandSpace<T> band = {space + at.band, BandRows(tiles), space + at.tridiagonal,
                             bundles,         stage,           host};
  JAXMG_RETURN_IF_ERROR(
      DiagonalizeBand(context, chase, block, band, vectors ? &wanted : nullptr, outcome));
  JAXMG_RETURN_IF_ERROR(
      device.Copy(Stream::kMain, Block(w, n, n, 1), Block(static_cast<const R*>(host), n, n, 1)));
  if (vectors) {
    T* z = space + at.columns;
    const int64_t own = columns.width(rank);
    JAXMG_RETURN_IF_ERROR(
        RowsToColumns(context, rows, columns, q, ldq, z, stage, StagingOf(tiles)));
    JAXMG_RETURN_IF_ERROR(ApplyChase(context, chase, space + at.bundles, own, z, stage));
    JAXMG_RETURN_IF_ERROR(ApplyBand(context, matrix, factors, own, z, stage));
    JAXMG_RETURN_IF_ERROR(ColumnsToRows(context, rows, columns, z, v));
  }
  // Afterwards the caller may reuse the host memory.
  return device.Synchronize();
}

#define JAXMG_INSTANTIATE(T)                                                                     \
  template struct EigenSpace<T>;                                                                 \
  template int64_t BandWidth<T>(int64_t, int64_t, const Tuning&);                                \
  template Status DiagonalizeBand(const RankContext&, const ChaseShape&, int64_t,                \
                                  const BandSpace<T>&, const EigenvectorRows<Real<T>>*,          \
                                  const Outcome<T>&);                                            \
  template Status SpreadEigen(const RankContext&, const Matrix<T>&, const Subset&, Real<T>*, T*, \
                              T*, T*, void*, const Outcome<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
