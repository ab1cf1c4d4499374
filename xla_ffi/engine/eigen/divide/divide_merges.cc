#include "xla_ffi/engine/eigen/divide/divide_merges.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace jaxmg {
namespace {

constexpr Stream kMain = Stream::kMain;

template <typename R>
class Level {
 public:
  Level(const DivideProblem<R>& problem, R* d, bool* failed)
      : problem_(problem),
        device_(problem.context.device),
        comm_(problem.context.comm),
        blas_(device_.blas<R>()),
        kernels_(*device_.eigen<R>().secular),
        n_(problem.n),
        block_(problem.block),
        rank_(comm_.rank()),
        rows_(problem.rows),
        vectors_(problem.vectors),
        tuning_(problem.tuning),
        on_device_(problem.on_device),
        on_host_(problem.on_host),
        d_(d),
        failed_(failed) {}

  // The merges of a level have no rows in common. Each step is enqueued for all of them before the
  // next step, so the host and the devices wait once per step instead of once per merge.
  Status Run(std::vector<Merge<R>>& level) {
    JAXMG_RETURN_IF_ERROR(device_.NewEvent(&reached_));
    JAXMG_RETURN_IF_ERROR(Exchange(level));
    JAXMG_RETURN_IF_ERROR(DeflateAll(level));
    JAXMG_RETURN_IF_ERROR(WaitAllSent(comm_, kMain));
    for (const Merge<R>& m : level) JAXMG_RETURN_IF_ERROR(Begin(m));
    for (const Merge<R>& m : level) JAXMG_RETURN_IF_ERROR(Refine(m));
    for (const Merge<R>& m : level) JAXMG_RETURN_IF_ERROR(Finish(m));
    return Status::Ok();
  }

 private:
  // A piece of this rank's rows of Q in a merge: those above the middle, or those below it.
  struct Part {
    R *q, *work;  // at the merge's first column
    int64_t ld, rows;
    int half;
  };

  bool IsWhole(const Merge<R>& m) const { return m.order() == n_; }

  Status Await() {
    JAXMG_RETURN_IF_ERROR(device_.Record(kMain, reached_.get()));
    return device_.AwaitOnHost(*reached_);
  }

  template <typename F>
  Status ForPeers(const Merge<R>& m, const F& f) const {
    for (int peer = m.first; peer <= m.last; ++peer) {
      if (peer != rank_) JAXMG_RETURN_IF_ERROR(f(peer));
    }
    return Status::Ok();
  }

  // Sends z and the eigenvalues of the halves to all ranks of a merge and to their hosts.
  Status Exchange(const std::vector<Merge<R>>& level) {
    JAXMG_RETURN_IF_ERROR(WaitAllSent(comm_, kMain));
    for (const Merge<R>& m : level) {
      for (int half : {0, 1}) {
        const int64_t row = m.row(half), from = m.from(half), to = m.to(half);
        if (row / block_ != rank_) continue;
        if (vectors_ != nullptr) {
          JAXMG_RETURN_IF_ERROR(kernels_.CopyColumns(
              kMain, 1, to - from, nullptr, vectors_->q + (row - rows_.begin) + from * vectors_->ld,
              vectors_->ld, nullptr, on_device_.first + from, 1));
        }
        JAXMG_RETURN_IF_ERROR(ForPeers(m, [&](int peer) {
          return comm_.Send(kMain, peer, problem_.Exchanged(on_device_, from, to));
        }));
      }
    }
    for (const Merge<R>& m : level) {
      for (int half : {0, 1}) {
        const int owner = static_cast<int>(m.row(half) / block_);
        if (owner == rank_) continue;
        JAXMG_RETURN_IF_ERROR(
            comm_.Recv(kMain, owner, problem_.Exchanged(on_device_, m.from(half), m.to(half))));
      }
    }
    const int64_t begin = level.front().begin, end = level.back().end;
    JAXMG_RETURN_IF_ERROR(device_.Copy(kMain, problem_.Exchanged(on_host_, begin, end),
                                       problem_.Exchanged(on_device_, begin, end)));
    return Await();
  }

  MergeTables<R> Tables(const Merge<R>& m, char* tables) const {
    return {tables + MergeTables<R>::Bytes(m.begin), m.order()};
  }

