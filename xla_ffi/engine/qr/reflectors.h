// Block reflectors: a tile column's factor of Q, I - V T V^H, in the form that is sent to all
// ranks; and products with it.
//
// A tile column is factored in panels of kPanelColumns columns. The QR factor stores the panels' T:
// kPanelColumns numbers for each reflector. Products with many columns use the T of the whole tile
// column, which is computed from the panels' T; products with few columns are cheaper panel by
// panel.
#ifndef JAXMG_XLA_FFI_ENGINE_QR_REFLECTORS_H_
#define JAXMG_XLA_FFI_ENGINE_QR_REFLECTORS_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/device/constants.h"
#include "xla_ffi/engine/core/flow.h"

namespace jaxmg {

// The reflectors of tile column k of a matrix of `n` rows. They change the rows from `begin` on.
struct TileReflectors {
  TileReflectors(const Tiles& tiles, int64_t n, int64_t k)
      : k(k),
        owner(tiles.owner(k)),
        begin(std::min(tiles.offset(k), n)),
        width(tiles.width(k)),
        rows(n - begin),
        count(std::min(rows, width)) {}

  const int64_t k;
  const int owner;
  const int64_t begin, width, rows, count;
};

// Returns the number of tile columns that have reflectors: those that begin above the last row.
inline int64_t TilesWithReflectors(const Tiles& tiles, int64_t n) {
  int64_t count = tiles.nonempty();
  while (count > 0 && tiles.offset(count - 1) >= n) --count;
  return count;
}

// Calls f(first, columns) for the panels of a tile column.
template <typename F>
void ForPanels(const TileReflectors& tile, const F& f) {
  for (int64_t first = 0; first < tile.count; first += kPanelColumns) {
    f(first, std::min<int64_t>(kPanelColumns, tile.count - first));
  }
}

// Returns the T of the panel that begins in column `first` of the tile column. `factors`, the same
// on every rank, holds the T of all panels side by side: kPanelColumns x k, with a column for each
// of the matrix's k reflectors.
template <typename T>
T* PanelFactor(T* factors, const TileReflectors& tile, int64_t first) {
  return factors + (tile.begin + first) * kPanelColumns;
}

// T and V of a tile column, stacked in one block: T is count x count and upper triangular, V is
// rows x count and includes its ones and zeros.
template <typename T>
struct BlockReflector {
  BlockReflector(const TileReflectors& tile, T* memory)
      : rows(tile.rows),
        count(tile.count),
        ld(tile.rows + tile.count),
        t(memory),
        v(memory + tile.count) {}

  Bytes2D block() const { return Block(t, ld, ld, count); }

