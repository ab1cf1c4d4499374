#include "xla_ffi/engine/offload/host_rows.h"

#include <complex>

#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/offload/transfer.h"

namespace jaxmg {
namespace {

template <typename T>
Status Fits(const HostRowsOperand<T>& operand, const HostRowsCall& call, const HostChunks& chunks) {
  if (call.next >= static_cast<int64_t>(chunks.chunks.size())) {
    return Error(Code::kInvalidArgument, "host_rows: the matrix in host memory has ",
                 chunks.chunks.size(), " chunks, but the call loads chunk ", call.next);
  }
  for (int i = 0; i < kHostRowBuffers; ++i) {
    const size_t there = operand.elements[i] * sizeof(T);
    if (chunks.bytes[i] > there) {
      return Error(Code::kInvalidArgument, "host_rows: chunks in host memory need buffers of ",
                   chunks.bytes[i], " bytes, not ", there);
    }
  }
  return Status::Ok();
}

// Sets all results to zeros.
template <typename T>
Status ClearResults(Device& device, const TallQrProblem<T>& p) {
  const int64_t n = p.sizes.n, nrhs = p.sizes.with_b ? p.sizes.nrhs : 0;
  JAXMG_RETURN_IF_ERROR(device.blas<T>().SetZero(Stream::kMain, n, n, p.r, n));
  JAXMG_RETURN_IF_ERROR(device.blas<T>().SetZero(Stream::kMain, nrhs, n, p.c, nrhs));
  JAXMG_RETURN_IF_ERROR(device.FillInt32(Stream::kMain, p.power, 1, 0));
  return device.FillInt32(Stream::kMain, p.powers, nrhs, 0);
}

}  // namespace

template <typename T>
Status HostRowsRoutine(const RankContext& context, const HostRowsOperand<T>& operand) {
  Device& device = context.device;
  HostRowsCall call = {};
  std::shared_ptr<const HostChunks> chunks;
  auto prepare = [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(ReadOperand(device, operand.call, &call));
    JAXMG_RETURN_IF_ERROR(device.ReserveHandles());
    for (int i = 0; i < kHostRowBuffers; ++i) {
      JAXMG_RETURN_IF_ERROR(
          CopyIfApart(device, operand.source[i], operand.next[i], operand.elements[i]));
    }
    if (call.next < 0) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(device.ReserveTransfers());
    JAXMG_RETURN_IF_ERROR(operand.find(call.id, &chunks));
    return Fits(operand, call, *chunks);
  };
  Flow flow(context);
  auto load = [&]() -> Status {
    flow.Fork();
    if (chunks == nullptr) return Status::Ok();
    Step<T> on(flow, Stream::kLoad, "load rows", call.next);
    for (const HostPiece& piece : chunks->chunks[call.next]) {
      char* const target = reinterpret_cast<char*>(operand.next[piece.buffer]) + piece.offset;
      on.Copy(Bytes2D{target, piece.pitch, piece.source.height, piece.source.columns},
              piece.source);
    }
    return flow.status();
  };
  JAXMG_RETURN_IF_ERROR(RunOnAllRanks(context.comm, prepare, load));
  const Status status = call.empty != 0
                            ? Guarded([&] { return ClearResults(device, operand.problem); })
                            : TallQrRoutine<T>(context, operand.problem);
  if (chunks == nullptr) return status;
  // Also after a failure, because the caller then frees the memory.
  std::shared_ptr<Event> loaded;
  const Status joined = Guarded([&]() -> Status {
    JAXMG_RETURN_IF_ERROR(device.NewEvent(&loaded));
    JAXMG_RETURN_IF_ERROR(device.Record(Stream::kLoad, loaded.get()));
    return status.ok() ? device.Wait(Stream::kMain, *loaded) : device.AwaitOnHost(*loaded);
  });
  return status.ok() ? joined : status;
}

#define JAXMG_INSTANTIATE(T) \
  template Status HostRowsRoutine(const RankContext&, const HostRowsOperand<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
