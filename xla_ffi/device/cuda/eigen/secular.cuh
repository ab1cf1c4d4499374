// The merges of divide and conquer: the kernels of SecularKernels. The order of sums depends only
// on the counts.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_EIGEN_SECULAR_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_EIGEN_SECULAR_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/scalars.cuh"
#include "xla_ffi/device/eigen/secular_root.h"

namespace jaxmg::kernels {

struct Sum {
  template <typename R>
  __device__ R operator()(R a, R b) const {
    return a + b;
  }
};
struct Product {
  template <typename R>
  __device__ R operator()(R a, R b) const {
    return a * b;
  }
};

// Reduces kCount values per thread over a block and returns the results to all threads. Has two
// steps, within kGroups groups of threads and over the groups: for few threads, a tree's many steps
// would take longer. A block has at least kGroups and at most kSecularThreads threads.
template <typename R, int kCount>
class Joined {
  static constexpr int kGroups = 8;

 public:
  // Has no constructor, because it is in shared memory. The rows of consecutive values begin at
  // different banks.
  struct Space {
    R of_threads[kCount][kSecularThreads + kGroups];
    R of_groups[kCount][kGroups];
  };

  template <typename Join>
  __device__ static void Run(const Join& join, Space& space, R (&values)[kCount]) {
#pragma unroll
    for (int v = 0; v < kCount; ++v) space.of_threads[v][threadIdx.x] = values[v];
    __syncthreads();
    for (int i = threadIdx.x; i < kCount * kGroups; i += blockDim.x) {
      const R* value = space.of_threads[i / kGroups];
      R joined = value[i % kGroups];
      for (int thread = i % kGroups + kGroups; thread < blockDim.x; thread += kGroups) {
        joined = join(joined, value[thread]);
      }
      space.of_groups[i / kGroups][i % kGroups] = joined;
    }
    // The groups' results are read after this barrier, and overwritten after the first barrier of
    // the next call, so no third barrier is needed.
    __syncthreads();
#pragma unroll
    for (int v = 0; v < kCount; ++v) {
      values[v] = space.of_groups[v][0];
#pragma unroll
      for (int group = 1; group < kGroups; ++group) {
        values[v] = join(values[v], space.of_groups[v][group]);
      }
    }
  }
};

// The sums over the poles in the iteration for a root. Each thread of a block sums a share of the
// poles. D has the poles by index.
template <typename R, typename D = const R*>
class BlockPoles {
 public:
  using Space = typename Joined<R, 4>::Space;

  __device__ BlockPoles(Index k, D d, const R* z, Space& space)
      : k_(k), d_(d), z_(z), space_(space) {}

  template <typename Pole>
  __device__ secular::Sums<R> SumsOf(Index end, Index begin, Pole origin, R tau) const {
    R sums[4] = {};
    Add(0, end, origin, tau, &sums[0], &sums[1]);
    Add(begin, k_, origin, tau, &sums[2], &sums[3]);
    Joined<R, 4>::Run(Sum(), space_, sums);
    return {sums[0], sums[1], sums[2], sums[3]};
  }

  __device__ R Squares() const {
    R sums[4] = {};
    for (Index i = threadIdx.x; i < k_; i += blockDim.x) sums[0] += z_[i] * z_[i];
    Joined<R, 4>::Run(Sum(), space_, sums);
    return sums[0];
  }

 private:
  template <typename Pole>
  __device__ void Add(Index begin, Index end, Pole origin, R tau, R* value, R* slope) const {
#pragma unroll 4
    for (Index i = begin + threadIdx.x; i < end; i += blockDim.x) {
      const R ratio = z_[i] / ((d_[i] - origin) - tau);
      *value += z_[i] * ratio;
      *slope += ratio * ratio;
    }
  }

