// Panels: the location of a factorization's panels: in the matrix, in its workspace or on another
// rank.
//
// A panel is the part of a tile column below the diagonal tile. If it is solved in place, it is in
// its tile column. Otherwise it is in the workspace, next to the other panels of its batch, so that
// one product uses all of them. All panels of a batch begin at the row below the batch's first
// diagonal tile and are stored column after column.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_PANELS_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_PANELS_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/device/device.h"
#include "xla_ffi/engine/core/batches.h"
#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg {

// The rows of panel k below diagonal tile k, or the rows of several panels below the diagonal tile
// of the first one.
template <typename T>
struct Panel {
  T* data;
  int64_t ld;
};

// A factor B^H of a product, where B is a range of rows of panels. Stores B or B^H.
template <typename T>
struct Factor {
  T* data;
  int64_t ld;
  Op op;
};

// The layout of the workspace, in elements. Every region exists twice, indexed by the parity of the
// batch. Regions of parts exist only if products consist of parts (parts.h) and rows are gathered.
template <typename T>
struct PanelRegions {
  PanelRegions(const Tiles& tiles, int64_t rows, const Tuning& tuning, const PartsShape& parts) {
    const int64_t width = tiles.width() * PanelsPerUpdate(tiles, tuning);
    const bool received = tiles.ranks() > 1 && !tuning.borrow_panels;
    const bool any = tiles.nonempty() > 1;  // a single tile has no panel
    const bool buffers = any && (received || tuning.cholesky.panel_block > 0);
    panels = buffers ? rows * width : 0;
    gathered = any && tuning.cholesky.group_columns > 0 ? tiles.slots() * tiles.width() * width : 0;
    if (gathered > 0 && parts.depth > 0) {
      const int64_t depth = parts.Depth(tiles.width()) * PanelsPerUpdate(tiles, tuning);
      first_part = AlignedElements(2 * (panels + gathered));
      left = Elements(AlignedParts(rows * parts.rows) * depth);
      right = Elements(AlignedParts(tiles.slots() * tiles.width()) * depth);
    }
    size = left > 0 ? first_part + 2 * (left + right) : 2 * (panels + gathered);
  }
  // Returns 1 if panels are solved in place, because such panels are not contiguous.
  static int64_t PanelsPerUpdate(const Tiles& tiles, const Tuning& tuning) {
    if (tuning.cholesky.panel_block == 0) return 1;
    return std::max<int64_t>(tuning.cholesky.update_depth / std::max<int64_t>(tiles.width(), 1), 1);
  }
  int64_t panels;          // the panels of a batch, contiguous
  int64_t gathered;        // the rows of panels that match this rank's tiles
  int64_t first_part = 0;  // the offset of the parts, and the sizes of left and right ones
  int64_t left = 0;
  int64_t right = 0;
  int64_t size;

 private:
  static int64_t AlignedElements(int64_t count) { return (count + 63) / 64 * 64; }
  static int64_t Elements(int64_t parts) {
    return AlignedElements(parts / (sizeof(T) / sizeof(Part)) + 1);
  }
};

// Parts of rows of one panel, or of several consecutive panels.
struct PartsOfPanel {
  Part* data;
  int64_t ld;
};

template <typename T>
class Panels {
 public:
  // `height`: the matrix's rows that panels have. `products` computes the products with panels.
  Panels(const Matrix<T>& matrix, int64_t height, const Batches& batches, const Tuning& tuning,
         const Blas<T>& products, T* workspace)
      : matrix_(matrix),
        tiles_(matrix.tiles),
        height_(height),
        batches_(batches),
        tuning_(tuning),
        regions_(matrix.tiles, matrix.rows, tuning, products.parts()),
        stored_(products.StoredFactor()),
        parts_(products.parts()),
        workspace_(workspace) {}

  bool in_place() const { return tuning_.cholesky.panel_block == 0; }
  int64_t Below(int64_t k) const { return height_ - tiles_.offset(k + 1); }
  // The number of columns of panels [first, k].
  int64_t Depth(int64_t first, int64_t k) const {
    return tiles_.offset(k + 1) - tiles_.offset(first);
  }