  Status DeflateAll(std::vector<Merge<R>>& level) {
    std::vector<R> z;
    for (Merge<R>& m : level) {
      // T = diag(T1, T2) + |e| v v^T, where v has a 1 above the middle and e's sign below it. z has
      // norm sqrt(2), because it consists of two rows of orthogonal matrices.
      const R above = std::sqrt(R(0.5)), below = std::copysign(above, m.torn);
      const R* row = vectors_ != nullptr ? on_host_.first : on_host_.last;
      z.resize(m.order());
      for (int64_t i = m.begin; i < m.middle; ++i) z[i - m.begin] = above * row[i];
      for (int64_t i = m.middle; i < m.end; ++i) z[i - m.begin] = below * on_host_.first[i];
      m.found = Deflate(m.order(), m.middle - m.begin, 2 * std::abs(m.torn),
                        on_host_.roots + m.begin, z.data(), Tables(m, on_host_.tables));
    }
    const int64_t begin = MergeTables<R>::Bytes(level.front().begin);
    const int64_t end = MergeTables<R>::Bytes(level.back().end);
    return device_.Copy(kMain, Block(on_device_.tables + begin, end - begin, end - begin, 1),
                        Block(on_host_.tables + begin, end - begin, end - begin, 1));
  }

  std::vector<Part> Parts(const Merge<R>& m) const {
    std::vector<Part> parts;
    for (int half : {0, 1}) {
      if (vectors_ == nullptr) {
        if (IsWhole(m)) continue;
        R* q = half == 0 ? on_device_.first : on_device_.last;
        parts.push_back({q + m.begin, on_device_.rows + half * n_ + m.begin, 1, 1, half});
        continue;
      }
      const int64_t begin = std::max(rows_.begin, m.from(half));
      const int64_t end = std::min(rows_.end, m.to(half));
      if (begin >= end) continue;
      const int64_t offset = begin - rows_.begin + m.begin * vectors_->ld;
      parts.push_back(
          {vectors_->q + offset, vectors_->work + offset, vectors_->ld, end - begin, half});
    }
    return parts;
  }

  // This rank's share of k items.
  Span ShareOf(const Merge<R>& m, int rank) const {
    const int64_t ranks = m.last - m.first + 1, share = (m.found.k + ranks - 1) / ranks;
    const int64_t begin = std::min((rank - m.first) * share, m.found.k);
    return {begin, std::min(begin + share, m.found.k)};
  }

  // Sends this rank's share. `data` is the merge's part of `columns` arrays, which are n elements
  // apart. An empty share is not sent.
  Status SendShare(const Merge<R>& m, R* data, int64_t columns) {
    const Span mine = ShareOf(m, rank_);
    return ForPeers(m, [&](int peer) {
      return comm_.Send(kMain, peer, Block(data + mine.begin, n_, mine.end - mine.begin, columns));
    });
  }
  Status RecvShares(const Merge<R>& m, R* data, int64_t columns) {
    return ForPeers(m, [&](int peer) {
      const Span its = ShareOf(m, peer);
      if (its.begin == its.end) return Status::Ok();
      return comm_.Recv(kMain, peer, Block(data + its.begin, n_, its.end - its.begin, columns));
    });
  }

  // If a merge deflates completely, the eigenproblems of its halves are unchanged; only the vectors
  // of the whole matrix must be sorted.
  bool HasWork(const Merge<R>& m) const { return m.found.k > 0 || IsWhole(m); }

  // Copies the columns that take part to `work`, grouped, and the deflated ones after them.
  // Computes this rank's roots.
  Status Begin(const Merge<R>& m) {
    if (vectors_ == nullptr && !IsWhole(m)) {
      // In rows that are unchanged, the columns of the other half are not initialized.
      JAXMG_RETURN_IF_ERROR(
          blas_.SetZero(kMain, m.end - m.middle, 1, on_device_.first + m.middle, n_));
      JAXMG_RETURN_IF_ERROR(
          blas_.SetZero(kMain, m.middle - m.begin, 1, on_device_.last + m.begin, n_));
    }
    if (!HasWork(m)) return Status::Ok();
    const MergeTables<R> tables = Tables(m, on_device_.tables);
    const Deflation<R>& found = m.found;
    const Span mine = ShareOf(m, rank_);
    if (mine.begin < mine.end) {
      JAXMG_RETURN_IF_ERROR(kernels_.Roots(kMain, found.k, mine.begin, mine.end, tables.d, tables.z,
                                           found.rho, tuning_.evaluations,
                                           on_device_.origin + m.begin, on_device_.tau + m.begin,
                                           on_device_.roots + m.begin, on_device_.info));
      JAXMG_RETURN_IF_ERROR(SendShare(m, on_device_.origin + m.begin, 3));
    }
    if (found.k < m.order()) {
      const int64_t count = m.order() - found.k;
      JAXMG_RETURN_IF_ERROR(
          device_.Copy(kMain, Block(on_device_.roots + m.begin + found.k, count, count, 1),
                       Block(tables.deflated, count, count, 1)));
    }
    for (const Part& part : Parts(m)) {
      if (found.chains > 0) {
        JAXMG_RETURN_IF_ERROR(kernels_.RotateColumns(kMain, part.rows, found.chains, tables.starts,
                                                     tables.first, tables.second, tables.c,
                                                     tables.s, part.q, part.ld));
      }
      JAXMG_RETURN_IF_ERROR(kernels_.CopyColumns(kMain, part.rows, m.order(), tables.columns,
                                                 part.q, part.ld, nullptr, part.work, part.ld));
    }
    return Status::Ok();
  }

