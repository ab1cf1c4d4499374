#include "xla_ffi/engine/core/gather.h"

#include <complex>

#include "xla_ffi/engine/core/frame.h"

namespace jaxmg {

template <typename T>
Status GatherBlocks(const RankContext& context, const Blocks<T>& blocks, Region region, T* whole) {
  const int64_t rows = blocks.rows;
  auto part = [&](int rank, const T* columns) {
    const int64_t begin = region == Region::kLower ? blocks.begin(rank) : 0;
    return Block(columns + begin, rows, rows - begin, blocks.width(rank));
  };
  const int rank = context.comm.rank();
  if (rank != kRoot) {
    if (blocks.width(rank) == 0) return Status::Ok();
    return context.comm.Send(Stream::kMain, kRoot, part(rank, blocks.data));
  }
  JAXMG_RETURN_IF_ERROR(
      context.device.CopyWithin(Stream::kMain, part(kRoot, whole), part(kRoot, blocks.data)));
  for (int r = 1; r < context.comm.size() && blocks.width(r) > 0; ++r) {
    JAXMG_RETURN_IF_ERROR(
        context.comm.Recv(Stream::kMain, r, part(r, whole + blocks.begin(r) * rows)));
  }
  return Status::Ok();
}

template <typename T>
Status Scatter(const RankContext& context, const T* whole, const Blocks<T>& blocks) {
  const int64_t rows = blocks.rows;
  auto columns = [&](int rank, const T* data) {
    return Block(data, rows, rows, blocks.width(rank));
  };
  const int rank = context.comm.rank();
  if (rank != kRoot) {
    if (blocks.width(rank) == 0) return Status::Ok();
    return context.comm.Recv(Stream::kMain, kRoot, columns(rank, blocks.data));
  }
  for (int r = 1; r < context.comm.size() && blocks.width(r) > 0; ++r) {
    JAXMG_RETURN_IF_ERROR(
        context.comm.Send(Stream::kMain, r, columns(r, whole + blocks.begin(r) * rows)));
  }
  JAXMG_RETURN_IF_ERROR(
      context.device.CopyWithin(Stream::kMain, columns(kRoot, blocks.data), columns(kRoot, whole)));
  return WaitAllSent(context.comm, Stream::kMain);
}

template <typename T>
Status AllGatherRoutine(const RankContext& context, int64_t count, const T* part, T* all) {
  return RunOnAllRanks(
      context.comm, [] { return Status::Ok(); },
      [&]() -> Status {
        if (count == 0) return Status::Ok();
        return AllGather(context.comm, context.device, Stream::kMain, part, all, count * sizeof(T));
      });
}

#define JAXMG_INSTANTIATE(T)                                                      \
  template Status GatherBlocks(const RankContext&, const Blocks<T>&, Region, T*); \
  template Status Scatter(const RankContext&, const T*, const Blocks<T>&);        \
  template Status AllGatherRoutine(const RankContext&, int64_t, const T*, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
