#include "xla_ffi/engine/eigen/eigenproblem.h"

#include <complex>

#include "xla_ffi/engine/eigen/eigen.h"
#include "xla_ffi/engine/eigen/syevd.h"

namespace jaxmg {

template <typename T>
Status TakeSubset(Device& device, const Operand<T>& operand, const Subset& subset, T* v) {
  if (v == nullptr || v == operand.a) return Status::Ok();
  return device.Copy(Stream::kMain, Block(v, subset.count(), subset.count(), operand.block),
                     Block(operand.a + subset.first, operand.n, subset.count(), operand.block));
}

template <typename T>
Status Eigenproblem<T>::Prepare() {
  JAXMG_RETURN_IF_ERROR(frame_.Prepare());
  if (frame_.spreads()) return context_.device.ReserveHandles();
  if (context_.comm.rank() != kRoot) return Status::Ok();
  const int64_t n = operand_.n;
  return context_.device.solver<T>().ReserveSyevd(Stream::kMain, v_ != nullptr, n,
                                                  frame_.gathered(), n, w_);
}

template <typename T>
Status Eigenproblem<T>::Solve() {
  const Outcome<T>& outcome = frame_.outcome();
  if (frame_.spreads()) {
    return SpreadEigen(context_, frame_.matrix(), subset_, w_, v_, frame_.panels(), frame_.eigen(),
                       frame_.host(), outcome);
  }
  JAXMG_RETURN_IF_ERROR(Syevd(context_, frame_.matrix(), v_ != nullptr, frame_.gathered(),
                              frame_.panels(), w_, outcome.info()));
  JAXMG_RETURN_IF_ERROR(outcome.Set());
  return TakeSubset(context_.device, operand_, subset_, v_);
}

template <typename T>
Status Eigenproblem<T>::PoisonIfFailed() const {
  const Outcome<T>& outcome = frame_.outcome();
  JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(operand_.n, 1, w_));
  if (v_ == nullptr) return Status::Ok();
  return outcome.PoisonIfFailed(subset_.count(), operand_.block, v_);
}

#define JAXMG_INSTANTIATE(T)                                                 \
  template Status TakeSubset(Device&, const Operand<T>&, const Subset&, T*); \
  template class Eigenproblem<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
