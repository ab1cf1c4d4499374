// Frame: what all routines on a distributed matrix do around their algorithm. The workspace that
// the routine asks for, agreement that all ranks have it, the caller's rows to tiles and back, the
// outcome. What is read of the matrix, and what becomes of results where the outcome is a failure,
// is the routine's own choice.
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
  int64_t m;        // rows of A, without padding; of a square matrix n
  int64_t n;        // columns of A
  int64_t block;    // rows of A on each rank, padding included
  int64_t tile;     // tile width at most, 0: choose
  T* a;             // this rank's block: block x n, row-major; changed in place
  int32_t* status;  // LAPACK's info, the same on every rank; may be null
  Precision precision = Precision::kHighest;  // of the products that potrf and potri consist of
  const T* source = nullptr;  // where the block is to be copied from first, if it isn't in a
  T* overflow = nullptr;      // the overflow tile of a factor that is kept, where it has one
  int64_t grid_rows = 0;      // of a grid of ranks, for vendors' solvers that have one; 0: choose

  Sizes sizes() const { return {m, n, block, tile, precision}; }
};

inline Ranks RanksOf(const RankContext& context) {
  return {context.comm.size(), context.comm.rank(), context.device.tuning()};
}

// Runs `work` on every rank if all could `prepare`, and returns the same Status everywhere. The
// second agreement also keeps every rank's memory in place until no other rank reads it.
Status RunOnAllRanks(Communicator& comm, const std::function<Status()>& prepare,
                     const std::function<Status()>& work);

// `target` becomes `source`, where that is given and XLA has not given both the same memory.
template <typename T>
Status CopyIfApart(Device& device, const T* source, T* target, int64_t count) {
  if (source == nullptr || source == target || count == 0) return Status::Ok();
  return device.Copy(Stream::kMain, Block(target, count, count, 1), Block(source, count, count, 1));
}

template <typename T>
class Frame {
 public:
  // `space` is the routine's, and outlives the frame.
  Frame(const RankContext& context, const Operand<T>& operand, const RoutineSpace<T>& space);

  // --- Memory, after Prepare ---------------------------------------------------------------------
  template <typename U>
  U* at(const Piece<U>& piece) const {
    return workspace_.Get(piece);
  }
  T* panels() const { return at(space_.panels); }
  T* gathered() const { return at(space_.gathered); }
  void* host() const { return host_ == nullptr ? nullptr : host_->data(); }
  const Outcome<T>& outcome() const { return *outcome_; }

  // Whether this rank has a part in the work on the matrix, and with whom.
  bool works() const { return space_.works; }
  const RankContext& context() const { return space_.gathers ? alone_ : outer_; }
  const Tiles& tiles() const { return space_.tiles; }
  Matrix<T> matrix() const { return matrix(space_.tiles); }
  // The same memory, cut into other tiles.
  Matrix<T> matrix(const Tiles& tiles) const;

  // --- Steps -------------------------------------------------------------------------------------
  // Workspace, the copy of A, an outcome that nobody has anything to say of.
  Status Prepare();
  // A region of the ranks' rows to the tiles that are worked on, and back to blocks: to those of
  // the root where it has all of the matrix, from which Return spreads them.
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
  const RankContext alone_;  // the root's, where it has all
  Workspace workspace_;
  const Piece<int32_t> status_;
  std::unique_ptr<Buffer> host_;
  std::optional<Outcome<T>> outcome_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_FRAME_H_
