#include "xla_ffi/engine/potrs.h"

#include <algorithm>
#include <array>
#include <complex>
#include <memory>

namespace jaxmg {

template <typename T>
Status BackSubstitution(const RankContext& context, const Matrix<T>& matrix,
                        const RightHandSides<T>& x) {
  const Tiles& tiles = matrix.tiles;
  Device& device = context.device;
  Communicator& comm = context.comm;
  Blas<T>& blas = device.blas<T>();
  const int64_t nrhs = x.count, ld = matrix.ld();
  if (nrhs == 0) return Status::Ok();
  auto mine = [&](int64_t k) { return tiles.owner(k) == matrix.rank; };
  // The `count` columns of L from `columns` on, of this rank's slots from `slot` on, by rows k.
  auto subtract = [&](Stream stream, int64_t k, int64_t slot, const T* columns, int64_t count) {
    return blas.Gemm(stream, Op::kNone, Op::kNone, nrhs, count, tiles.width(k), -1,
                     x.column(tiles.offset(k)), nrhs, columns + tiles.offset(k), ld, 1,
                     x.of_slot(tiles, slot), nrhs);
  };
  // subtracted: kMain has dealt with tile k, by the parity of k.
  std::array<std::shared_ptr<Event>, 2> solved, subtracted;
  for (auto* events : {&solved, &subtracted}) {
    for (auto& event : *events) JAXMG_RETURN_IF_ERROR(device.NewEvent(&event));
  }
  JAXMG_RETURN_IF_ERROR(Order(device, Stream::kMain, Stream::kPanel));
  JAXMG_RETURN_IF_ERROR(Order(device, Stream::kMain, Stream::kCopy));
  const int64_t last = tiles.nonempty() - 1;
  for (int64_t k = last; k >= 0; --k) {
    const Bytes2D block = Block(x.column(tiles.offset(k)), nrhs, nrhs, tiles.width(k));
    const Stream stream = mine(k) ? Stream::kPanel : Stream::kCopy;
    if (mine(k)) {
      const Range range(device, Stream::kPanel, "solve tile", k);
      JAXMG_RETURN_IF_ERROR(SolveBackward(device, stream, DiagonalOf(matrix, k), nrhs,
                                          x.of_slot(tiles, tiles.slot(k)),
                                          x.column(tiles.offset(k))));
    }
    JAXMG_RETURN_IF_ERROR(Broadcast(comm, stream, tiles.owner(k), block));
    JAXMG_RETURN_IF_ERROR(device.Record(stream, solved[k % 2].get()));
    // What is solved next comes first, the rest beside it. kMain has subtracted tiles beyond k.
    if (k > 0 && mine(k - 1)) {
      if (k < last) JAXMG_RETURN_IF_ERROR(device.Wait(Stream::kPanel, *subtracted[(k + 1) % 2]));
      JAXMG_RETURN_IF_ERROR(device.Wait(Stream::kPanel, *solved[k % 2]));
      const int64_t slot = tiles.slot(k - 1);
      JAXMG_RETURN_IF_ERROR(
          subtract(Stream::kPanel, k, slot, matrix.slot(slot), tiles.width(k - 1)));
    }
    JAXMG_RETURN_IF_ERROR(device.Wait(Stream::kMain, *solved[k % 2]));
    {
      const Range range(device, Stream::kMain, "substitute", k);
      JAXMG_RETURN_IF_ERROR(
          matrix.ForRuns(0, tiles.slots_before(matrix.rank, std::max<int64_t>(k - 1, 0)),
                         [&](int64_t slot, const T* columns, int64_t count) {
                           return subtract(Stream::kMain, k, slot, columns, count);
                         }));
    }
    JAXMG_RETURN_IF_ERROR(device.Record(Stream::kMain, subtracted[k % 2].get()));
  }
  for (Stream stream : {Stream::kPanel, Stream::kCopy}) {
    JAXMG_RETURN_IF_ERROR(Order(device, stream, Stream::kMain));
  }
  return WaitAllSent(comm, Stream::kMain);
}

#define JAXMG_INSTANTIATE(T) \
  template Status BackSubstitution(const RankContext&, const Matrix<T>&, const RightHandSides<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
