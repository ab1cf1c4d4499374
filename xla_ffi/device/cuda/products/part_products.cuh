// C := beta C + alpha A B^T for matrices of 16-bit parts (parts.h), on the tensor cores of GPUs of
// compute capability 9.0. It is more accurate than a product in float32. Its speed doesn't depend
// on the alignment of C's columns, while cuBLAS is three times slower if they are not aligned to 16
// bytes.
//
// Tensor cores truncate: every step of 16 columns rounds the sum towards zero, so that long sums
// are too small. Here a sum is never longer than a chunk of kChunkDepth columns. A chunk begins
// with the small products of a few columns of the factors and ends with the largest ones (parts.h).
// Chunks are added in float32 with rounding to nearest.
//
// A block computes tiles of C, kProductTileM x kProductTileN, until none is left. One thread fills
// the stages of shared memory (TMA). Two groups of four warps multiply, one the upper and one the
// lower half of the tile. While one group adds a chunk, the other one multiplies.
//
//   shared memory, kProductStages times:  A: 2 boxes of 64 x kChunkDepth    B: 4 boxes
//   group g multiplies box g of A by the left, then by the right half of B
//
// Alternatives that were not faster on an H200, in TFLOP/s for 12000 x 12000 x 2048 (this kernel:
// 491 to 497): alternating the groups with named barriers, 462; three groups on tiles of 192 x 128,
// 482.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_PRODUCTS_PART_PRODUCTS_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_PRODUCTS_PART_PRODUCTS_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/scalars.cuh"

namespace jaxmg::kernels {

// The driver's description of a matrix in global memory (CUtensorMap).
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

// The two matrices of parts. Each description begins at a multiple of 16 bytes. A begins at row
// `first_a` of its description, and B at row `first_b`.
struct PartFactors {
  TensorMap a, b;
};

// Row i of the product is multiplied by left[i / 2^shift], and column j by right[j].
struct PartProductScales {
  const float *left, *right;
  int shift;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ inline unsigned SharedAddress(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// A barrier in shared memory (mbarrier). Its phases have the parities 0, 1, 0, ...
class SharedBarrier {
 public:
  __device__ explicit SharedBarrier(unsigned address) : address_(address) {}
  __device__ void Init(int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_), "r"(arrivals));
  }
  __device__ void Arrive() const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address_) : "memory");
  }
  // Makes the phase also wait for this number of bytes to arrive.
  __device__ void ArriveAndExpect(int bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address_),
                 "r"(bytes)
                 : "memory");
  }
  // Returns when the phase of this parity has ended.
  __device__ void Wait(int parity) const {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra.uni over;\n"
        "bra.uni again;\n"
        "over:\n"
        "}\n" ::"r"(address_),
        "r"(parity)
        : "memory");
  }
  // Copies a box of a matrix to shared memory, with zeros for rows and columns beyond its end.
  __device__ void Load(unsigned target, const TensorMap& map, int row, int column) const {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];" ::"r"(target),
        "l"(&map), "r"(row), "r"(column), "r"(address_)
        : "memory");
  }

 private:
  unsigned address_;
};

// Returns the wgmma descriptor of a box of 64 x kChunkDepth in shared memory, with contiguous
// columns in TMA's 128-byte swizzle: eight columns take 1024 bytes.
__device__ inline unsigned long long DescribeBox(unsigned address, int box_bytes) {
  constexpr unsigned long long kSwizzle128 = 1ull << 62, kEightColumns = 1024 >> 4;
  return (address >> 4 & 0x3fff) | static_cast<unsigned long long>(box_bytes >> 4) << 16 |
         kEightColumns << 32 | kSwizzle128;
}

#define JAXMG_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define JAXMG_16(d, i) JAXMG_4(d, i), JAXMG_4(d, i + 4), JAXMG_4(d, i + 8), JAXMG_4(d, i + 12)

// sum := A B^T + (add ? sum : 0), A 64 x 16 and B 128 x 16.
#define JAXMG_MULTIPLY(type)                                                              \
  asm volatile(                                                                           \
      "{\n"                                                                               \
      ".reg .pred add;\n"                                                                 \
      "setp.ne.b32 add, %66, 0;\n"                                                        \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                        \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17," \
      " %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33,"  \
      " %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49,"  \
      " %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63},"           \
      " %64, %65, add, 1, 1, 1, 1;\n"                                                     \
      "}\n"                                                                               \
      : JAXMG_16(sum, 0), JAXMG_16(sum, 16), JAXMG_16(sum, 32), JAXMG_16(sum, 48)         \
      : "l"(a), "l"(b), "r"(static_cast<int>(add)))

