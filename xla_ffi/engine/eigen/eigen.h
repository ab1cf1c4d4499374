// Eigenvalues and eigenvectors of a distributed Hermitian matrix, by all ranks:
//
//   M ──band.h──► B ──chase.h──► Tri ──divide.h──► W, rows of Z ──exchange.h──► columns of Z
//   Q1 where M was    Q2 on all ranks                                                │
//                                     rows of U ◄──exchange.h── Q1 ◄── Q2 ◄──────────┘
//
// Operations: 2 n^3 for the reduction to a band and, for k vectors, about 4/3 n^3 for the vectors
// of the tridiagonal matrix (fewer with deflation) and 5 n^2 k for the back-transformation. Complex
// dtypes take four times as many, except for the tridiagonal matrix, which is real.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_EIGEN_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_EIGEN_H_

#include <cstdint>

#include "xla_ffi/engine/core/exchange.h"
#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/core/outcome.h"
#include "xla_ffi/engine/core/subset.h"
#include "xla_ffi/engine/eigen/chase.h"
#include "xla_ffi/engine/eigen/divide/divide.h"

namespace jaxmg {

// The workspace of one rank, in elements, and the offsets of its pieces. Host memory holds the
// numbers that the host reads.
template <typename T>
struct EigenSpace {
  EigenSpace(const Tiles& tiles, int rank, bool vectors, const Subset& subset,
             const Tuning& tuning);

  int64_t factors, band, tridiagonal, bundles, rows, columns, stage;
  int64_t elements;
  int64_t host_bytes;
};

// Returns the width of panels in the reduction, for a tuning and the caller's limit (0: no limit).
template <typename T>
int64_t BandWidth(int64_t block, int64_t tile, const Tuning& tuning);

// Returns the sweeps over a band of order n whose width is the width of a tile.
ChaseShape ChaseOf(int64_t n, const Tiles& tiles, const Tuning& tuning);

// The memory in which a band matrix is diagonalized. Host memory: HostBytesOfBand.
template <typename T>
struct BandSpace {
  T* band;  // on the root (chase.h); overwritten
  int64_t ldb;
  T* tridiagonal;  // 2 n
  T* bundles;      // ChaseShape::stored elements, or null without eigenvectors
  T* stage;        // ChaseWorkspace or DivideWorkspace, whichever is more
  void* host;
};
template <typename T>
int64_t HostBytesOfBand(int64_t n, int64_t host_of_divide) {
  return static_cast<int64_t>(Aligned(2 * n * sizeof(Real<T>)) + Aligned(host_of_divide));
}

// The second and the third stage: computes the eigenvalues of a band, ascending, in the first n
// numbers of host memory and, with `rows`, the tridiagonal matrix's eigenvectors (divide.h, which
// also explains `block`). Sets outcome.status(). Afterwards the host must wait for kMain before it
// reuses its memory.
template <typename T>
Status DiagonalizeBand(const RankContext& context, const ChaseShape& chase, int64_t block,
                       const BandSpace<T>& space, const EigenvectorRows<Real<T>>* rows,
                       const Outcome<T>& outcome);

// `matrix` must be M in contiguous blocks with a valid lower triangle and tiles of BandWidth
// columns. Writes all eigenvalues, ascending, to `w` (n, on every rank). Unless `v` is null, writes
// this rank's columns of U^H to it (subset.count() x block; may be the matrix's own memory), where
// M U = U diag(w). `staging` holds a tile; EigenSpace describes `space` and `host`. Sets
// outcome.status() to LAPACK's info; if it is not 0, the results are undefined. Enqueued on kMain;
// the host waits for it.
template <typename T>
Status SpreadEigen(const RankContext& context, const Matrix<T>& matrix, const Subset& subset,
                   Real<T>* w, T* v, T* staging, T* space, void* host, const Outcome<T>& outcome);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_EIGEN_H_
