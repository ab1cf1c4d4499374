// Solver: one rank's part of a call of cuSOLVERMg, which potrs, potri and syevd share.
#ifndef JAXMG_XLA_FFI_VENDOR_CUSOLVERMG_MG_SOLVER_H_
#define JAXMG_XLA_FFI_VENDOR_CUSOLVERMG_MG_SOLVER_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "xla_ffi/device/cuda/device.h"
#include "xla_ffi/engine/routines.h"
#include "xla_ffi/vendor/cusolvermg/mg_layout.h"
#include "xla_ffi/vendor/cusolvermg/mg_library.h"

namespace jaxmg::mg {

template <typename T>
class Solver {
 public:
  static constexpr cudaDataType kType = CudaType<T>::kValue;
  using Pointers = std::vector<void*>;

  Solver(const RankContext& context, const Operand<T>& operand, int64_t width, bool always_copy)
      : context_(context),
        device_(static_cast<CudaDevice&>(context.device)),
        comm_(context.comm),
        operand_(operand),
        ranks_(comm_.size()),
        in_place_(!always_copy && (ranks_ == 1 || DividingWidth(operand.block, width) > 0)),
        tiles_{operand.n, ranks_,
               in_place_ && ranks_ > 1 ? DividingWidth(operand.block, width)
                                       : std::min(width, operand.n)} {}

  const TileColumns& tiles() const { return tiles_; }
  CudaDevice& device() { return device_; }
  Communicator& comm() { return comm_; }
  int rank() const { return comm_.rank(); }
  int64_t n() const { return operand_.n; }
  T* tile(int64_t j) const {
    return tiled_ + tiles_.slot(j) * tiles_.width * n() + tiles_.begin(j);
  }
  T* staging() const { return staging_; }

  // Allocates memory and initializes the library; returns the same Status on every rank. `extra` is
  // the number of elements of this rank's part of the library's second operand. `size` queries the
  // library, on rank 0, for the elements of its workspace.
  Status Prepare(int64_t extra, const std::function<Status(int64_t*)>& size) {
    JAXMG_RETURN_IF_ERROR(RunCollectively(comm_, [&]() -> Status {
      // Reserves memory for later writes, which could not report a failed allocation.
      peers_.reserve(ranks_);
      work_.reserve(ranks_);
      JAXMG_RETURN_IF_ERROR(Open<CusolverMg>());
      JAXMG_RETURN_IF_ERROR(Allocate(extra));
      JAXMG_RETURN_IF_ERROR(outcome_->Init());
      return CopyIfApart(device_, operand_.source, operand_.a, operand_.block * n());
    }));
    // The ranks are threads of one process and read each other's members between agreements.
    std::vector<int64_t> addresses;
    JAXMG_RETURN_IF_ERROR(comm_.Share(reinterpret_cast<int64_t>(this), &addresses));
    for (int64_t address : addresses) peers_.push_back(reinterpret_cast<const Solver*>(address));
    JAXMG_RETURN_IF_ERROR(OnRoot([&]() -> Status {
      if (n() > std::numeric_limits<int>::max()) {
        return Error(Code::kInvalidArgument, "cuSOLVERMg takes no order above 2^31 - 1");
      }
      std::vector<int> ordinals;
      for (const Solver* peer : peers_) {
        ordinals.push_back(peer->device_.ordinal());
        a_.push_back(peer->tiled_);
        extras_.push_back(peer->extra_);
      }
      JAXMG_RETURN_IF_ERROR(Session::Start(ordinals, &session_));
      JAXMG_RETURN_IF_ERROR(descriptor_.Set(session_->grid(), n(), n(), tiles_.width, kType));
      return size(&elements_);
    }));
    if (rank() != 0) elements_ = peers_[0]->elements_;
    JAXMG_RETURN_IF_ERROR(
        RunCollectively(comm_, [&] { return AllocateElements(elements_, &workspace_); }));
    for (const Solver* peer : peers_) work_.push_back(peer->workspace_);
    return Status::Ok();
  }

  // Runs `step` on every rank, and waits until its device is idle, as the library requires.
  Status Step(const std::function<Status()>& step) {
    return RunCollectively(comm_, [&]() -> Status {
      JAXMG_RETURN_IF_ERROR(step());
      return device_.Synchronize();
    });
  }

  Status ToTiles() {
    if (!in_place_) {
      return CopyPieces(context_, tiles_, operand_.block, operand_.a, tiled_, /*to_tiles=*/true);
    }
    return ToBlockCyclic(context_, matrix(), Region::kLower, staging_);
  }

  // Moves the lower triangle back to contiguous blocks.
  Status ToBlocks() {
    if (in_place_) return ToContiguous(context_, matrix(), Region::kLower, staging_);
    return CopyPieces(context_, tiles_, operand_.block, operand_.a, tiled_, /*to_tiles=*/false);
  }

  // Returns the contiguous blocks as the engine's matrix.
  Matrix<T> matrix() const {
    return {Tiles(n(), operand_.block, ranks_, tiles_.width), rank(), n(), operand_.a, nullptr};
  }