template <bool kHalves>
__device__ inline void Multiply(float (&sum)[64], unsigned long long a, unsigned long long b,
                                bool add) {
  if constexpr (kHalves) {
    JAXMG_MULTIPLY("f16");
  } else {
    JAXMG_MULTIPLY("bf16");
  }
}
#undef JAXMG_MULTIPLY
#undef JAXMG_16
#undef JAXMG_4

template <bool kHalves, bool kScaled>
class PartProduct {
 public:
  __device__ PartProduct(const PartFactors& factors, const PartProductScales& scales, int first_a,
                         int first_b, int m, int n, int chunks, float alpha, float beta, float* c,
                         Index ldc)
      : factors_(factors),
        scales_(scales),
        first_a_(first_a),
        first_b_(first_b),
        m_(first_a + m),
        n_(first_b + n),
        chunks_(chunks),
        alpha_(alpha),
        beta_(beta),
        c_(c - first_b * ldc - first_a),
        ldc_(ldc) {}

  __device__ void Run() {
    extern __shared__ unsigned char shared[];
    const unsigned begin = SharedAddress(shared);
    barriers_ = begin;
    stages_ = (begin + kBarrierBytes + 1023) / 1024 * 1024;
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < kProductStages; ++stage) {
        Full(stage).Init(1);
        Empty(stage).Init(kGroups);
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < 128) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
      if (threadIdx.x == 0) Load();
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
      ComputeAll(threadIdx.x / 128 - 1);
    }
  }

 private:
  static constexpr int kGroups = kProductTileM / kProductBox, kBarrierBytes = 16 * kProductStages;
  static constexpr int kBox = kProductBox, kBoxBytes = kBox * kChunkDepth * 2;
  static constexpr int kBoxesA = kProductTileM / kBox, kBoxesB = kProductTileN / kBox;
  static constexpr int kStageBytes = (kBoxesA + kBoxesB) * kBoxBytes;
  // Tiles are taken column by column within this number of tile rows, so that their factors stay in
  // L2.
  static constexpr int kRowsAtOnce = 16;

  __device__ SharedBarrier Full(int stage) const { return SharedBarrier(barriers_ + 16 * stage); }
  __device__ SharedBarrier Empty(int stage) const {
    return SharedBarrier(barriers_ + 16 * stage + 8);
  }
  __device__ unsigned BoxA(int stage, int box) const {
    return stages_ + stage * kStageBytes + box * kBoxBytes;
  }
  __device__ unsigned BoxB(int stage, int box) const { return BoxA(stage, kBoxesA + box); }

  __device__ int TilesM() const { return (m_ + kProductTileM - 1) / kProductTileM; }
  __device__ int TilesN() const { return (n_ + kProductTileN - 1) / kProductTileN; }
  __device__ void FindTile(int tile, int* row, int* column) const {
    const int of_group = kRowsAtOnce * TilesN(), first = tile / of_group * kRowsAtOnce;
    const int rows = min(kRowsAtOnce, TilesM() - first), within = tile % of_group;
    *row = (first + within % rows) * kProductTileM;
    *column = within / rows * kProductTileN;
  }

  // Loads the chunks of this block's tiles to the stages in turn.
  __device__ void Load() {
    const int tiles = TilesM() * TilesN();
    int stage = 0, parity = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      int row, column;
      FindTile(tile, &row, &column);
      for (int chunk = 0; chunk < chunks_; ++chunk) {
        Empty(stage).Wait(parity ^ 1);  // the first wait of each stage returns at once
        const SharedBarrier full = Full(stage);
        full.ArriveAndExpect(kStageBytes);
        for (int box = 0; box < kBoxesA; ++box) {
          full.Load(BoxA(stage, box), factors_.a, row + box * kBox, chunk * kChunkDepth);
        }
        for (int box = 0; box < kBoxesB; ++box) {
          full.Load(BoxB(stage, box), factors_.b, column + box * kBox, chunk * kChunkDepth);
        }
        PrefetchTile(row, column, chunk);
        if (++stage == kProductStages) stage = 0, parity ^= 1;
      }
    }
  }

  // Prefetches columns of C's tile to L2, a few with each of the last chunks.
  __device__ void PrefetchTile(int row, int column, int chunk) const {
    constexpr int kAtOnce = 8, kChunks = kProductTileN / kAtOnce;
    const int part = chunk - max(chunks_ - kChunks, 0);
    if (beta_ == 0 || part < 0) return;
    const int top = max(row, first_a_), rows = min(row + kProductTileM, m_) - top;
    const int end = min(column + (part + 1) * kAtOnce, n_);
    for (int j = max(column + part * kAtOnce, first_b_); j < end; ++j) {
      const unsigned long long begin = reinterpret_cast<unsigned long long>(c_ + j * ldc_ + top);
      const unsigned long long aligned = begin & ~15ull;
      const unsigned bytes = static_cast<unsigned>(begin + 4 * rows + 15 - aligned) & ~15u;
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(aligned), "r"(bytes));
    }
  }

  __device__ void ComputeAll(int group) {
    const int tiles = TilesM() * TilesN();
    int stage = 0, parity = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      int row, column;
      FindTile(tile, &row, &column);
      float left[64], right[64];
#pragma unroll
      for (int i = 0; i < 64; ++i) left[i] = right[i] = 0;
      for (int chunk = 0; chunk < chunks_; ++chunk) {
        Full(stage).Wait(parity);
        AddChunk(BoxA(stage, group), BoxB(stage, 0), left, -1);
        AddChunk(BoxA(stage, group), BoxB(stage, 2), right, stage);
        if (++stage == kProductStages) stage = 0, parity ^= 1;
      }
      Store(left, row + group * kBox, column);
      Store(right, row + group * kBox, column + kProductTileN / 2);
    }
  }

  // sum += the product of a box of A and two adjacent boxes of B. Releases the previous stage,
  // which is no longer read.
  __device__ void AddChunk(unsigned box_a, unsigned box_b, float (&sum)[64], int release) {
    float chunk[64];
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int step = 0; step < kChunkDepth / 16; ++step) {
      Multiply<kHalves>(chunk, DescribeBox(box_a + step * 2048, kBoxBytes),
                        DescribeBox(box_b + step * 2048, kBoxBytes), step > 0);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(chunk[i])::"memory");
    if (release >= 0 && threadIdx.x % 128 == 0) Empty(release).Arrive();