  // Receives all roots and computes this rank's share of the refined z.
  Status Refine(const Merge<R>& m) {
    if (m.found.k == 0) return Status::Ok();
    const MergeTables<R> tables = Tables(m, on_device_.tables);
    R *origin = on_device_.origin + m.begin, *refined = on_device_.refined + m.begin;
    JAXMG_RETURN_IF_ERROR(RecvShares(m, origin, 3));
    if (vectors_ == nullptr && IsWhole(m)) return Status::Ok();
    const Span mine = ShareOf(m, rank_);
    if (mine.begin == mine.end) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(kernels_.RefineZ(kMain, m.found.k, mine.begin, mine.end, tables.order,
                                           tables.d, tables.z, m.found.rho, origin,
                                           on_device_.tau + m.begin, refined));
    return SendShare(m, refined, 1);
  }

  Status Finish(const Merge<R>& m) {
    if (IsWhole(m)) return FinishWhole(m);
    if (!HasWork(m)) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(RecvShares(m, on_device_.refined + m.begin, 1));
    const int64_t k = m.found.k;
    JAXMG_RETURN_IF_ERROR(Multiply(m, {0, k}, [](const Part& part, int64_t root, int64_t) {
      return part.q + root * part.ld;
    }));
    for (const Part& part : Parts(m)) {
      if (k == m.order()) break;
      const int64_t offset = k * part.ld;
      JAXMG_RETURN_IF_ERROR(
          device_.CopyWithin(kMain, Block(part.q + offset, part.ld, part.rows, m.order() - k),
                             Block(part.work + offset, part.ld, part.rows, m.order() - k)));
    }
    return Status::Ok();
  }

  // Merges the eigenvalues and computes the position of each column in the requested vectors.
  Status FinishWhole(const Merge<R>& m) {
    JAXMG_RETURN_IF_ERROR(
        device_.Copy(kMain, Block(on_host_.roots, n_, n_, 1), Block(on_device_.roots, n_, n_, 1)));
    JAXMG_RETURN_IF_ERROR(
        device_.Copy(kMain, Block(on_host_.info, 1, 1, 1), Block(on_device_.info, 1, 1, 1)));
    JAXMG_RETURN_IF_ERROR(Await());
    *failed_ |= *on_host_.info != 0;
    std::vector<int32_t> ascending;
    SortRuns(n_, on_host_.roots, &ascending);
    for (int64_t i = 0; i < n_; ++i) d_[i] = on_host_.roots[ascending[i]];
    if (vectors_ == nullptr) return Status::Ok();

    const int64_t k = m.found.k;
    Span roots = {k, 0}, rest = {n_, k};
    for (int64_t i = 0; i < n_; ++i) {
      const int64_t column = ascending[i];
      on_host_.places[column] = static_cast<int32_t>(i - vectors_->first);
      if (i < vectors_->first || i >= vectors_->last) continue;
      Span& range = column < k ? roots : rest;
      range = {std::min(range.begin, column), std::max(range.end, column + 1)};
    }
    JAXMG_RETURN_IF_ERROR(device_.Copy(kMain, Block(on_device_.places, n_, n_, 1),
                                       Block(on_host_.places, n_, n_, 1)));
    if (k > 0) JAXMG_RETURN_IF_ERROR(RecvShares(m, on_device_.refined, 1));
    // Checks the number of columns. It is wrong if the roots or the deflated eigenvalues are not
    // ascending, and positions would then be out of bounds in q.
    const int64_t found =
        std::max<int64_t>(roots.end - roots.begin, 0) + std::max<int64_t>(rest.end - rest.begin, 0);
    if (found != vectors_->last - vectors_->first) {
      *failed_ = true;
      return Status::Ok();
    }
    // Writes a panel directly to its destination if its columns are contiguous there, else column
    // by column.
    auto together = [&](int64_t root, int64_t columns) {
      return on_host_.places[root + columns - 1] - on_host_.places[root] == columns - 1;
    };
    JAXMG_RETURN_IF_ERROR(Multiply(
        m, roots,
        [&](const Part& part, int64_t root, int64_t columns) {
          return together(root, columns) ? part.q + on_host_.places[root] * part.ld
                                         : on_device_.panel;
        },
        [&](const Part& part, int64_t root, int64_t columns) {
          if (together(root, columns)) return Status::Ok();
          return kernels_.CopyColumns(kMain, part.rows, columns, nullptr, on_device_.panel, part.ld,
                                      on_device_.places + root, part.q, part.ld);
        }));
    for (const Part& part : Parts(m)) {
      if (rest.begin >= rest.end) break;
      JAXMG_RETURN_IF_ERROR(kernels_.CopyColumns(kMain, part.rows, rest.end - rest.begin, nullptr,
                                                 part.work + rest.begin * part.ld, part.ld,
                                                 on_device_.places + rest.begin, part.q, part.ld));
    }
    return Status::Ok();
  }