  // Calls the library on rank 0 while the other ranks wait. Every rank calls this between two
  // steps. All devices are idle before and after. *info is LAPACK's on every rank.
  Status Call(const std::function<cusolverStatus_t(int*)>& call, const char* routine, int* info) {
    JAXMG_RETURN_IF_ERROR(OnRoot([&]() -> Status {
      CurrentDevice current;  // restores the current device, which the library may change
      JAXMG_RETURN_IF_ERROR(current.Set(device_.ordinal()));
      library_info_ = 0;
      cusolverStatus_t result;
      {
        const Range range(device_, Stream::kMain, routine, 0);
        result = call(&library_info_);
        for (const Solver* peer : peers_) {  // each device reads the memory of the others
          JAXMG_RETURN_IF_ERROR(current.Set(peer->device_.ordinal()));
          JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaDeviceSynchronize(), routine);
        }
        JAXMG_RETURN_IF_ERROR(current.Set(device_.ordinal()));
      }
      // CUSOLVER_STATUS_INTERNAL_ERROR with info > 0 means that the matrix is not positive
      // definite.
      if (library_info_ > 0) return Status::Ok();
      JAXMG_CHECK_CUDA(result, routine, " of order ", n(), " in tiles of ", tiles_.width,
                       " columns on ", ranks_, " GPUs, info ", library_info_);
      return Status::Ok();
    }));
    *info = peers_[0]->library_info_;
    return Status::Ok();
  }

  Status Factor(int* info) {
    return Call(
        [&](int* i) {
          return library().cusolverMgPotrf(handle(), CUBLAS_FILL_MODE_LOWER, order(), a(), 1, 1,
                                           descriptor(), kType, work(), lwork(), i);
        },
        "cusolverMgPotrf", info);
  }

  const Outcome<T>& outcome() const { return *outcome_; }

  // Sets *status from the library's info; if that is 0, from NaN on the factor's diagonal.
  Status SetStatus(int info) {
    if (info > 0) {
      JAXMG_RETURN_IF_ERROR(device_.FillInt32(Stream::kMain, outcome_->info(), 1, info));
    }
    JAXMG_RETURN_IF_ERROR(device_.FillInt32(Stream::kMain, failures_, 2, 0));
    CudaStatus& status_kernels = device_.cuda_status();
    for (int64_t j = rank(); info == 0 && j < tiles_.count(); j += ranks_) {
      JAXMG_RETURN_IF_ERROR(status_kernels.CheckFactor(Stream::kMain, tiles_.columns(j), tile(j),
                                                       n(), tiles_.begin(j), failures_,
                                                       failures_ + 1, outcome_->info()));
    }
    return outcome_->Set();
  }

  Status LogDet(Real<T>* log_det) {
    Blas<T>& blas = device_.blas<T>();
    for (int64_t j = rank(); j < tiles_.count(); j += ranks_) {
      JAXMG_RETURN_IF_ERROR(
          blas.AddLogDet(Stream::kMain, tiles_.columns(j), tile(j), n(), outcome_->log_det()));
    }
    JAXMG_RETURN_IF_ERROR(outcome_->Set());
    return outcome_->SetLogDet(log_det);
  }

  Status OnRoot(const std::function<Status()>& step) {
    return RunCollectively(comm_, [&] { return rank() == 0 ? step() : Status::Ok(); });
  }

  // The arguments of the library, on rank 0.
  const CusolverMg& library() const { return Get<CusolverMg>(); }
  cusolverMgHandle_t handle() const { return session_->handle(); }
  cudaLibMgGrid_t grid() const { return session_->grid(); }
  cudaLibMgMatrixDesc_t descriptor() const { return descriptor_.get(); }
  int order() const { return static_cast<int>(n()); }
  void** a() { return a_.data(); }
  void** work() { return work_.data(); }
  int64_t lwork() const { return elements_; }
  const Pointers& extras() const { return extras_; }
  T* extra() const { return extra_; }

 private:
  Status Allocate(int64_t extra) {
    char* records = nullptr;
    JAXMG_RETURN_IF_ERROR(AllocateElements(Outcome<T>::Bytes(ranks_), &records));
    outcome_.emplace(context_, /*gathers=*/false, records, operand_.status);
    JAXMG_RETURN_IF_ERROR(AllocateElements(2, &failures_));
    const int64_t rows = std::max(n(), operand_.block);
    JAXMG_RETURN_IF_ERROR(AllocateElements(rows * tiles_.width, &staging_));
    JAXMG_RETURN_IF_ERROR(AllocateElements(extra, &extra_));
    tiled_ = operand_.a;
    if (in_place_) return Status::Ok();
    return AllocateElements(n() * tiles_.slots() * tiles_.width, &tiled_);
  }

  template <typename U>
  Status AllocateElements(int64_t count, U** data) {
    std::unique_ptr<Buffer> buffer;
    JAXMG_RETURN_IF_ERROR(device_.Allocate(count * sizeof(U), &buffer));
    *data = buffer->template as<U>();
    return Status::Ok();
  }

  const RankContext& context_;
  CudaDevice& device_;
  Communicator& comm_;
  const Operand<T>& operand_;
  const int ranks_;
  const bool in_place_;
  const TileColumns tiles_;
  std::optional<Outcome<T>> outcome_;
  int32_t* failures_ = nullptr;  // kNoInfo, and the info of a tile
  T* staging_ = nullptr;
  T* extra_ = nullptr;
  T* tiled_ = nullptr;
  T* workspace_ = nullptr;  // the library's
  int64_t elements_ = 0;
  int library_info_ = 0;              // rank 0's
  std::vector<const Solver*> peers_;  // of all ranks, including this one
  Pointers a_, extras_, work_;        // rank 0's
  std::unique_ptr<Session> session_;
  Descriptor descriptor_;
};

}  // namespace jaxmg::mg

#endif  // JAXMG_XLA_FFI_VENDOR_CUSOLVERMG_MG_SOLVER_H_
