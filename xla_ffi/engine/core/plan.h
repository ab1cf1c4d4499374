// Plan: how a routine's matrix is divided into tiles, and the memory that the routine needs. A
// routine allocates the workspace that its struct declares, and the plugin reports the same numbers
// to Python.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_PLAN_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "xla_ffi/device/device.h"
#include "xla_ffi/engine/core/gather.h"
#include "xla_ffi/engine/core/workspace.h"
#include "xla_ffi/layout/tiles.h"

namespace jaxmg {

// A (m x n) is row-major and distributed in blocks of rows. The engine reads a block as
// column-major: m columns of n elements. A square matrix has m = n.
struct Sizes {
  int64_t m;                                  // rows of A, without padding
  int64_t n;                                  // columns of A
  int64_t block;                              // rows of A on each rank, padding included
  int64_t tile = 0;                           // limit for the tile width; 0: choose
  Precision precision = Precision::kHighest;  // of matrix products
};

// The ranks of a call, as seen from one of them.
struct Ranks {
  int size;
  int rank;
  Tuning tuning;
};

// Converts an order in Tuning, which holds for real dtypes, to T.
template <typename T>
int64_t OrderOf(int64_t real) {
  return kIsComplex<T> ? real * 3 / 5 : real;
}

// Resolves kChosen to the precision for a matrix of order n; returns any other precision unchanged.
template <typename T>
Precision ChosenPrecision(Precision requested, int64_t n, const Tuning& tuning);

// Returns the bytes of both operands' parts (parts.h) in a product of a matrix of `rows` rows with
// the columns of a rank's tiles, if each product splits its own operands.
template <typename T>
int64_t SplitBytes(const Tiles& tiles, int64_t rows, Precision precision);

// Returns the tile width used if the caller sets none.
int64_t DefaultTileWidth(int64_t block, int ranks, const Tuning& tuning);

// Returns tiles of the caller's width, or of the default width if the caller sets none.
Tiles TilesOf(const Sizes& sizes, int ranks, const Tuning& tuning);

// GathersToSolve returns whether several ranks gather a matrix on one of them, which factors it and
// solves with it. TilesToSolve returns the tiles for this. A rank that works alone uses a single
// tile for orders of at most `whole`.
template <typename T>
bool GathersToSolve(const Sizes& sizes, const Ranks& ranks);
template <typename T>
Tiles TilesToSolve(const Sizes& sizes, const Ranks& ranks, int64_t whole);
// As GathersToSolve and TilesToSolve, for inversion. Tiles have the default width.
bool GathersToInvert(const Sizes& sizes, const Ranks& ranks);
Tiles TilesToInvert(const Sizes& sizes, const Ranks& ranks);

// The bytes of a rank's record of the outcome (outcome.h).
inline constexpr int64_t kRecordBytes = kRecordWords * sizeof(int32_t);
inline constexpr int64_t RecordsBytes(int ranks) { return kRecordBytes * (1 + ranks) + 16; }

// The workspace that every routine has on one rank. A routine derives its own struct and adds the
// pieces that its algorithm needs. Sizes are in elements of T.
template <typename T>
struct RoutineSpace {
  // If `gathers`, only the root works, and `tiles` is a layout for one rank.
  RoutineSpace(const Sizes& sizes, const Ranks& ranks, const Tiles& tiles, bool gathers = false);

  // Whether one rank does all the work, because communication would take longer than it saves.
  bool gathers;
  // Whether this rank works on the matrix.
  bool works;
  Tiles tiles;

  Pieces pieces;           // all pieces below and in derived structs
  Piece<char> records;     // of the outcome
  Piece<T> panels = {};    // staging of tile columns, or an algorithm's panels
  Piece<T> overflow = {};  // the overflow tile, unless the caller passes it
  Piece<T> gathered = {};  // the whole matrix, on the root if it gathers
  int64_t host_bytes = 0;  // bytes of host memory
  // Memory beyond this workspace, for plans only: the approximate number of elements that the
  // device's own solver of a whole matrix needs, and the bytes of parts (parts.h) in products that
  // are split one by one.
  int64_t solver = 0;
  int64_t split_bytes = 0;

  // The bytes of this workspace, without the memory beyond it.
  size_t bytes() const { return pieces.bytes(); }

 protected:
  Piece<T> Reserve(int64_t elements) { return pieces.Reserve<T>(elements); }
  // Reserves at least a tile column if tiles move between ranks. Call once.
  void ReservePanels(int64_t elements = 0);
  void ReserveOverflow();

 private:
  int64_t tile_column_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_PLAN_H_
