// The kernel that applies groups of sweeps to the columns of a matrix (chase_kernels.h), in double
// precision.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_EIGEN_GROUPS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_EIGEN_GROUPS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/copies.cuh"
#include "xla_ffi/device/cuda/core/scalars.cuh"
#include "xla_ffi/device/cuda/core/signals.cuh"
#include "xla_ffi/device/cuda/core/tensor.cuh"

namespace jaxmg::kernels {

// As SweepGroups.
struct Groups {
  Index n, b, first, group, width, stride, begin, end;
};

// z (columns x n, transposed) := z B^H = z - (z V) W^H for the blocks B of each group in turn, the
// last group first. A warp has 8 kM columns. It holds a block's rows of them in registers, first as
// the left factor of z V and then as the sum. V and W are copied to shared memory, the next ones
// while the current ones are in use.
//
// A thread block takes a strip of columns and a group, and proceeds down the rows. Several groups
// of one strip run concurrently, each at least a step behind the previous one, whose output is
// still in the cache. Thread blocks take groups in order, so the oldest group always makes
// progress.
//
// Shape is a GroupShape. If the band has 8 kShift subdiagonals and the groups are full, the rows
// that two steps share stay in registers, and the zeros of V and W outside of their parallelograms
// are skipped.
template <typename T, typename Shape>
class GroupApplier {
  static constexpr int kM = Shape::kM, kTiles = Shape::kTiles, kGroupTiles = Shape::kGroupTiles;
  static constexpr int kShift = Shape::kShift, kRows = Shape::kRows, kSweeps = Shape::kSweeps;
  static constexpr int kColumns = Shape::kColumns, kBuffer = Shape::kBuffer, kWarps = Shape::kWarps;
  static constexpr int kLdV = Shape::kLdV, kLdW = Shape::kLdW, kLdZ = Shape::kLdZ;

 public:
  struct Arguments {
    Groups groups;
    Index columns;
    const T *blocks, *weighted;
    T* z;
    Index ldz;
    // 1 + strips * (end - begin) words, initially 0: the number of pieces of work taken, then each
    // piece's number of completed steps.
    unsigned* progress;
  };

  __device__ explicit GroupApplier(const Arguments& arguments)
      : of_(arguments),
        groups_(arguments.groups),
        height_(static_cast<int>(groups_.b + groups_.width)),
        rows_in_pairs_(InPairs(arguments.z, arguments.ldz) && arguments.columns % 2 == 0),
        blocks_in_pairs_(InPairs(arguments.blocks, height_) &&
                         InPairs(arguments.weighted, height_) && groups_.stride % 2 == 0),
        strips_((arguments.columns + kColumns - 1) / kColumns),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32),
        memory_(static_cast<T*>(DynamicShared())) {}

  __device__ void Run() {
    __shared__ unsigned taken;
    const Index groups = groups_.end - groups_.begin;
    // Clears the padding, which no group writes.
    for (int i = threadIdx.x; i < 2 * kBuffer; i += blockDim.x) memory_[i] = FromReal<T>(0);
    for (;;) {
      __syncthreads();
      if (threadIdx.x == 0) taken = atomicAdd(of_.progress, 1u);
      __syncthreads();
      const Index piece = taken;
      if (piece >= strips_ * groups) return;
      const Index strip = piece % strips_, g = groups_.end - 1 - piece / strips_;
      // A single group has no other group that could change its rows while they are in registers.
      const bool full = groups_.b == 8 * kShift && (groups_.width == kSweeps || groups == 1);
      full ? Group<true>(strip, g) : Group<false>(strip, g);
    }
  }

 private:
  __device__ Index Row(Index g, Index j) const {
    return groups_.first + g * groups_.group + 1 + j * groups_.b;
  }
  __device__ Index Steps(Index g) const {
    return (groups_.n - Row(g, 0) + groups_.b - 1) / groups_.b;
  }
  __device__ unsigned* Progress(Index strip, Index g) const {
    return of_.progress + 1 + strip * (groups_.end - groups_.begin) + g - groups_.begin;
  }