#pragma unroll
    for (int i = 0; i < 64; ++i) sum[i] = fmaf(chunk[i], kChunkFactor, sum[i]);
  }

  // Updates at most 64 rows and 128 columns of C from this position on.
  __device__ void Store(const float (&sum)[64], int row, int column) const {
    const bool begun = row >= first_a_ && column >= first_b_;
    if (begun && row + kBox <= m_ && column + kProductTileN / 2 <= n_) {
      StoreBox<true>(sum, row, column);
    } else if (row < m_ && column < n_) {
      StoreBox<false>(sum, row, column);
    }
  }

  // A thread has rows r and r + 8, and two of every eight columns.
  template <bool kWhole>
  __device__ void StoreBox(const float (&sum)[64], int row, int column) const {
    const int thread = threadIdx.x % 128;
    row += thread / 32 * 16 + thread % 32 / 4;
    column += thread % 4 * 2;
    float* const begin = c_ + column * ldc_ + row;
    const float row_scales[2] = {RowScale(row), RowScale(row + 8)};
    constexpr int kAtOnce = 32;
    const auto there = [&](int i) {
      const int r = row + (i & 2) * 4, j = column + i / 4 * 8 + (i & 1);
      return kWhole || (r >= first_a_ && r < m_ && j >= first_b_ && j < n_);
    };
    const auto place = [&](int i) { return begin + (i / 4 * 8 + (i & 1)) * ldc_ + (i & 2) * 4; };
#pragma unroll
    for (int first = 0; first < 64; first += kAtOnce) {
      float result[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) result[i] = alpha_ * sum[first + i];
      if (kScaled) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int at = first + i;
          const float left = row_scales[at / 2 % 2];
          const float right = ColumnScale(column + at / 4 * 8 + (at & 1));
          result[i] = result[i] * fminf(left, right) * fmaxf(left, right);
        }
      }
      if (beta_ != 0) {
        float before[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          before[i] = 0;
          if (there(first + i)) before[i] = *place(first + i);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          result[i] = fmaf(beta_, before[i], result[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (there(first + i)) *place(first + i) = result[i];
      }
    }
  }

  // Returns 1 for a row or column outside of C.
  __device__ float RowScale(int row) const {
    if (!kScaled || row < first_a_ || row >= m_) return 1;
    return __ldg(scales_.left + ((row - first_a_) >> scales_.shift));
  }
  __device__ float ColumnScale(int column) const {
    return column < first_b_ || column >= n_ ? 1 : __ldg(scales_.right + column - first_b_);
  }

  const PartFactors& factors_;
  const PartProductScales& scales_;
  const int first_a_, first_b_, m_, n_, chunks_;
  const float alpha_, beta_;
  float* const c_;
  const Index ldc_;
  unsigned barriers_, stages_;
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_PRODUCTS_PART_PRODUCTS_CUH_
