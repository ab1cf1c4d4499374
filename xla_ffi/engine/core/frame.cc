#include "xla_ffi/engine/core/frame.h"

#include <complex>

namespace jaxmg {

Status RunOnAllRanks(Communicator& comm, const std::function<Status()>& prepare,
                     const std::function<Status()>& work) {
  JAXMG_RETURN_IF_ERROR(comm.Agree(Guarded(prepare)));
  // Checked first, because a library's routine can't be stopped, and `work` may begin with one.
  const Status status = comm.failed() ? GivenUp(comm.Failure()) : Guarded(work);
  if (!status.ok()) comm.Abort(status);
  return comm.Agree(status);
}

template <typename T>
Frame<T>::Frame(const RankContext& context, const Operand<T>& operand, const RoutineSpace<T>& space)
    : outer_(context),
      operand_(operand),
      space_(space),
      solo_(&context.comm),
      alone_({context.device, solo_}),
      workspace_(space.pieces),
      status_(workspace_.Reserve<int32_t>(operand.status == nullptr ? 1 : 0)) {}

template <typename T>
Matrix<T> Frame<T>::matrix(const Tiles& tiles) const {
  T* overflow = operand_.overflow != nullptr ? operand_.overflow : at(space_.overflow);
  return {tiles, context().comm.rank(), operand_.n, space_.gathers ? gathered() : operand_.a,
          overflow};
}

template <typename T>
Status Frame<T>::Prepare() {
  JAXMG_RETURN_IF_ERROR(workspace_.Allocate(device()));
  if (space_.host_bytes > 0) {
    JAXMG_RETURN_IF_ERROR(device().AllocateOnHost(space_.host_bytes, &host_));
  }
  outcome_.emplace(outer_, space_.gathers, workspace_.Get(space_.records),
                   operand_.status != nullptr ? operand_.status : workspace_.Get(status_));
  JAXMG_RETURN_IF_ERROR(
      CopyIfApart(device(), operand_.source, operand_.a, operand_.block * operand_.n));
  return outcome_->Init();
}

template <typename T>
Status Frame<T>::Take(Region region) {
  if (!space_.gathers) return ToBlockCyclic(outer_, matrix(), region, panels());
  JAXMG_RETURN_IF_ERROR(outcome_->GatherRecords());
  return GatherBlocks(outer_, blocks(), region, gathered());
}

template <typename T>
Status Frame<T>::Untile(Region region) {
  return works() ? ToContiguous(context(), matrix(), region, panels()) : Status::Ok();
}

template <typename T>
Status Frame<T>::Return() {
  return space_.gathers ? Scatter(outer_, gathered(), blocks()) : Status::Ok();
}

#define JAXMG_INSTANTIATE(T) template class Frame<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
