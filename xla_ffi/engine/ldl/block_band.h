// BlockBand: a square matrix whose tiles are zero except near the diagonal, the same on every rank;
// its LU factorization with partial pivoting, and its inertia.
#ifndef JAXMG_XLA_FFI_ENGINE_LDL_BLOCK_BAND_H_
#define JAXMG_XLA_FFI_ENGINE_LDL_BLOCK_BAND_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/lu/getrf.h"

namespace jaxmg {

// Tile column k has tiles k - above to k + 1, one below the other, each in memory for a tile of
// full width b: ld() = (above + 2) b, and n columns.
//
//   above = 1        ┌───┐     T, block tridiagonal: in tile column k T(k-1, k), T(k, k), T(k+1, k)
//                    ├───┤
//                    ├───┤
//                    └───┘
//   above = 2        its LU factors: U(k-2, k), U(k-1, k), then the panel of tiles k and k + 1
template <typename T>
struct BlockBand {
  Tiles tiles;
  int64_t above;
  T* data;

  int64_t ld() const { return (above + 2) * tiles.width(); }
  // Tile (i, k), k - above <= i <= k + 1. Tiles of a column are contiguous.
  T* tile(int64_t i, int64_t k) const {
    return data + tiles.offset(k) * ld() + (i - k + above) * tiles.width();
  }
  // The first tile of column k, and the rows from there to the last one.
  int64_t first(int64_t k) const { return std::max<int64_t>(k - above, 0); }
  int64_t height(int64_t k) const { return tiles.offset(k + 2) - tiles.offset(first(k)); }
};

// The LU factorization of a band, above = 1, in `lu`, above = 2. It takes the band's tile columns
// in their order, as soon as they are known, and follows them. Writes n pivots: row i was
// interchanged with row pivots[i], as the panel with row i was factored; later interchanges don't
// move the columns of that panel. *info is that of LuKernels::FactorPanel. The determinant is that
// of the band. 6 n b^2 flops or a few times as many.
template <typename T>
class BandLu {
 public:
  BandLu(const BlockBand<T>& band, const BlockBand<T>& lu, int32_t* pivots, int32_t* info,
         const Determinant<T>& determinant);

  // Takes tile column k, after all before it, and factors what it can: with the last one, the rest.
  void Take(Step<T>& on, int64_t k) const;

 private:
  // The tile columns after a panel that its factorization changes.
  static constexpr int64_t kAhead = 2;

  void Factor(Step<T>& on, int64_t k) const;

  const BlockBand<T> band_, lu_;
  int32_t* const pivots_;
  int32_t* const info_;
  const Determinant<T> determinant_;
};

// z := T^-1 z with the factorization of T; z has `columns` columns, n apart. Enqueued on kMain.
template <typename T>
Status SolveBand(const RankContext& context, const BlockBand<T>& lu, const int32_t* pivots,
                 int64_t columns, T* z);

// The numbers of positive, negative and zero eigenvalues.
struct Inertia {
  int64_t positive, negative, zero;
};

// Returns the inertia of a Hermitian band matrix in host memory, above = 1, whose elements more
// than b apart from the diagonal are zero. Eigenvalues of at most n eps |T| count as zero; all
// numbers are -1 if T isn't finite. 6 n b^2 flops, on up to 16 threads. Throws if there is no
// memory: 2 n b numbers in double precision.
template <typename T>
Inertia InertiaOf(const BlockBand<T>& band);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_LDL_BLOCK_BAND_H_