  template <bool kFull>
  __device__ void Group(Index strip, Index g) {
    const Index steps = Steps(g);
    if (warp_ == kWarps) return Tell(strip, g);
    column_ = strip * kColumns + warp_ * (8 * kM) + lane_ / 4;
    T z[kTiles][kM][2];
    Fetch(g, 0, 0, 1);
    __syncthreads();  // its first rows have arrived
    if constexpr (kFull) ReadTiles(z, Row(g, 0), kRows);
    for (Index j = 0; j < steps; ++j) {
      const Index row = Row(g, j);
      const bool last = j + 1 == steps;
      AwaitCopies();
      __syncthreads();
      const T* v = memory_ + (j & 1) * kBuffer;
      // Prefetches in small pieces: a large one would delay the current loads and arrive too early.
      auto fetch = [&](int t) {
        constexpr int kParts = kTiles / 2 < 4 ? kTiles / 2 : 4;
        if (last || t >= 2 * kParts) return;
        if (t >= kParts) return Fetch(g, j + 1, t - kParts, kParts);
        if (kFull) FetchRows(row + kRows, t, kParts);
      };
      if constexpr (kFull) {
        Multiply<kFull>(z, v, fetch);
        WriteTiles<kShift>(z, row, kRows);
        if (last) {
          WriteTiles<kTiles, kShift>(z, row, kRows);
          break;
        }
#pragma unroll
        for (int t = 0; t + kShift < kTiles; ++t) {
#pragma unroll
          for (int m = 0; m < kM; ++m) {
#pragma unroll
            for (int e = 0; e < 2; ++e) z[t][m][e] = z[t + kShift][m][e];
          }
        }
        AwaitCopies();
        __syncwarp();
        TakeRows(z);
      } else {
        ReadTiles(z, row, height_);
        Multiply<kFull>(z, v, fetch);
        WriteTiles<kTiles>(z, row, height_);
      }
    }
    __syncthreads();
  }

  // Runs on one warp, which doesn't multiply: it waits until the previous group has completed the
  // rows of the next step, and publishes the progress of this group.
  __device__ void Tell(Index strip, Index g) {
    const Index steps = Steps(g);
    const bool follows = g + 1 < groups_.end;
    const Index before = follows ? Steps(g + 1) : 0;
    unsigned seen = 0;
    for (Index j = 0; j <= steps + 1; ++j) {
      // The number of steps that have started.
      if (lane_ == 0 && j > 2) Publish(Progress(strip, g), static_cast<unsigned>(j - 2));
      const auto least = static_cast<unsigned>(min(j + 1, before));
      while (lane_ == 0 && follows && seen < least) seen = kernels::Read(Progress(strip, g + 1));
      __syncthreads();
    }
    if (lane_ == 0) Publish(Progress(strip, g), static_cast<unsigned>(steps));
  }

  // Starts to copy a part of V and W of a block to their buffer, and a part of 8 kShift rows of
  // this warp's columns. Elements outside of the matrix are 0.
  __device__ void Fetch(Index g, Index j, int part, int parts) {
    T* v = memory_ + (j & 1) * kBuffer;
    T* w = v + kSweeps * kLdV;
    const Index block = g * groups_.stride + j * height_ * groups_.width;
    const int width = static_cast<int>(groups_.width), step = Step(blocks_in_pairs_);
    for (int k = warp_ + part * kWarps; k < width; k += parts * kWarps) {
      const Index column = block + k * height_;
#pragma unroll
      for (int q = 0; q < (kRows + 31) / 32; ++q) {
        const int r = step * (lane_ + 32 * q);
        if (r >= height_) continue;
        Copy(v + k * kLdV + r, of_.blocks + column + r, blocks_in_pairs_);
        Copy(w + k * kLdW + r, of_.weighted + column + r, blocks_in_pairs_);
      }
    }
  }
  __device__ T* Rows() const { return memory_ + 2 * kBuffer + warp_ * 8 * kShift * kLdZ; }
  __device__ void FetchRows(Index row, int part, int parts) {
    const int step = Step(rows_in_pairs_), lanes = 8 * kM / step, at_once = 32 / lanes;
    const int c = step * (lane_ % lanes);
    const Index column = column_ - lane_ / 4 + c;
    const bool inside = column < of_.columns;
    const T* from = of_.z + column;
    for (int r = lane_ / lanes + part * at_once; r < 8 * kShift; r += parts * at_once) {
      T* to = Rows() + r * kLdZ + c;
      if (inside && row + r < groups_.n) {
        Copy(to, from + (row + r) * of_.ldz, rows_in_pairs_);
      } else {
        for (int i = 0; i < step; ++i) to[i] = FromReal<T>(0);
      }
    }
  }
  // Returns the number of elements per copy: two if a copy can move two and all are aligned.
  __device__ static int Step(bool pairs) { return pairs ? 2 : 1; }
  __device__ static void Copy(T* shared, const T* global, bool pair) {
    if constexpr (sizeof(T) == 8) {
      if (pair) return CopyAsync<16>(shared, global);
    }
    CopyAsync<sizeof(T)>(shared, global);
  }
  __device__ static bool InPairs(const T* data, Index step) {
    return sizeof(T) == 8 && reinterpret_cast<unsigned long long>(data) % 16 == 0 && step % 2 == 0;
  }