  Panel<T> Of(int64_t k) const {
    if (in_place() && tiles_.owner(k) == matrix_.rank) {
      return {matrix_.tile(k, tiles_.offset(k + 1)), matrix_.ld()};
    }
    if (tuning_.borrow_panels) return borrowed_;
    const Batch& batch = batches_.of(k);
    const int64_t ld = Below(batch.first);
    T* buffer = workspace_ + batch.index % 2 * regions_.panels;
    return {buffer + (tiles_.offset(k) - tiles_.offset(batch.first)) * ld +
                (tiles_.offset(k + 1) - tiles_.offset(batch.first + 1)),
            ld};
  }
  // Panel `first` and the later ones of its batch, from `row` of the matrix on.
  Panel<T> From(int64_t first, int64_t row) const {
    const Panel<T> panel = Of(first);
    return {panel.data + (row - tiles_.offset(first + 1)), panel.ld};
  }
  Factor<T> FactorFrom(int64_t first, int64_t row) const {
    const Panel<T> rows = From(first, row);
    return {rows.data, rows.ld, Op::kConjTrans};
  }
  // Columns [column, column + columns) of panel k.
  Bytes2D Piece(int64_t k, int64_t column, int64_t columns) const {
    const Panel<T> panel = Of(k);
    return Block(panel.data + column * panel.ld, panel.ld, Below(k), columns);
  }

  // Whether rows are gathered, so that one large product updates several contiguous tile columns.
  bool gathers() const { return tuning_.cholesky.group_columns > 0; }
  // The rows B of a batch that match this rank's trailing tile columns from `slot` on, or their
  // B^H.
  Factor<T> Gathered(const Batch& batch, int64_t slot) const {
    T* data = workspace_ + 2 * regions_.panels + batch.index % 2 * regions_.gathered;
    const int64_t first = batches_.FirstTrailing(batch), before = batches_.Columns(first, slot);
    const bool turned = stored_ == Op::kNone;
    const int64_t ld =
        turned ? Depth(batch.first, batch.last) : batches_.Columns(first, batches_.EndTrailing());
    return {data + (turned ? before * ld : before), ld, stored_};
  }
  // The rows of a batch that match the tile in a slot. Gathered rows continue with the next slot.
  Factor<T> FactorOfSlot(const Batch& batch, int64_t slot) const {
    return gathers() ? Gathered(batch, slot)
                     : FactorFrom(batch.first, tiles_.offset(tiles_.tile_in(matrix_.rank, slot)));
  }

  // Whether products consist of parts, which are split once for all products. Each panel is split
  // as a left factor from its first row on, and as a right factor in the rows that match this
  // rank's tiles in the later slots.
  bool splits() const { return regions_.left > 0; }
  // The number of columns of the parts of panels [first, k].
  int64_t PartsDepth(int64_t first, int64_t k) const {
    int64_t depth = 0;
    for (; first <= k; ++first) depth += parts_.Depth(tiles_.width(first));
    return depth;
  }
  PartsOfPanel Left(int64_t k, int64_t row) const {
    const Batch& batch = batches_.of(k);
    const int64_t ld = AlignedParts(Below(batch.first) * parts_.rows);
    return {PartsFrom(batch.index % 2 * regions_.left) + PartsDepth(batch.first, k - 1) * ld +
                (row - tiles_.offset(batch.first + 1)) * parts_.rows,
            ld};
  }
  PartsOfPanel Right(int64_t k, int64_t slot) const {
    const Batch& batch = batches_.of(k);
    const int64_t ld = AlignedParts(batches_.Columns(0, tiles_.slots()));
    return {PartsFrom(2 * regions_.left + batch.index % 2 * regions_.right) +
                PartsDepth(batch.first, k - 1) * ld + batches_.Columns(0, slot),
            ld};
  }

  // Sets the panel that this rank reads in place in another rank's memory.
  void Borrow(const Bytes2D& block) {
    borrowed_ = {static_cast<T*>(block.data), static_cast<int64_t>(block.pitch / sizeof(T))};
  }

 private:
  Part* PartsFrom(int64_t element) const {
    return reinterpret_cast<Part*>(workspace_ + regions_.first_part + element);
  }

  const Matrix<T>& matrix_;
  const Tiles& tiles_;
  const int64_t height_;
  const Batches& batches_;
  const Tuning tuning_;
  const PanelRegions<T> regions_;
  const Op stored_;
  const PartsShape parts_;
  T* const workspace_;
  Panel<T> borrowed_ = {};
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_PANELS_H_
