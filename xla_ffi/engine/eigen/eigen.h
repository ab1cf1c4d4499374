// Eigenvalues and eigenvectors of a distributed Hermitian matrix, by all ranks:
//
//   M ──band.h──► B ──chase.h──► Tri ──divide.h──► W, rows of Z ──exchange.h──► columns of Z
//   Q1 where M was    Q2 on all ranks                                                │
//                                     rows of U ◄──exchange.h── Q1 ◄── Q2 ◄──────────┘
//
// 2 n^3 operations to the band, and, for k vectors, about 4/3 n^3 to make those of the tridiagonal
// matrix (less what deflates) and 5 n^2 k for the way back; four times as many of complex dtypes,
// but for the tridiagonal matrix, which is real.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_EIGEN_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_EIGEN_H_

#include <cstdint>

#include "xla_ffi/engine/core/exchange.h"
#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/core/outcome.h"
#include "xla_ffi/engine/core/subset.h"
#include "xla_ffi/engine/eigen/divide.h"

namespace jaxmg {

// One rank's workspace, in elements, and where its pieces begin. (The host's is for numbers that
// the host has to know.)
template <typename T>
struct EigenSpace {
  EigenSpace(const Tiles& tiles, int rank, bool vectors, const Subset& subset,
             const Tuning& tuning);

  int64_t factors, band, tridiagonal, kept, rows, columns, stage;
  int64_t elements;
  int64_t host_bytes;
};

// The columns of panels that the ranks reduce, for a tuning and the caller's limit (0: none).
template <typename T>
int64_t BandWidth(int64_t block, int64_t tile, const Tuning& tuning);

// Needs `matrix` = M in contiguous blocks, its lower triangle valid, and tiles of BandWidth
// columns. All eigenvalues, ascending, to `w` (n, on every rank). Unless `v` is null, it becomes
// this rank's columns of U^H (subset.count() x block, which may be the matrix's own memory), M U =
// U diag(w). `staging` holds a tile, `space` and `host` what EigenSpace says. outcome.status()
// becomes LAPACK's info: where it is not 0 nothing is computed, or of no use. Enqueued on kMain;
// the host has waited for it.
template <typename T>
Status SpreadEigen(const RankContext& context, const Matrix<T>& matrix, const Subset& subset,
                   Real<T>* w, T* v, T* staging, T* space, void* host, const Outcome<T>& outcome);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_EIGEN_H_