  __device__ void TakeRows(T (&z)[kTiles][kM][2]) const {
    const T* at = Rows() + 2 * (lane_ % 4) * kLdZ + lane_ / 4;
#pragma unroll
    for (int t = 0; t < kShift; ++t) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          z[kTiles - kShift + t][m][e] = at[(8 * t + e) * kLdZ + 8 * m];
        }
      }
    }
  }

  // Reads the block of rows that begins with `row`; elements beyond the matrix are 0.
  __device__ void ReadTiles(T (&z)[kTiles][kM][2], Index row, int rows) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = 8 * t + 2 * (lane_ % 4) + e;
          const bool inside = i < rows && row + i < groups_.n && column_ + 8 * m < of_.columns;
          z[t][m][e] = inside ? of_.z[(row + i) * of_.ldz + column_ + 8 * m] : FromReal<T>(0);
        }
      }
    }
  }
  template <int kEnd, int kBegin = 0>
  __device__ void WriteTiles(const T (&tiles)[kTiles][kM][2], Index row, int rows) const {
#pragma unroll
    for (int t = kBegin; t < kEnd; ++t) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = 8 * t + 2 * (lane_ % 4) + e;
          const bool inside = i < rows && row + i < groups_.n && column_ + 8 * m < of_.columns;
          if (inside) of_.z[(row + i) * of_.ldz + column_ + 8 * m] = tiles[t][m][e];
        }
      }
    }
  }

  // Computes z - (z V) W^H. Calls between(t) before the products with each tile of rows.
  template <bool kFull, typename Between>
  __device__ void Multiply(T (&z)[kTiles][kM][2], const T* v, const Between& between) {
    const T* w = v + kSweeps * kLdV;
    const int quad = lane_ / 4, pair = 2 * (lane_ % 4);
    T p[kGroupTiles][kM][2];
#pragma unroll
    for (int s = 0; s < kGroupTiles; ++s) {
#pragma unroll
      for (int m = 0; m < kM; ++m) p[s][m][0] = p[s][m][1] = FromReal<T>(0);
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      between(t);
#pragma unroll
      for (int s = 0; s < kGroupTiles; ++s) {
        if (kFull && (t < s || t > s + kShift)) continue;
        const T* at = v + (8 * s + quad) * kLdV + 8 * t + pair;
        const T right[2] = {at[0], at[1]};
        MultiplyTiles<kM>(p[s], z[t], right);
      }
    }
#pragma unroll
    for (int s = 0; s < kGroupTiles; ++s) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        p[s][m][0] = Scale(p[s][m][0], -1);
        p[s][m][1] = Scale(p[s][m][1], -1);
      }
    }
#pragma unroll
    for (int s = 0; s < kGroupTiles; ++s) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (kFull && t > s + kShift) continue;
        const T* at = w + (8 * s + pair) * kLdW + 8 * t + quad;
        const T right[2] = {Conj(at[0]), Conj(at[kLdW])};
        MultiplyTiles<kM>(z[t], p[s], right);
      }
    }
  }

  const Arguments of_;
  const Groups& groups_;
  const int height_;
  const bool rows_in_pairs_, blocks_in_pairs_;
  const Index strips_;
  const int lane_, warp_;
  T* const memory_;
  Index column_ = 0;
};

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_EIGEN_GROUPS_CUH_
