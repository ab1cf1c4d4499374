#include "xla_ffi/engine/core/frame.h"

#include <complex>

#include "xla_ffi/engine/cholesky/potri.h"
#include "xla_ffi/engine/core/redistribute.h"
#include "xla_ffi/engine/core/symmetrize.h"

namespace jaxmg {

Status RunOnAllRanks(Communicator& comm, const std::function<Status()>& prepare,
                     const std::function<Status()>& work) {
  JAXMG_RETURN_IF_ERROR(comm.Agree(Guarded(prepare)));
  const Status status = Guarded(work);
  if (!status.ok()) comm.Abort(status);
  return comm.Agree(status);
}

template <typename T>
Frame<T>::Frame(const RankContext& context, const Operand<T>& operand, Routine routine,
                int64_t nrhs)
    : Frame(context, operand, routine,
            Sizes{operand.n, operand.block, operand.tile, nrhs, true, 0, 0, operand.precision}) {}

template <typename T>
Frame<T>::Frame(const RankContext& context, const Operand<T>& operand, Routine routine,
                bool vectors, const Subset& subset)
    : Frame(context, operand, routine,
            Sizes{operand.n, operand.block, operand.tile, 0, vectors, subset.first, subset.last}) {}

template <typename T>
Frame<T>::Frame(const RankContext& context, const Operand<T>& operand, Routine routine,
                const Sizes& sizes)
    : outer_(context),
      operand_(operand),
      alone_({context.device, solo_}),
      plan_(routine, sizes, context.comm.size(), context.comm.rank(), context.device.tuning()) {
  panels_ = space_.Reserve<T>(plan_.panels);
  overflow_ = space_.Reserve<T>(plan_.overflow);
  gathered_ = space_.Reserve<T>(plan_.gathered);
  share_ = space_.Reserve<T>(plan_.share);
  accumulated_ = space_.Reserve<T>(plan_.accumulated);
  inverses_ = space_.Reserve<T>(plan_.inverses);
  eigen_ = space_.Reserve<T>(plan_.eigen);
  rows_ = space_.Reserve<T>(plan_.rows);
  records_ = space_.Reserve<char>(Outcome<T>::Bytes(context.comm.size()));
  status_ = space_.Reserve<int32_t>(operand.status == nullptr ? 1 : 0);
}

template <typename T>
Matrix<T> Frame<T>::matrix(const Tiles& tiles) const {
  T* overflow = operand_.overflow != nullptr ? operand_.overflow : space_.Get<T>(overflow_);
  return {tiles, context().comm.rank(), operand_.n, plan_.gathers ? gathered() : operand_.a,
          overflow};
}

template <typename T>
Status Frame<T>::Prepare() {
  JAXMG_RETURN_IF_ERROR(space_.Allocate(device()));
  if (plan_.host_bytes > 0) {
    JAXMG_RETURN_IF_ERROR(device().AllocateOnHost(plan_.host_bytes, &host_));
  }
  outcome_.emplace(outer_, plan_.gathers, space_.Get<char>(records_),
                   operand_.status != nullptr ? operand_.status : space_.Get<int32_t>(status_));
  JAXMG_RETURN_IF_ERROR(
      CopyIfApart(device(), operand_.source, operand_.a, operand_.block * operand_.n));
  return outcome_->Init();
}

template <typename T>
Status Frame<T>::PrepareFactor() {
  JAXMG_RETURN_IF_ERROR(Prepare());
  if (!works()) return Status::Ok();
  JAXMG_RETURN_IF_ERROR(device().ReserveHandles());
  return device().template blas<T>().ReservePotrf(
      Stream::kPanel, std::min(plan_.factored.width(), operand_.n), matrix().data, operand_.n);
}

template <typename T>
Status Frame<T>::Take() {
  if (!plan_.gathers) return ToBlockCyclic(outer_, matrix(), Region::kLower, panels());
  JAXMG_RETURN_IF_ERROR(outcome_->GatherRecords());
  return GatherLower(outer_, blocks(), gathered());
}

template <typename T>
Status Frame<T>::Untile() {
  if (!works()) return Status::Ok();
  JAXMG_RETURN_IF_ERROR(ToContiguous(context(), matrix(), Region::kLower, panels()));
  return Symmetrize(context(), matrix(), panels());
}

template <typename T>
Status Frame<T>::Return() {
  return plan_.gathers ? Scatter(outer_, gathered(), blocks()) : Status::Ok();
}

#define JAXMG_INSTANTIATE(T) template class Frame<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