  const Index k_;
  const D d_;
  const R* const z_;
  Space& space_;
};

// Uses one block per root, from `begin` on.
template <typename R>
__device__ void SecularRoots(Index k, Index begin, const R* d, const R* z, R rho, int limit,
                             R* origin, R* tau, R* roots, int* info) {
  __shared__ typename BlockPoles<R>::Space space;
  const Index j = begin + blockIdx.x;
  const BlockPoles<R> poles(k, d, z, space);
  secular::Root<R, BlockPoles<R>> root(poles, k, d, z, rho, j);
  const bool found = root.Find(limit);
  if (threadIdx.x != 0) return;
  if (!found) atomicMax(info, 1);
  origin[j] = root.origin();
  tau[j] = root.tau();
  roots[j] = root.origin() + root.tau();
}

// Returns element i of Gu's and Eisenstat's z, in thread 0 of a block that calls it; `d` and
// `origin` have the poles by index. Pairs each root with the pole on its other side, so that all
// factors except the last are between 0 and 1. Then no partial product underflows unless the whole
// product does.
template <typename R, typename D>
__device__ R RefinedElement(Index k, Index i, D d, R z, R rho, D origin, const R* tau) {
  __shared__ typename Joined<R, 1>::Space space;
  const auto pole = d[i];
  R product[1] = {1};
#pragma unroll 4
  for (Index j = threadIdx.x; j < k - 1; j += blockDim.x) {
    product[0] *= ((origin[j] - pole) + tau[j]) / (d[j < i ? j : j + 1] - pole);
  }
  Joined<R, 1>::Run(Product(), space, product);
  const R square = product[0] * (((origin[k - 1] - pole) + tau[k - 1]) / rho);
  return copysign(sqrt(fabs(square)), z);
}

// Uses one block per element, from `begin` on.
template <typename R>
__device__ void RefineZ(Index k, Index begin, const int* order, const R* d, const R* z, R rho,
                        const R* origin, const R* tau, R* refined) {
  const Index g = begin + blockIdx.x, i = order[g];
  const R element = RefinedElement(k, i, d, z[i], rho, origin, tau);
  if (threadIdx.x == 0) refined[g] = element;
}

// Uses one block per column, from the column of root `begin` on.
template <typename R>
__device__ void SecularVectors(Index k, Index begin, const R* d, const R* z, const R* origin,
                               const R* tau, R* u, Index ldu) {
  __shared__ typename Joined<R, 1>::Space space;
  const R from = origin[begin + blockIdx.x], distance = tau[begin + blockIdx.x];
  u += blockIdx.x * ldu;
  R sum[1] = {};
#pragma unroll 4
  for (Index g = threadIdx.x; g < k; g += blockDim.x) {
    const R value = z[g] / ((d[g] - from) - distance);
    u[g] = value;
    sum[0] += value * value;
  }
  Joined<R, 1>::Run(Sum(), space, sum);
  const R scale = 1 / sqrt(sum[0]);
#pragma unroll 4
  for (Index g = threadIdx.x; g < k; g += blockDim.x) u[g] *= scale;
}

// Uses one block for a part of the rows of a chain, with one row per thread.
template <typename R>
__device__ void RotateColumns(Index rows, const int* starts, const int* first, const int* second,
                              const R* c, const R* s, R* q, Index ldq) {
  const Index of_chain = (rows + blockDim.x - 1) / blockDim.x;
  const Index row = blockIdx.x % of_chain * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  q += row;
  // Usually the second column of a rotation is the first column of the next one in the chain.
  Index held = -1;
  R x = 0;
  const Index chain = blockIdx.x / of_chain;
  for (int i = starts[chain]; i < starts[chain + 1]; ++i) {
    if (first[i] != held) {
      if (held >= 0) q[held * ldq] = x;
      x = q[first[i] * ldq];
    }
    held = second[i];
    const R y = q[held * ldq];
    q[first[i] * ldq] = c[i] * x + s[i] * y;
    x = c[i] * y - s[i] * x;
  }
  if (held >= 0) q[held * ldq] = x;
}

// Uses one block per tile.
template <typename R>
__device__ void ArrangeColumns(Index rows, Index columns, const int* from, const R* source,
                               Index lds, const int* to, R* target, Index ldt) {
  constexpr int kOfThread = kTileEdge / kTileRows;
  const Index tiles = (rows + kTileEdge - 1) / kTileEdge;
  const Index row = blockIdx.x % tiles * kTileEdge + threadIdx.x;
  const Index begin = blockIdx.x / tiles * kTileEdge + threadIdx.y;
  if (row >= rows) return;
  // A thread issues all of its loads before the stores.
  R values[kOfThread];
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const Index j = begin + i * kTileRows;
    if (j < columns) values[i] = source[(from != nullptr ? from[j] : j) * lds + row];
  }
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const Index j = begin + i * kTileRows;
    if (j < columns) target[(to != nullptr ? to[j] : j) * ldt + row] = values[i];
  }
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_EIGEN_SECULAR_CUH_