  const int64_t rows, count, ld;
  T* const t;
  T* const v;
};

// Returns the largest number of elements of a block reflector.
inline int64_t BlockReflectorSize(const Tiles& tiles, int64_t n) {
  return (n + tiles.width()) * tiles.width();
}

// C := op(I - V T V^H) C, C rows x columns, V rows x count. `work`: count x columns. `products`
// selects the flow's precision or exact products.
enum class Products { kOfFlow, kExact };
template <typename T>
void ApplyLeft(Step<T>& on, Products products, Op op, int64_t rows, int64_t count, int64_t columns,
               const T* v, int64_t ldv, const T* t, int64_t ldt, T* c, int64_t ldc, T* work) {
  if (columns == 0 || count == 0) return;
  auto multiply = [&](auto... arguments) {
    products == Products::kExact ? on.ExactGemm(arguments...) : on.Gemm(arguments...);
  };
  multiply(Op::kConjTrans, Op::kNone, count, columns, rows, Real<T>(1), v, ldv, c, ldc, Real<T>(0),
           work, count);
  on.Trmm(Side::kLeft, op, count, columns, t, ldt, work, count, Triangle{Uplo::kUpper});
  multiply(Op::kNone, Op::kNone, rows, columns, count, Real<T>(-1), v, ldv, work, count, Real<T>(1),
           c, ldc);
}

// As above, for many columns, `at_once` columns at a time: `work` is count x at_once.
template <typename T>
void ApplyLeft(Step<T>& on, Op op, const BlockReflector<T>& h, int64_t columns, T* c, int64_t ldc,
               T* work, int64_t at_once) {
  for (int64_t j = 0; j < columns; j += at_once) {
    ApplyLeft(on, Products::kOfFlow, op, h.rows, h.count, std::min(at_once, columns - j), h.v, h.ld,
              h.t, h.ld, c + j * ldc, ldc, work);
  }
}

// X := X op(I - V T V^H), X m x rows. `work`: m x count.
template <typename T>
void ApplyRight(Step<T>& on, Op op, int64_t m, int64_t rows, int64_t count, const T* v, int64_t ldv,
                const T* t, int64_t ldt, T* x, int64_t ldx, T* work) {
  if (m == 0 || count == 0) return;
  on.ExactGemm(Op::kNone, Op::kNone, m, count, rows, 1, x, ldx, v, ldv, 0, work, m);
  on.Trmm(Side::kRight, op, m, count, t, ldt, work, m, Triangle{Uplo::kUpper});
  on.ExactGemm(Op::kNone, Op::kConjTrans, m, rows, count, -1, work, m, v, ldv, 1, x, ldx);
}

// Returns the number of columns in the first half, which has whole panels. `columns` must exceed a
// panel's.
inline int64_t FirstHalf(int64_t columns) {
  return (columns + kPanelColumns - 1) / kPanelColumns / 2 * kPanelColumns;
}

// Computes T12 = -T1 (V1^H V2) T2 for `columns` columns from `first` on. T1 and V1 belong to the
// first `half` columns, T2 and V2 to the others.
template <typename T>
void CombineHalves(Step<T>& on, const BlockReflector<T>& h, int64_t first, int64_t half,
                   int64_t columns) {
  const int64_t second = first + half, rest = columns - half;
  T* above = h.t + first + second * h.ld;
  on.ExactGemm(Op::kConjTrans, Op::kNone, half, rest, h.rows - second, -1,
               h.v + second + first * h.ld, h.ld, h.v + second + second * h.ld, h.ld, 0, above,
               h.ld);
  on.Trmm(Side::kLeft, Op::kNone, half, rest, h.t + first + first * h.ld, h.ld, above, h.ld,
          Triangle{Uplo::kUpper});
  on.Trmm(Side::kRight, Op::kNone, half, rest, h.t + second + second * h.ld, h.ld, above, h.ld,
          Triangle{Uplo::kUpper});
}

// Computes the T of `columns` columns from `first` on, from the T of their panels, by halves.
template <typename T>
void CombineColumns(Step<T>& on, const BlockReflector<T>& h, int64_t first, int64_t columns) {
  if (columns <= kPanelColumns) return;
  const int64_t half = FirstHalf(columns);
  CombineColumns(on, h, first, half);
  CombineColumns(on, h, first + half, columns - half);
  CombineHalves(on, h, first, half, columns);
}

// Copies the T of a panel to its place on the diagonal of the tile column's T.
template <typename T>
void CopyPanelFactor(Step<T>& on, const TileReflectors& tile, const T* factors,
                     const BlockReflector<T>& h, int64_t first, int64_t columns) {
  on.Copy(Block(h.t + first + first * h.ld, h.ld, columns, columns),
          Block(PanelFactor(factors, tile, first), kPanelColumns, columns, columns));
}

// Computes the T of a tile column from V and the T of its panels.
template <typename T>
void CombineFactors(Step<T>& on, const TileReflectors& tile, const T* factors,
                    const BlockReflector<T>& h) {
  on.SetZero(h.count, h.count, h.t, h.ld);
  ForPanels(tile, [&](int64_t first, int64_t columns) {
    CopyPanelFactor(on, tile, factors, h, first, columns);
  });
  CombineColumns(on, h, 0, h.count);
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_QR_REFLECTORS_H_
