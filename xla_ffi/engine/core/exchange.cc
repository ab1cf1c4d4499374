#include "xla_ffi/engine/core/exchange.h"

#include <complex>

#include "xla_ffi/engine/core/flow.h"

namespace jaxmg {
namespace {

// Calls f(first, count) for runs of columns of a block of `height` rows. A run has at most `room`
// elements, or one column.
template <typename F>
void ForPieces(int64_t height, int64_t begin, int64_t width, int64_t room, const F& f) {
  if (height == 0) return;
  const int64_t step = std::max<int64_t>(1, room / height);
  for (int64_t column = begin; column < begin + width; column += step) {
    f(column, std::min(step, begin + width - column));
  }
}

// Sends the block from(peer) to each peer, which receives it into its block to(this rank).
template <typename T, typename From, typename To>
Status Exchange(const RankContext& context, const From& from, const To& to) {
  const int rank = context.comm.rank(), ranks = context.comm.size();
  Flow flow(context);
  Step<T> on(flow, Stream::kMain, "exchange");
  auto empty = [](const Bytes2D& block) { return block.height == 0 || block.columns == 0; };
  for (int step = 1; step < ranks; ++step) {
    const int peer = (rank + step) % ranks;
    if (!empty(from(peer))) on.Send(peer, from(peer));
  }
  if (!empty(from(rank))) on.CopyWithin(to(rank), from(rank));
  for (int step = 1; step < ranks; ++step) {
    const int peer = (rank - step + ranks) % ranks;
    if (!empty(to(peer))) on.Recv(peer, to(peer));
  }
  return flow.Finish();
}

// The part of a rank's columns, stored as their conjugate transpose, in the rows of `peer`.
template <typename T>
Bytes2D InColumns(int rank, int peer, const Distribution& rows, const Distribution& columns,
                  const T* z) {
  const int64_t width = columns.width(rank), ldz = std::max<int64_t>(width, 1);
  return Block(z + rows.begin(peer) * ldz, ldz, width, rows.width(peer));
}

// The part of a rank's rows in the columns of `peer`.
template <typename T>
Bytes2D InRows(int rank, int peer, const Distribution& rows, const Distribution& columns,
               const T* a) {
  return Block(a + columns.begin(peer), columns.count, columns.width(peer), rows.width(rank));
}

}  // namespace

template <typename T>
Status RowsToColumns(const RankContext& context, const Distribution& rows,
                     const Distribution& columns, const Real<T>* q, int64_t ldq, T* z, T* staging,
                     int64_t staging_size) {
  const int rank = context.comm.rank(), ranks = context.comm.size();
  const int64_t first = columns.begin(rank), width = columns.width(rank);
  const int64_t ldz = std::max<int64_t>(width, 1);
  // The staging holds the received real numbers and, for complex T, their conversion to T.
  const int64_t room = staging_size / (kIsComplex<T> ? 3 : 1) * (kIsComplex<T> ? 2 : 1);
  auto* reals = reinterpret_cast<Real<T>*>(staging);
  T* widened = staging + staging_size / 3;
  Flow flow(context);
  Step<T> on(flow, Stream::kMain, "exchange");
  auto store = [&](int peer, int64_t height, int64_t column, int64_t count, const Real<T>* from,
                   int64_t ld) {
    T* to = z + rows.begin(peer) * ldz + (column - first);
    if constexpr (kIsComplex<T>) {
      on.FromReal(height, count, from, ld, widened, height);
      on.ConjTranspose(height, count, widened, height, to, ldz);
    } else {
      on.ConjTranspose(height, count, from, ld, to, ldz);
    }
  };
  for (int step = 1; step < ranks; ++step) {
    const int peer = (rank + step) % ranks;
    ForPieces(rows.width(rank), columns.begin(peer), columns.width(peer), room,
              [&](int64_t column, int64_t count) {
                on.Send(peer, Block(q + column * ldq, ldq, rows.width(rank), count));
              });
  }
  for (int step = 0; step < ranks; ++step) {
    const int peer = (rank - step + ranks) % ranks;
    const int64_t height = rows.width(peer);
    ForPieces(height, first, width, room, [&](int64_t column, int64_t count) {
      if (peer == rank) return store(peer, height, column, count, q + column * ldq, ldq);
      on.Recv(peer, Block(reals, height, height, count));
      store(peer, height, column, count, reals, height);
    });
  }
  return flow.Finish();
}

template <typename T>
Status ColumnsToRows(const RankContext& context, const Distribution& rows,
                     const Distribution& columns, const T* z, T* a) {
  const int rank = context.comm.rank();
  return Exchange<T>(
      context, [&](int peer) { return InColumns(rank, peer, rows, columns, z); },
      [&](int peer) { return InRows(rank, peer, rows, columns, a); });
}

template <typename T>
Status RowsToColumns(const RankContext& context, const Distribution& rows,
                     const Distribution& columns, const T* a, T* z) {
  const int rank = context.comm.rank();
  return Exchange<T>(
      context, [&](int peer) { return InRows(rank, peer, rows, columns, a); },
      [&](int peer) { return InColumns(rank, peer, rows, columns, z); });
}

#define JAXMG_INSTANTIATE(T)                                                                  \
  template Status RowsToColumns(const RankContext&, const Distribution&, const Distribution&, \
                                const Real<T>*, int64_t, T*, T*, int64_t);                    \
  template Status ColumnsToRows(const RankContext&, const Distribution&, const Distribution&, \
                                const T*, T*);                                                \
  template Status RowsToColumns(const RankContext&, const Distribution&, const Distribution&, \
                                const T*, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
