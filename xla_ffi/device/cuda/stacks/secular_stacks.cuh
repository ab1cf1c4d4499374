// Divide and conquer for stacks of matrices: the kernels of StackKernels::SolveTridiagonal and
// Merge. Arrays hold one merge of order k after the other. The order of sums depends only on the
// counts.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_SECULAR_STACKS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_SECULAR_STACKS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/scalars.cuh"
#include "xla_ffi/device/cuda/eigen/secular.cuh"
#include "xla_ffi/device/eigen/secular_root.h"
#include "xla_ffi/device/eigen/tridiagonal_ql.h"

namespace jaxmg::kernels {

// Uses kMostQl threads for each matrix. Each thread has one row of the eigenvectors and computes
// all eigenvalues, so that it never waits for another thread.
template <typename R>
__device__ void SolveTridiagonal(Index count, int n, const R* d, const R* e, R* w, R* v) {
  const Index thread = blockIdx.x * Index(blockDim.x) + threadIdx.x;
  const Index matrix = thread / kMostQl;
  const int row = static_cast<int>(thread % kMostQl);
  if (matrix >= count || row >= n) return;
  R values[kMostQl], beside[kMostQl], x[kMostQl];
  for (int i = 0; i < n; ++i) {
    values[i] = d[matrix * n + i];
    if (i + 1 < n) beside[i] = e[matrix * (n - 1) + i];
    x[i] = i == row ? 1 : 0;
  }
  const bool found = tridiagonal::SolveByQl(n, values, beside, [&](int i, R c, R s) {
    const R before = x[i], after = x[i + 1];
    x[i] = c * before - s * after;
    x[i + 1] = s * before + c * after;
  });
  for (int i = 0; i < n; ++i) v[(matrix * n + row) * n + i] = x[i];
  w[matrix * n + row] = found ? values[row] : Nan<R>();
}

struct LargerOf {
  template <typename R>
  __device__ R operator()(R a, R b) const {
    return a < b ? b : a;
  }
};

// Returns whether pole i comes before pole j in ascending order; NaN is last.
template <typename R>
__device__ bool ComesBefore(const secular::TwoPartPole<R>& one, Index i,
                            const secular::TwoPartPole<R>& other, Index j) {
  const bool nan = one.high != one.high, other_nan = other.high != other.high;
  if (nan || other_nan) return nan == other_nan ? i < j : other_nan;
  if (one.high != other.high) return one.high < other.high;
  return one.low == other.low ? i < j : one.low < other.low;
}

// Uses one thread per pole. Computes its place among the poles of its merge, and the sorted arrays.
template <typename R>
__device__ void SortPoles(Index count, Index k, R gap, const R* high, const R* low, const R* z,
                          int* places, R* sorted_high, R* sorted_low, R* sorted_z) {
  const secular::TwoPartPoles<R> poles = {high, low};
  const Index stride = gridDim.x * Index(blockDim.x);
  for (Index e = blockIdx.x * Index(blockDim.x) + threadIdx.x; e < count * k; e += stride) {
    const Index begin = e / k * k, i = e - begin;
    const secular::TwoPartPole<R> pole = poles[e];
    int place = 0;
#pragma unroll 4
    for (Index j = 0; j < k; ++j) place += ComesBefore(poles[begin + j], j, pole, i) ? 1 : 0;
    places[e] = place;
    sorted_high[begin + place] = pole.high;
    sorted_low[begin + place] = pole.low + static_cast<R>(place) * gap;
    sorted_z[begin + place] = z[e];
  }
}

// Uses one block per root, for ascending poles.
template <typename R>
__device__ void StackedRoots(Index k, const R* high, const R* low, const R* z, const R* rho,
                             R* origin_high, R* origin_low, R* tau) {
  using D = secular::TwoPartPoles<R>;
  using Poles = BlockPoles<R, D>;
  __shared__ typename Poles::Space space;
  const Index merge = blockIdx.x / k, begin = merge * k, j = blockIdx.x - begin;
  const D d = {high + begin, low + begin};
  const Poles poles(k, d, z + begin, space);
  secular::Root<R, Poles, secular::TwoPartPole<R>> root(poles, k, d, z + begin, rho[merge], j);
  root.Find(kMostSecularEvaluations);  // uses the last iterate, converged or not
  if (threadIdx.x != 0) return;
  origin_high[begin + j] = root.origin().high;
  origin_low[begin + j] = root.origin().low;
  tau[begin + j] = root.tau();
}

// Uses one block per element, as RefineZ.
template <typename R>
__device__ void RefineStackedZ(Index k, const R* high, const R* low, const R* z, const R* rho,
                               const R* origin_high, const R* origin_low, const R* tau,
                               R* refined) {
  const Index merge = blockIdx.x / k, begin = merge * k, i = blockIdx.x - begin;
  const secular::TwoPartPoles<R> d = {high + begin, low + begin};
  const secular::TwoPartPoles<R> origin = {origin_high + begin, origin_low + begin};
  const R element = RefinedElement(k, i, d, z[begin + i], rho[merge], origin, tau + begin);
  if (threadIdx.x == 0) refined[begin + i] = element;
}

// Uses one block per root. Writes it and its eigenvector, with the poles in their original order.
// Divides the elements by the largest one first, because their squares might overflow.
template <typename R>
__device__ void StackedVectors(Index k, const int* places, const R* high, const R* low,
                               const R* refined, const R* origin_high, const R* origin_low,
                               const R* tau, R* root_high, R* root_low, R* vectors) {
  __shared__ typename Joined<R, 1>::Space space;
  const Index begin = blockIdx.x / k * k, j = blockIdx.x - begin, half = k / 2;
  const secular::TwoPartPole<R> origin = {origin_high[begin + j], origin_low[begin + j]};
  const R distance = tau[begin + j];
  R* const first = vectors + begin * k + j * half;
  R* const second = first + k * half;
  auto element = [&](Index i) -> R& { return i < half ? first[i] : second[i - half]; };
  R largest[1] = {}, sum[1] = {};
#pragma unroll 4
  for (Index i = threadIdx.x; i < k; i += blockDim.x) {
    const Index place = begin + places[begin + i];
    const secular::TwoPartPole<R> pole = {high[place], low[place]};
    const R value = refined[place] / ((pole - origin) - distance);
    element(i) = value;
    largest[0] = LargerOf()(largest[0], R(fabs(value)));
  }
  Joined<R, 1>::Run(LargerOf(), space, largest);
#pragma unroll 4
  for (Index i = threadIdx.x; i < k; i += blockDim.x) {
    const R value = element(i) / largest[0];
    sum[0] += value * value;
  }
  Joined<R, 1>::Run(Sum(), space, sum);
  const R norm = sqrt(sum[0]);
#pragma unroll 4
  for (Index i = threadIdx.x; i < k; i += blockDim.x) {
    element(i) = element(i) / largest[0] / norm;
  }
  if (threadIdx.x != 0) return;
  const R rest_of_root = origin.low + distance, total = origin.high + rest_of_root;
  const R added = total - origin.high;
  root_high[begin + j] = total;
  root_low[begin + j] = (origin.high - (total - added)) + (rest_of_root - added);
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_STACKS_SECULAR_STACKS_CUH_
