// The arguments of divide and conquer, and its workspace.
#ifndef JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_DIVIDE_SPACE_H_
#define JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_DIVIDE_SPACE_H_

#include <algorithm>
#include <cstdint>

#include "xla_ffi/engine/eigen/divide/deflation.h"
#include "xla_ffi/engine/eigen/divide/divide.h"
#include "xla_ffi/engine/eigen/divide/divide_tree.h"

namespace jaxmg {

// Divides `base` into pieces. If `base` is null, only counts their bytes.
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

// Arrays of n elements in device memory. A merge uses the part from its first column on.
template <typename R>
struct DeviceSpace {
  DeviceSpace(void* base, int64_t n, int64_t block, bool vectors, const DivideTuning& tuning) {
    Pieces pieces(base);
    // Contiguous: ranks exchange the first three arrays after the roots are computed, and before
    // that the two or three arrays from the third on.
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
  // Rows of the vectors: z or, without vectors, the first and the last row of every merge.
  R *first, *last;
  R* refined;
  char* tables;
  int32_t *places, *info;
  R* rows;   // without vectors: the counterpart of `work`
  R* u;      // a panel of the inner matrix's eigenvectors
  R* panel;  // a panel of eigenvectors
  int64_t bytes;
};

// The arrays in host memory that the host writes and reads.
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
  R* leaves;  // vectors; a leaf's begin at its first row times the maximum order of a leaf
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

  // The eigenvalues in columns [begin, end) and the rows of vectors that ranks exchange: z, or the
  // first and the last row.
  template <typename Space>
  Bytes2D Exchanged(const Space& space, int64_t begin, int64_t end) const {
    return Block(space.roots + begin, n, end - begin, vectors != nullptr ? 2 : 3);
  }

  const RankContext context;
  const int64_t n, block;
  const Span rows;  // this rank's rows
  const EigenvectorRows<R>* const vectors;
  const DivideTuning tuning;
  const DeviceSpace<R> on_device;
  const HostSpace<R> on_host;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_EIGEN_DIVIDE_DIVIDE_SPACE_H_
