// What divide and conquer is called with, and its memory beside the vectors.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_SPACE_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_SPACE_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/engine/eigen/deflation.h"
#include "xla_ffi/engine/eigen/divide.h"
#include "xla_ffi/engine/eigen/divide_tree.h"

namespace jaxmg {

// Hands out pieces of `base`, or of nothing, to count them.
class Pieces {
 public:
  explicit Pieces(void* base) : base_(static_cast<char*>(base)) {}
  template <typename X>
  X* Take(int64_t count) {
    constexpr int64_t kAlignment = 256;
    X* piece = base_ == nullptr ? nullptr : reinterpret_cast<X*>(base_ + taken_);
    taken_ += (count * static_cast<int64_t>(sizeof(X)) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  int64_t taken() const { return taken_; }

 private:
  char* const base_;
  int64_t taken_ = 0;
};

// Arrays of n elements; those of a merge are at its first column.
template <typename R>
struct DeviceSpace {
  DeviceSpace(void* base, int64_t n, int64_t block, bool vectors, const DivideTuning& tuning) {
    Pieces pieces(base);
    // Side by side: three that pass between ranks when roots have been found, and from the third
    // on the two or three that pass before.
    origin = pieces.Take<R>(5 * n);
    const int64_t step = base == nullptr ? 0 : n;
    tau = origin + step;
    roots = tau + step;
    first = roots + step;
    last = first + step;
    refined = pieces.Take<R>(n);
    tables = pieces.Take<char>(MergeTables<R>::Bytes(n));
    places = pieces.Take<int32_t>(n);
    info = pieces.Take<int32_t>(1);
    rows = pieces.Take<R>(vectors ? 0 : 2 * n);
    u = pieces.Take<R>(n * std::min(tuning.panel, n));
    panel = pieces.Take<R>(vectors ? block * std::min(tuning.panel, n) : 0);
    bytes = pieces.taken();
  }

  R *origin, *tau, *roots;
  // Rows of the vectors: z, or without vectors the first one and the last one of every merge.
  R *first, *last;
  R* refined;
  char* tables;
  int32_t *places, *info;
  R* rows;   // without vectors, what `work` is to q
  R* u;      // a panel of the inner matrix's eigenvectors
  R* panel;  // one of vectors
  int64_t bytes;
};

// What its host writes, and reads.
template <typename R>
struct HostSpace {
  HostSpace(void* base, int64_t n, int64_t block, bool vectors, const DivideTuning& tuning) {
    Pieces pieces(base);
    roots = pieces.Take<R>(3 * n);
    const int64_t step = base == nullptr ? 0 : n;
    first = roots + step;
    last = first + step;
    tables = pieces.Take<char>(MergeTables<R>::Bytes(n));
    places = pieces.Take<int32_t>(n);
    info = pieces.Take<int32_t>(1);
    const int64_t rows = std::min(block + 2 * tuning.leaf, n);
    leaves = pieces.Take<R>(vectors ? rows * tuning.leaf : 0);
    bytes = pieces.taken();
  }

  R *roots, *first, *last;
  char* tables;
  int32_t *places, *info;
  R* leaves;  // vectors, each leaf's from its first row times the order of a leaf on
  int64_t bytes;
};

template <typename R>
struct DivideProblem {
  DivideProblem(const RankContext& context, int64_t n, int64_t block,
                const EigenvectorRows<R>* vectors, const DivideSpace& space,
                const DivideTuning& tuning)
      : context(context),
        n(n),
        block(block),
        rows{std::min(context.comm.rank() * block, n),
             std::min((context.comm.rank() + 1) * block, n)},
        vectors(vectors),
        tuning(tuning),
        on_device(space.device, n, block, vectors != nullptr, tuning),
        on_host(space.host, n, block, vectors != nullptr, tuning) {}

  // Eigenvalues and rows of vectors in columns [begin, end), as they pass between ranks: z alone,
  // or both rows that are kept.
  template <typename Space>
  Bytes2D Exchanged(const Space& space, int64_t begin, int64_t end) const {
    return Block(space.roots + begin, n, end - begin, vectors != nullptr ? 2 : 3);
  }

  const RankContext context;
  const int64_t n, block;
  const Span rows;  // this rank's
  const EigenvectorRows<R>* const vectors;
  const DivideTuning tuning;
  const DeviceSpace<R> on_device;
  const HostSpace<R> on_host;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_SPACE_H_
