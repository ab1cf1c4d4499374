// Frame: what all routines on a distributed matrix do around their algorithm. Workspace by the
// plan, agreement that all ranks have it, the caller's rows to tiles and back, the outcome.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_FRAME_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_FRAME_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "xla_ffi/engine/cholesky/potrf.h"
#include "xla_ffi/engine/cholesky/substitution.h"
#include "xla_ffi/engine/core/gather.h"
#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/core/outcome.h"
#include "xla_ffi/engine/core/plan.h"

namespace jaxmg {

template <typename T>
struct Operand {
  int64_t n;        // order of A, without padding
  int64_t block;    // rows of A on each rank, padding included
  int64_t tile;     // tile width at most, 0: choose
  T* a;             // this rank's block: block x n, row-major; changed in place
  int32_t* status;  // LAPACK's info, the same on every rank; may be null
  Precision precision = Precision::kHighest;  // of the products that potrf and potri consist of
  const T* source = nullptr;  // where the block is to be copied from first, if it isn't in a
  T* overflow = nullptr;      // the overflow tile of a factor that is kept, where it has one
  int64_t grid_rows = 0;      // of a grid of ranks, for vendors' solvers that have one; 0: choose
};

// One allocation, handed out in aligned pieces: first all sizes, then all pointers.
class Workspace {
 public:
  template <typename T>
  size_t Reserve(int64_t elements) {
    const size_t offset = size_;
    size_ += Aligned(std::max<int64_t>(elements, 0) * sizeof(T));
    return offset;
  }
  Status Allocate(Device& device) { return device.Allocate(size_, &buffer_); }
  template <typename T>
  T* Get(size_t offset) const {
    return reinterpret_cast<T*>(buffer_->as<char>() + offset);
  }

 private:
  size_t size_ = 0;
  std::unique_ptr<Buffer> buffer_;
};

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
  Frame(const RankContext& context, const Operand<T>& operand, Routine routine, int64_t nrhs = 0);
  // Of an eigenproblem.
  Frame(const RankContext& context, const Operand<T>& operand, Routine routine, bool vectors,
        const Subset& subset);

  // --- Memory, after Prepare ---------------------------------------------------------------------
  T* panels() const { return space_.Get<T>(panels_); }
  T* gathered() const { return space_.Get<T>(gathered_); }
  Precision precision() const { return plan_.precision; }
  T* sums() const { return space_.Get<T>(accumulated_); }
  T* eigen() const { return space_.Get<T>(eigen_); }
  T* rows() const { return space_.Get<T>(rows_); }
  void* host() const { return host_ == nullptr ? nullptr : host_->data(); }
  Inverses<T> inverses() const { return {plan_.inverse_order, space_.Get<T>(inverses_)}; }
  RightHandSides<T> right_hand_sides(int64_t nrhs, T* x) const {
    return {nrhs, x, space_.Get<T>(share_)};
  }
  const Outcome<T>& outcome() const { return *outcome_; }

  // Whether this rank has a part in the work on the matrix, and with whom.
  bool works() const { return !plan_.gathers || outer_.comm.rank() == kRoot; }
  const RankContext& context() const { return plan_.gathers ? alone_ : outer_; }
  bool spreads() const { return plan_.spreads; }
  const Tiles& tiles() const { return plan_.tiles; }
  Matrix<T> matrix() const { return matrix(plan_.tiles); }
  // The same memory as the factorization takes it.
  Matrix<T> factored() const { return matrix(plan_.factored); }

  // --- Steps -------------------------------------------------------------------------------------
  // Workspace, the copy of A, an outcome that nobody has anything to say of.
  Status Prepare();
  // The same, and what Potrf needs.
  Status PrepareFactor();
  // The ranks' rows to the tiles that are worked on, and the columns of those back to rows: the
  // lower triangle, and its image above the diagonal.
  Status Take();
  Status Untile();
  Status Return();

 private:
  Frame(const RankContext& context, const Operand<T>& operand, Routine routine, const Sizes& sizes);

  Device& device() const { return outer_.device; }
  Matrix<T> matrix(const Tiles& tiles) const;
  Blocks<T> blocks() const { return {operand_.n, operand_.block, operand_.a}; }

  const RankContext& outer_;
  const Operand<T>& operand_;
  SoloCommunicator solo_;
  const RankContext alone_;  // the root's, where it has all
  const Plan<T> plan_;
  Workspace space_;
  std::unique_ptr<Buffer> host_;
  size_t panels_, overflow_, gathered_, share_, accumulated_, inverses_, eigen_, rows_, records_,
      status_;
  std::optional<Outcome<T>> outcome_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_FRAME_H_