  static Status Nothing(const Part&, int64_t, int64_t) { return Status::Ok(); }

  // Computes the columns of Q U for a range of roots, panel by panel, in target(part, root,
  // columns), and calls done(part, root, columns) after each panel.
  template <typename Target, typename Done = decltype(&Nothing)>
  Status Multiply(const Merge<R>& m, const Span& roots, const Target& target,
                  const Done& done = &Nothing) {
    const MergeTables<R> tables = Tables(m, on_device_.tables);
    const std::vector<Part> parts = Parts(m);
    if (parts.empty()) return Status::Ok();
    const int64_t k = m.found.k;
    for (int64_t root = roots.begin; root < roots.end; root += tuning_.panel) {
      if (comm_.failed()) return GivenUp(comm_.Failure());
      const int64_t columns = std::min(tuning_.panel, roots.end - root);
      JAXMG_RETURN_IF_ERROR(kernels_.Vectors(
          kMain, k, root, root + columns, tables.grouped, on_device_.refined + m.begin,
          on_device_.origin + m.begin, on_device_.tau + m.begin, on_device_.u, k));
      for (const Part& part : parts) {
        const int64_t from = part.half == 0 ? 0 : m.found.top;
        const int64_t to = part.half == 0 ? m.found.bottom : k;
        R* q = target(part, root, columns);
        JAXMG_RETURN_IF_ERROR(from == to
                                  ? blas_.SetZero(kMain, part.rows, columns, q, part.ld)
                                  : blas_.Gemm(kMain, Op::kNone, Op::kNone, part.rows, columns,
                                               to - from, 1, part.work + from * part.ld, part.ld,
                                               on_device_.u + from, k, 0, q, part.ld));
        JAXMG_RETURN_IF_ERROR(done(part, root, columns));
      }
    }
    return Status::Ok();
  }

  const DivideProblem<R>& problem_;
  Device& device_;
  Communicator& comm_;
  Blas<R>& blas_;
  SecularKernels<R>& kernels_;
  const int64_t n_, block_;
  const int rank_;
  const Span rows_;
  const EigenvectorRows<R>* const vectors_;
  const DivideTuning& tuning_;
  const DeviceSpace<R>& on_device_;
  const HostSpace<R>& on_host_;
  R* const d_;
  bool* const failed_;
  std::shared_ptr<Event> reached_;
};

}  // namespace

template <typename R>
Status MergeLevel(const DivideProblem<R>& problem, std::vector<Merge<R>>& merges, R* d,
                  bool* failed) {
  return Level<R>(problem, d, failed).Run(merges);
}

template Status MergeLevel(const DivideProblem<float>&, std::vector<Merge<float>>&, float*, bool*);
template Status MergeLevel(const DivideProblem<double>&, std::vector<Merge<double>>&, double*,
                           bool*);

}  // namespace jaxmg
