// Plan: how a routine's matrix is cut into tiles, and the memory that the routine needs. A routine
// reserves the workspace that its own struct names, and the plugin tells Python the same numbers.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_PLAN_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "xla_ffi/device/device.h"
#include "xla_ffi/engine/core/gather.h"
#include "xla_ffi/engine/core/workspace.h"
#include "xla_ffi/layout/tiles.h"

namespace jaxmg {

// A (m x n) is row-major and lies on the ranks in blocks of rows. A rank reads its block column by
// column: m columns of n elements are dealt to the ranks. A square matrix has m = n.
struct Sizes {
  int64_t m;                                  // rows of A, without padding
  int64_t n;                                  // columns of A
  int64_t block;                              // rows of A on each rank, padding included
  int64_t tile = 0;                           // tile width at most; 0: choose
  Precision precision = Precision::kHighest;  // of products
};

// The ranks of a call as one of them sees them.
struct Ranks {
  int size;
  int rank;
  Tuning tuning;
};

// An order of Tuning, for T.
template <typename T>
int64_t OrderOf(int64_t real) {
  return kIsComplex<T> ? real * 3 / 5 : real;
}

// The precision of products of a matrix of order n, for one that was asked for.
template <typename T>
Precision ChosenPrecision(Precision asked, int64_t n, const Tuning& tuning);

// Bytes that products with a matrix of `rows` rows and the columns of a rank's tiles split into
// parts, where they are split one by one.
template <typename T>
int64_t SplitBytes(const Tiles& tiles, int64_t rows, Precision precision);

// The tile width that serves these ranks when the caller names none.
int64_t DefaultTileWidth(int64_t block, int ranks, const Tuning& tuning);

// Tiles of the caller's width, else of the default one.
Tiles TilesOf(const Sizes& sizes, int ranks, const Tuning& tuning);

// Whether several ranks leave a matrix to one of them to be factored and solved with, and the tiles
// of that: one rank alone factors a small matrix as a single tile.
template <typename T>
bool GathersToSolve(const Sizes& sizes, const Ranks& ranks);
template <typename T>
Tiles TilesToSolve(const Sizes& sizes, const Ranks& ranks);
// The same to be inverted, in tiles of the usual width.
bool GathersToInvert(const Sizes& sizes, const Ranks& ranks);
Tiles TilesToInvert(const Sizes& sizes, const Ranks& ranks);

// What a rank has to say of the outcome (outcome.h), in bytes.
inline constexpr int64_t kRecordBytes = 32;
inline constexpr int64_t RecordsBytes(int ranks) { return kRecordBytes * (1 + ranks) + 16; }

// The workspace of one rank: what every routine has. A routine derives its own struct and adds the
// pieces that its algorithm needs. Elements are of the type T.
template <typename T>
struct RoutineSpace {
  // Where `gathers`, the root alone works, and `tiles` are those of one rank.
  RoutineSpace(const Sizes& sizes, const Ranks& ranks, const Tiles& tiles, bool gathers = false);

  // Whether one rank does it all: exchanges, and the steps that wait for them, take longer than
  // they save.
  bool gathers;
  // Whether this rank has a part in the work on the matrix.
  bool works;
  Tiles tiles;

  Pieces pieces;           // all of those that follow, and a routine's own
  Piece<char> records;     // of the outcome
  Piece<T> panels = {};    // tile columns on their way, or an algorithm's panels
  Piece<T> overflow = {};  // the overflow tile, where it isn't the caller's
  Piece<T> gathered = {};  // the matrix, where this rank has all of it
  int64_t host_bytes = 0;  // bytes of the host's memory
  // For plans alone, what is taken beside workspace: elements of the device's own solver of a whole
  // matrix, about; bytes of products that are made of parts, where they are split one by one.
  int64_t solver = 0;
  int64_t split_bytes = 0;

  // Of workspace, what is taken beside left out.
  size_t bytes() const { return pieces.bytes(); }

 protected:
  Piece<T> Reserve(int64_t elements) { return pieces.Reserve<T>(elements); }
  // At least a tile column where tiles change ranks. Once.
  void ReservePanels(int64_t elements = 0);
  void ReserveOverflow();

 private:
  int64_t tile_column_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_PLAN_H_
