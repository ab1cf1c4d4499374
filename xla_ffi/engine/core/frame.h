// Frame: the steps that all routines on a distributed matrix share. It allocates the routine's
// workspace, lets the ranks agree that all have it, moves the caller's rows to tiles and back, and
// computes the outcome. Each routine chooses which part of the matrix it reads, and what happens to
// its results after a failure.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_FRAME_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_FRAME_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "xla_ffi/engine/core/gather.h"
#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/core/outcome.h"
#include "xla_ffi/engine/core/plan.h"
#include "xla_ffi/engine/core/redistribute.h"
#include "xla_ffi/engine/core/workspace.h"

namespace jaxmg {

template <typename T>
struct Operand {
  int64_t m;        // rows of A, without padding
  int64_t n;        // columns of A
  int64_t block;    // rows of A on each rank, padding included
  int64_t tile;     // limit for the tile width; 0: choose
  T* a;             // this rank's block: block x n, row-major; changed in place
  int32_t* status;  // LAPACK's info, the same on every rank; may be null
  Precision precision = Precision::kHighest;  // of matrix products
  const T* source = nullptr;                  // copied to `a` first, unless null
  T* overflow = nullptr;                      // the overflow tile of a kept factor, if it has one
  int64_t grid_rows = 0;  // rows of the grid of ranks of a vendor's solver; 0: choose

  Sizes sizes() const { return {m, n, block, tile, precision}; }
};

inline Ranks RanksOf(const RankContext& context) {
  return {context.comm.size(), context.comm.rank(), context.device.tuning()};
}

// Runs `work` on every rank if `prepare` succeeds on all, and returns the same Status on all ranks.
// The second agreement also keeps every rank's memory valid until no other rank reads it.
Status RunOnAllRanks(Communicator& comm, const std::function<Status()>& prepare,
                     const std::function<Status()>& work);

// Copies `source` to `target`, unless `source` is null or XLA has aliased both.
template <typename T>
Status CopyIfApart(Device& device, const T* source, T* target, int64_t count) {
  if (source == nullptr || source == target || count == 0) return Status::Ok();
  return device.Copy(Stream::kMain, Block(target, count, count, 1), Block(source, count, count, 1));
}

template <typename T>
class Frame {
 public:
  // `space` belongs to the routine and must outlive the frame.
  Frame(const RankContext& context, const Operand<T>& operand, const RoutineSpace<T>& space);

  // --- Memory, after Prepare ---------------------------------------------------------------------
  template <typename U>
  U* at(const Piece<U>& piece) const {
    return workspace_.Get(piece);
  }
  const Workspace& workspace() const { return workspace_; }
  // Returns `other` if the piece has no elements.
  T* AtOr(const Piece<T>& piece, T* other) const { return piece.elements > 0 ? at(piece) : other; }
  T* panels() const { return at(space_.panels); }
  T* gathered() const { return at(space_.gathered); }
  void* host() const { return host_ == nullptr ? nullptr : host_->data(); }
  const Outcome<T>& outcome() const { return *outcome_; }

  // Whether this rank works on the matrix, and the context of the ranks that do.
  bool works() const { return space_.works; }
  const RankContext& context() const { return space_.gathers ? alone_ : outer_; }
  const Tiles& tiles() const { return space_.tiles; }
  Matrix<T> matrix() const { return matrix(space_.tiles); }
  // The same memory, divided into other tiles.
  Matrix<T> matrix(const Tiles& tiles) const;

  // --- Steps -------------------------------------------------------------------------------------
  // Allocates the workspace, copies A and initializes the outcome.
  Status Prepare();
  // Take moves a region of the ranks' rows to tiles, and Untile moves it back to blocks. If the
  // root gathers the matrix, the blocks are the root's, and Return scatters them to the ranks.
  Status Take(Region region);
  Status Untile(Region region);
  Status Return();

 private:
  Device& device() const { return outer_.device; }
  Blocks<T> blocks() const { return {operand_.n, operand_.m, operand_.block, operand_.a}; }

  const RankContext& outer_;
  const Operand<T>& operand_;
  const RoutineSpace<T>& space_;
  SoloCommunicator solo_;
  const RankContext alone_;  // the root's, if it gathers the matrix
  Workspace workspace_;
  const Piece<int32_t> status_;
  std::unique_ptr<Buffer> host_;
  std::optional<Outcome<T>> outcome_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_FRAME_H_
