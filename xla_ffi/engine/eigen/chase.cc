#include "xla_ffi/engine/eigen/chase.h"

#include <array>
#include <complex>
#include <numeric>
#include <vector>

#include "xla_ffi/engine/core/double_buffer.h"
#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/stage.h"

namespace jaxmg {
namespace {

template <typename T>
Bytes2D Message(const ChaseShape& shape, int64_t k, const T* data) {
  return Block(data, shape.elements(k), shape.elements(k), 1);
}

// The maximum number of elements of a group's blocks.
int64_t GroupElements(const ChaseShape& shape) {
  const int64_t width = std::min(shape.group, shape.sweeps());
  return shape.StepsOf(0) * (shape.b + width) * width;
}

int64_t BlockElements(const ChaseShape& shape) {
  return shape.bundle / shape.group * GroupElements(shape);
}

// Returns the number of columns to apply at a time: so few that the rows that a bundle's groups
// access in two consecutive steps stay in a cache, and enough for fast products.
template <typename T>
int64_t ColumnsAtOnce(const Tuning& tuning, const ChaseShape& shape, int64_t columns) {
  if (tuning.resident_bytes == 0) return columns;
  const int64_t rows = (shape.bundle / shape.group + 1) * (shape.group + shape.b);
  return std::max<int64_t>(tuning.resident_bytes / (rows * static_cast<int64_t>(sizeof(T))), 32);
}

}  // namespace

int64_t ChaseWorkspace(const ChaseShape& shape, int rank, bool vectors) {
  if (rank != kRoot || shape.ranks == 1 || !vectors || shape.sweeps() == 0) return 0;
  return 2 * shape.elements(0);
}

int64_t ApplyChaseWorkspace(const ChaseShape& shape, int64_t columns) {
  if (shape.sweeps() == 0) return 0;
  return 2 * shape.elements(0) + 2 * BlockElements(shape) + shape.bundle * columns;
}

template <typename T>
Status ChaseBulges(const RankContext& context, const ChaseShape& shape, bool vectors, T* band,
                   int64_t ldb, Real<T>* d, Real<T>* e, T* bundles, T* workspace) {
  const int64_t n = shape.n;
  const int rank = context.comm.rank();
  if (n == 0) return Status::Ok();
  Flow flow(context);
  if (rank == kRoot) {
    Stage stage(context.device, "chase bulges", vectors ? shape.bundles() : 1,
                ChaseWork(n, shape.b, shape.ranks));
    if (!vectors) {
      Step<T> on(flow, Stream::kMain, "chase", 0);
      on.Chase(n, shape.b, band, ldb, int64_t{0}, shape.sweeps(), nullptr, int64_t{0}, nullptr,
               int64_t{0});
      stage.Done(Stream::kMain, 1);
    }
    // Two buffers alternate as the source of sends.
    std::array<Room, 2> rooms;
    int64_t sent = 0;
    for (int64_t k = 0; vectors && k < shape.bundles(); ++k) {
      Step<T> on(flow, Stream::kMain, "chase", k);
      const int owner = shape.owner(k);
      Room& room = rooms[sent % 2];
      T* v = bundles + shape.offset(k);
      if (owner != kRoot) {
        v = workspace + sent % 2 * shape.elements(0);
        on.AwaitsSent(room);
      }
      on.Chase(n, shape.b, band, ldb, shape.first(k), shape.width(k), v, shape.rows(k),
               v + shape.rows(k) * shape.width(k), shape.steps(k));
      stage.Done(Stream::kMain, k + 1);
      if (owner == kRoot) continue;
      on.Send(owner, Message(shape, k, v));
      flow.NoteSent(room);
      ++sent;
    }
    Step<T>(flow, Stream::kMain).TakeTridiagonal(n, band, ldb, d, e);
  } else if (vectors) {
    for (int64_t k = rank; k < shape.bundles(); k += shape.ranks) {
      Step<T>(flow, Stream::kMain).Recv(kRoot, Message(shape, k, bundles + shape.offset(k)));
    }
  }
  Step<T>(flow, Stream::kMain).Broadcast(kRoot, Block(d, n, n, 1));
  if (n > 1) Step<T>(flow, Stream::kMain).Broadcast(kRoot, Block(e, n - 1, n - 1, 1));
  return flow.Finish();
}

template <typename T>
Status ApplyChase(const RankContext& context, const ChaseShape& shape, const T* bundles,
                  int64_t columns, T* z, T* workspace) {
  if (shape.sweeps() == 0) return Status::Ok();
  const int rank = context.comm.rank();
  T* blocks = workspace + 2 * shape.elements(0);
  T* weighted = blocks + BlockElements(shape);
  T* products = weighted + BlockElements(shape);
  const int64_t at_once = ColumnsAtOnce<T>(context.device.tuning(), shape, columns);
  auto place = [&](int64_t k, const T* buffer) {
    return shape.owner(k) == rank ? bundles + shape.offset(k) : buffer;
  };
  auto gather = [&](Step<T>& on, int64_t k, T* buffer) {
    on.Broadcast(shape.owner(k), Message(shape, k, place(k, buffer)));
  };
  // Applies the groups of a bundle whose blocks are expanded, from sweep `first` on.
  auto apply_groups = [&](Step<T>& on, int64_t first, int64_t begin, int64_t end, int64_t width) {
    const SweepGroups groups = {shape.n, shape.b, first, shape.group, width, GroupElements(shape),
                                begin,   end};
    on.ApplyGroups(groups, columns, at_once, blocks, weighted, z, columns, products);
  };
  // Multiplies by all sweeps from the left, so the last sweep comes first.
  auto apply = [&](Step<T>& on, int64_t k, const T* buffer) {
    if (columns == 0) return;
    const T* v = place(k, buffer);
    const int64_t rows = shape.rows(k), steps = shape.steps(k);
    const T* tau = v + rows * shape.width(k);
    const int64_t groups = (shape.width(k) + shape.group - 1) / shape.group;
    auto expand = [&](int64_t g, int64_t width) {
      const int64_t past = g * shape.group;  // the sweeps of the bundle before the group
      on.ExpandReflectors(shape.n, shape.b, shape.first(k) + past, width, v + past * rows + past,
                          rows, tau + past * steps, steps, blocks + g * GroupElements(shape),
                          weighted + g * GroupElements(shape));
    };
    // The last group may be narrower, so it is applied separately.
    const int64_t last = shape.width(k) - (groups - 1) * shape.group;
    const int64_t alike = last == shape.group ? groups : groups - 1;
    if (alike < groups) {
      expand(alike, last);
      apply_groups(on, shape.first(k), alike, groups, last);
    }
    for (int64_t g = 0; g < alike; ++g) expand(g, shape.group);
    if (alike > 0) apply_groups(on, shape.first(k), 0, alike, shape.group);
  };
  std::vector<int64_t> order(shape.bundles());
  std::iota(order.rbegin(), order.rend(), 0);
  Flow flow(context);
  Stage stage(context.device, "apply the bulges' reflectors", shape.bundles(),
              2 * BackWork(shape.n, columns * shape.ranks));
  DoubleBuffer<T>(flow, workspace, shape.elements(0))
      .ForEach(order, gather, "unmtr", apply, &stage);
  return flow.Finish();
}

#define JAXMG_INSTANTIATE(T)                                                                      \
  template Status ChaseBulges(const RankContext&, const ChaseShape&, bool, T*, int64_t, Real<T>*, \
                              Real<T>*, T*, T*);                                                  \
  template Status ApplyChase(const RankContext&, const ChaseShape&, const T*, int64_t, T*, T*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
