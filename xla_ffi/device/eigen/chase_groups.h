// The order of products with the blocks of groups of sweeps, for devices without a kernel for them.
#ifndef JAXMG_XLA_FFI_DEVICE_EIGEN_CHASE_GROUPS_H_
#define JAXMG_XLA_FFI_DEVICE_EIGEN_CHASE_GROUPS_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/device/eigen/chase_kernels.h"

namespace jaxmg {

// Blocks that are applied at the same time: blocks (g + i, j + i), i < count. Each applies to at
// most `rows` columns of z from row(g + i, j + i) on, and to `wide` elements of these from `column`
// on.
struct BlocksAtOnce {
  int64_t g, j, count, rows, column, wide;
};

// Calls apply(BlocksAtOnce) for all blocks of the groups. Each group is one step behind the next
// one; at this distance their rows are disjoint.
template <typename F>
Status ForBlocksAtOnce(const SweepGroups& groups, int64_t columns, int64_t at_once,
                       const F& apply) {
  const int64_t begin = groups.begin, end = groups.end;
  const int64_t times = groups.steps(begin) + end - begin - 1;
  auto step = [&](int64_t time, int64_t g) { return time - (end - 1 - g); };
  for (int64_t column = 0; column < columns; column += at_once) {
    const int64_t wide = std::min(at_once, columns - column);
    for (int64_t time = 0; time < times; ++time) {
      auto row = [&](int64_t g) { return groups.row(g, step(time, g)); };
      const int64_t from = std::max(begin, end - 1 - time);
      int64_t to = from, whole = from;
      for (; to < end && row(to) < groups.n; ++to) {
        if (row(to) + groups.height() <= groups.n) ++whole;
      }
      if (from < whole) {
        JAXMG_RETURN_IF_ERROR(apply(
            BlocksAtOnce{from, step(time, from), whole - from, groups.height(), column, wide}));
      }
      // At most one block reaches the end of the matrix.
      if (whole < to) {
        JAXMG_RETURN_IF_ERROR(
            apply(BlocksAtOnce{whole, step(time, whole), 1, groups.n - row(whole), column, wide}));
      }
    }
  }
  return Status::Ok();
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_EIGEN_CHASE_GROUPS_H_
