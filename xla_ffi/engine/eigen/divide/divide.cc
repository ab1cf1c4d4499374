#include "xla_ffi/engine/eigen/divide/divide.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "xla_ffi/engine/core/stage.h"
#include "xla_ffi/engine/eigen/divide/divide_merges.h"
#include "xla_ffi/engine/eigen/divide/divide_space.h"
#include "xla_ffi/engine/eigen/divide/divide_tree.h"
#include "xla_ffi/engine/eigen/divide/tridiagonal_leaf.h"

namespace jaxmg {
namespace {

constexpr Stream kMain = Stream::kMain;

template <typename R>
class Divide {
 public:
  explicit Divide(const DivideProblem<R>& problem)
      : problem_(problem), device_(problem.context.device), comm_(problem.context.comm) {}

  Status Run(R* d, const R* e, int32_t* info) {
    JAXMG_RETURN_IF_ERROR(device_.FillInt32(kMain, problem_.on_device.info, 1, 0));
    const int64_t n = problem_.n;
    R scale =
        0;  // the matrix is scaled to eigenvalues of at most about 1, so that no square overflows
    for (int64_t i = 0; i < n; ++i) {
      scale = std::max({scale, std::abs(d[i]), i + 1 < n ? std::abs(e[i]) : R(0)});
    }
    if (scale == 0) scale = 1;
    d_.resize(n);
    e_.resize(n);
    for (int64_t i = 0; i < n; ++i) {
      d_[i] = d[i] / scale;
      e_[i] = i + 1 < n ? e[i] / scale : 0;
    }
    DivideTree<R> tree(n, problem_.block, comm_.rank(), comm_.size(), problem_.tuning.leaf,
                       d_.data(), e_.data());
    JAXMG_RETURN_IF_ERROR(SolveLeaves(tree.leaves, tree.levels.empty()));
    const auto levels = static_cast<int64_t>(tree.levels.size());
    Stage stage(device_, "merge", levels, DivideWork(n, problem_.vectors != nullptr));
    for (size_t level = tree.levels.size(); level-- > 0;) {
      stage.Done(kMain, levels - 1 - static_cast<int64_t>(level));
      if (tree.levels[level].empty()) continue;
      const Range range(device_, kMain, "merge", static_cast<int64_t>(level));
      JAXMG_RETURN_IF_ERROR(MergeLevel(problem_, tree.levels[level], d_.data(), &failed_));
    }
    for (int64_t i = 0; i < n; ++i) d[i] = d_[i] * scale;
    *info = failed_ ? 1 : 0;
    return WaitAllSent(comm_, kMain);
  }

 private:
  // If a leaf has rows of two ranks, both solve it. If the whole matrix is a leaf, all ranks solve
  // it.
  Status SolveLeaves(const std::vector<Span>& leaves, bool whole) {
    const EigenvectorRows<R>* vectors = problem_.vectors;
    if (vectors != nullptr && !whole && problem_.rows.begin < problem_.rows.end) {
      JAXMG_RETURN_IF_ERROR(device_.blas<R>().SetZero(
          kMain, problem_.rows.end - problem_.rows.begin, problem_.n, vectors->q, vectors->ld));
    }
    std::vector<R> ends(2 * problem_.tuning.leaf);
    for (const Span& leaf : leaves) {
      // The leaf's vectors, or only their first and last row.
      const int64_t n = leaf.end - leaf.begin, rows = vectors != nullptr ? n : 2;
      R* q = vectors == nullptr ? ends.data()
                                : problem_.on_host.leaves +
                                      (leaf.begin - leaves.front().begin) * problem_.tuning.leaf;
      std::fill_n(q, rows * n, R(0));
      if (vectors == nullptr) {
        q[0] = q[2 * n - 1] = 1;
      } else {
        for (int64_t j = 0; j < n; ++j) q[j * n + j] = 1;
      }
      failed_ |= !SolveLeaf(n, &d_[leaf.begin], &e_[leaf.begin], rows, q, rows,
                            problem_.tuning.leaf_sweeps);
      for (int64_t j = 0; j < n; ++j) {
        problem_.on_host.roots[leaf.begin + j] = d_[leaf.begin + j];
        problem_.on_host.first[leaf.begin + j] = q[j * rows];
        problem_.on_host.last[leaf.begin + j] = q[j * rows + rows - 1];
      }
      if (vectors != nullptr) JAXMG_RETURN_IF_ERROR(CopyLeaf(leaf, whole, q));
    }
    if (leaves.empty() || whole) return Status::Ok();
    const int64_t begin = leaves.front().begin, end = leaves.back().end;
    return device_.Copy(kMain, problem_.Exchanged(problem_.on_device, begin, end),
                        problem_.Exchanged(problem_.on_host, begin, end));
  }

  Status CopyLeaf(const Span& leaf, bool whole, const R* q) {
    const EigenvectorRows<R>* vectors = problem_.vectors;
    const int64_t n = leaf.end - leaf.begin;
    const int64_t begin = std::max(leaf.begin, problem_.rows.begin),
                  end = std::min(leaf.end, problem_.rows.end);
    // If the whole matrix is a leaf, its vectors are the result and already in order.
    const int64_t first = whole ? vectors->first : 0;
    const int64_t columns = whole ? vectors->last - first : n;
    if (begin >= end || columns == 0) return Status::Ok();
    return device_.Copy(kMain,
                        Block(vectors->q + (begin - problem_.rows.begin) + leaf.begin * vectors->ld,
                              vectors->ld, end - begin, columns),
                        Block(q + (begin - leaf.begin) + first * n, n, end - begin, columns));
  }

  const DivideProblem<R>& problem_;
  Device& device_;
  Communicator& comm_;
  std::vector<R> d_, e_;
  bool failed_ = false;
};

}  // namespace

template <typename R>
DivideBytes DivideWorkspace(int64_t n, int64_t block, bool vectors, const DivideTuning& tuning) {
  return {DeviceSpace<R>(nullptr, n, block, vectors, tuning).bytes,
          HostSpace<R>(nullptr, n, block, vectors, tuning).bytes};
}

template <typename R>
Status DivideAndConquer(const RankContext& context, int64_t n, int64_t block, R* d, const R* e,
                        const EigenvectorRows<R>* vectors, const DivideSpace& space, int32_t* info,
                        const DivideTuning& tuning) {
  *info = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (std::isfinite(d[i]) && (i + 1 == n || std::isfinite(e[i]))) continue;
    *info = static_cast<int32_t>(i + 1);
    return Status::Ok();
  }
  if (n == 0) return Status::Ok();
  const DivideProblem<R> problem(context, n, block, vectors, space, tuning);
  return Divide<R>(problem).Run(d, e, info);
}

#define JAXMG_INSTANTIATE(R)                                                                \
  template DivideBytes DivideWorkspace<R>(int64_t, int64_t, bool, const DivideTuning&);     \
  template Status DivideAndConquer(const RankContext&, int64_t, int64_t, R*, const R*,      \
                                   const EigenvectorRows<R>*, const DivideSpace&, int32_t*, \
                                   const DivideTuning&);
JAXMG_INSTANTIATE(float)
JAXMG_INSTANTIATE(double)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
