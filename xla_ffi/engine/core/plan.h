// Plan: how a routine is laid out on its ranks, and the memory that it needs there. The one place
// where tile widths, and the bytes of a call, are computed: the routines reserve what stands here,
// and the plugin tells Python.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_PLAN_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "xla_ffi/device/device.h"
#include "xla_ffi/engine/core/subset.h"
#include "xla_ffi/layout/tiles.h"

namespace jaxmg {

// What is done on a distributed matrix. kSygvd is what a generalized eigenproblem does on A, kSygst
// on B. Those after that have, or make, a factor that is kept: its tile width is the caller's, and
// no rank has it alone.
enum class Routine {
  kPotrs,
  kPotri,
  kSyevd,
  kSygvd,
  kSygst,
  kPotrf,
  kApply,
  kSolveRows,
  kInvert,
  kPack,
  kUnpack
};

struct Sizes {
  int64_t n;         // order of A, without padding
  int64_t block;     // rows of A on each rank, padding included
  int64_t tile = 0;  // tile width at most; 0: choose
  int64_t nrhs = 0;
  bool vectors =
      true;  // of an eigenproblem, and those of which eigenvalues: all, unless last > first
  int64_t first = 0, last = 0;
  Precision precision = Precision::kHighest;  // of products

  Subset subset() const { return last > first ? Subset{first, last} : Subset{0, n}; }
};

// The precision of products of a matrix of order n, for one that was asked for.
template <typename T>
Precision ChosenPrecision(Precision asked, int64_t n, const Tuning& tuning);

// The tile width that serves these ranks when the caller names none.
int64_t DefaultTileWidth(int64_t block, int ranks, const Tuning& tuning);

// One rank's.
template <typename T>
struct Plan {
  Plan(Routine routine, const Sizes& sizes, int ranks, int rank, const Tuning& tuning);

  // Whether one rank does it all: exchanges, and the steps that wait for them, take longer than
  // they save.
  bool gathers;
  // Whether all ranks share an eigenproblem: else one has all of the matrix.
  bool spreads;
  // Of the matrix as it is worked on, and as it is factored: on one rank, where all tiles lie the
  // same, a factor that is kept may be made as a single one.
  Tiles tiles;
  Tiles factored;
  Precision precision;  // of products
  // Of the diagonal blocks that are inverted to be solved with (substitution.h); 0: none.
  int64_t inverse_order;

  // Elements of workspace.
  int64_t panels = 0;       // panels or tile columns
  int64_t overflow = 0;     // the overflow tile, where it isn't the caller's
  int64_t gathered = 0;     // the matrix, where this rank has all of it
  int64_t share = 0;        // right-hand sides of this rank's tiles
  int64_t accumulated = 0;  // what it has to add to those of others
  int64_t inverses = 0;     // of diagonal tiles
  int64_t eigen = 0;        // what SpreadEigen needs; for kSygvd, this rank's block at least
  int64_t rows = 0;         // this rank's block of right-hand sides
  int64_t host_bytes = 0;   // bytes of the host's memory
  // What the device's own solver of a whole matrix takes beside, about; and, in bytes, what
  // products that are made of parts do, where they are split one by one.
  int64_t solver = 0;
  int64_t split_bytes = 0;

  // Of workspace, what is taken beside left out.
  size_t bytes(int ranks) const;
};

// What a rank has to say of the outcome (outcome.h), in bytes.
inline constexpr int64_t kRecordBytes = 16;

// One allocation, in aligned pieces.
inline size_t Aligned(size_t bytes) {
  constexpr size_t kAlignment = 256;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_PLAN_H_
