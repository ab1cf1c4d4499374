// LU with partial pivoting of a panel of few columns, with its rows in registers (lu_kernels.h).
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_LU_LU_PANEL_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_LU_LU_PANEL_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/clusters.cuh"
#include "xla_ffi/device/cuda/core/scalars.cuh"
#include "xla_ffi/device/cuda/core/signals.cuh"
#include "xla_ffi/device/cuda/core/warps.cuh"

namespace jaxmg::kernels {

// Returns 1 / x, exact up to rounding or nearly so, for x well within the range.
__device__ inline float Reciprocal(float x) { return 1 / x; }
__device__ inline double Reciprocal(double x) {
#ifdef __CUDA_ARCH__
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));  // 20 bits; each step doubles them
  y = fma(y, fma(-x, y, 1.0), y);
  return fma(y, fma(-x, y, 1.0), y);
#else
  return 1 / x;
#endif
}
// Smith's algorithm, whose intermediate results neither overflow nor vanish.
template <typename T>
__device__ T Reciprocal(T x) {
  const bool real = fabs(x.x) >= fabs(x.y);
  const auto large = real ? x.x : x.y, small = real ? x.y : x.x;
  const auto ratio = small * Reciprocal(large), size = Reciprocal(large + small * ratio);
  return real ? FromParts<T>(size, -ratio * size) : FromParts<T>(ratio * size, -size);
}

// Returns the bits of a nonnegative number. They have the order of the numbers.
__device__ inline unsigned Bits(float x) { return __float_as_uint(x); }
__device__ inline unsigned long long Bits(double x) {
  return static_cast<unsigned long long>(__double_as_longlong(x));
}
template <typename T>
struct BitsOf {
  using type = decltype(Bits(typename RealOf<T>::type(0)));
};

// Returns the bits of the magnitude by which LAPACK compares pivots. NaN counts as infinity, so
// that the search finds it.
template <typename T>
__device__ typename BitsOf<T>::type PivotSize(T x) {
  using R = typename RealOf<T>::type;
  const R size = fabs(RealPart(x)) + fabs(ImaginaryPart(x));
  return Bits(size == size ? size : R(__int_as_float(0x7f800000)));
}

// P A = L U of an m x n panel, n at most kColumns, with partial pivoting. The blocks run
// concurrently. A thread holds kRows rows in registers throughout: an interchange of rows only
// changes the places to which they are finally written.
//
// In each column j
//   - every warp searches for its largest element, and the block for the largest of these;
//   - column j - 1 updates the rows, except their column j, which was updated before the search;
//   - the thread that has the block's largest element offers its row;
//   - the blocks exchange the sizes and take the row of the best one: through the shared memory of
//     a cluster, or else through global memory. A single block takes its own row;
//   - that row updates column j + 1.
//
// Columns take turns: `turn` is the column of a chunk of kChunk columns that is eliminated. It is a
// constant wherever it addresses registers. After a chunk all columns move by kChunk places to the
// left, cyclically. Code that is the same for all turns is outside of them: code that exceeds the
// instruction cache costs more than all of its operations.
template <typename T, int kColumns>
class LuPanel {
  using Size = typename BitsOf<T>::type;

 public:
  static constexpr int kRows = kLuRows<sizeof(T), kColumns>;

  // `slots` has space for 2 kLuSlotWords words of each block, none of which has a tag from
  // first_tag to first_tag + n - 1; null if the blocks are one cluster. `moves` is null, or see
  // WriteMoves.
  __device__ LuPanel(Index m, int n, T* a, Index lda, Index offset, int* pivots, int* info,
                     TaggedWord* slots, unsigned first_tag, int* moves)
      : n_(n),
        k_(static_cast<int>(min(m, Index(n)))),
        threads_(static_cast<int>(blockDim.x)),
        thread_(static_cast<int>(threadIdx.x)),
        blocks_(static_cast<int>(gridDim.x)),
        first_row_(static_cast<int>(blockIdx.x) * kRows * threads_ + thread_),
        m_(static_cast<int>(m)),
        a_(a),
        lda_(lda),
        offset_(offset),
        pivots_(pivots),
        info_(info),
        slots_(slots),
        first_tag_(first_tag),
        moves_(moves) {}

  __device__ void Run() {
    if (Clustered()) {
      Shared& s = shared();
      for (int side = 0; thread_ == 0 && side < 2; ++side) {
        s.heads_came[side].Init();
        s.row_came[side].Init();
      }
      AwaitCluster();
    }
    Load();
    Search<0>(0);
#pragma unroll 1
    for (int j = 0; j < kColumns; ++j) {
      const int turn = j % kChunk, chunks = kChunks - j / kChunk;
      if (j < k_) {
        const T reciprocal = Propose(j);
        UpdateRest(turn, j, chunks);
        Choose(j, chunks, reciprocal);
        Eliminate(turn, j, chunks);
      }
      if (turn + 1 == kChunk) Rotate();
    }
    Store();
    if (moves_ != nullptr) WriteMoves();
    if (Clustered()) AwaitCluster();  // others may still write to this block's memory
  }

 private:
  static constexpr int kChunk = 4, kChunks = kColumns / kChunk;
  // Elements of an offered row: its columns, and the reciprocal of the pivot, in units of 16 bytes.
  static constexpr int kRow = kColumns + 16 / sizeof(T);
  // Numbers of 8-byte words: of a row, of a candidate's size and place before it, and of both.
  static constexpr int kRowWords = kRow * sizeof(T) / 8;
  static constexpr int kHeadWords = sizeof(Size) == 8 ? 2 : 1;
  static constexpr int kWords = kHeadWords + kRowWords;
  // Number of blocks whose candidates one lane reads.
  static constexpr int kAtOnce = kLuBlocks / 32;
  static_assert(kRowWords > 0 && kWords <= kLuSlotWords);

  struct __align__(16) Candidate {
    Size size;
    int place;  // the row's current place; kNoInfo: no candidate
    __device__ bool Beats(const Candidate& other) const {
      return size > other.size || (size == other.size && place < other.place);
    }
  };
  // Double-buffered, because a block may be one column ahead of another block that still reads.
  struct Shared {
    Candidate of_warp[2][32], best;
    Candidate of_block[2][kLuCluster];
    Arrival heads_came[2], row_came[2];
    // The row of the block's candidate, and of the pivot; a single block uses only the latter.
    __align__(16) T row[2][kRow];
    __align__(16) T pivot[2][kRow];
    __align__(16) T beyond[kChunk];  // loaded with the last chunk, but not used
  };
  __device__ static Shared& shared() {
    __shared__ __align__(16) Shared memory;
    return memory;
  }

  __device__ bool Clustered() const { return blocks_ > 1 && slots_ == nullptr; }
  __device__ int Lane() const { return thread_ % 32; }
  __device__ int Warp() const { return thread_ / 32; }

  __device__ void Load() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = first_row_ + r * threads_;
      place_[r] = row < m_ ? row : -1;
      factor_[r] = FromReal<T>(0);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        x_[r][c] = row < m_ && c < n_ ? a_[row + c * lda_] : FromReal<T>(0);
      }
    }
  }

  __device__ void Store() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (place_[r] < 0) continue;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (c < n_) a_[place_[r] + c * lda_] = x_[r][c];
      }
    }
  }

  // Writes the combined interchanges in the form of PlanSwaps for n of them: row to[i] becomes the
  // former row from[i]. A row that becomes row i < n has number i. A former row i < n that moves
  // below row n has number n + i.
  __device__ void WriteMoves() const {
    int* from = moves_;
    int* to = moves_ + 2 * n_;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = first_row_ + r * threads_, place = place_[r];
      if (place < 0) continue;
      const int target = place == row ? -1 : place, source = place == row ? -1 : row;
      if (place < n_) {
        from[place] = source;
        to[place] = target;
      }
      if (row < n_) {
        from[n_ + row] = place < n_ ? -1 : source;
        to[n_ + row] = place < n_ ? -1 : target;
      }
    }
    for (int i = m_ + thread_; blockIdx.x == 0 && i < n_; i += threads_) {
      from[i] = to[i] = from[n_ + i] = to[n_ + i] = -1;
    }
  }

  // Calls UpdateRest with the turn as a constant.
  __device__ void UpdateRest(int turn, int j, int chunks) {
    static_assert(kChunk == 4);
    if (turn == 0) UpdateRest<0>(j, chunks);
    if (turn == 1) UpdateRest<1>(j, chunks);
    if (turn == 2) UpdateRest<2>(j, chunks);
    if (turn == 3) UpdateRest<3>(j, chunks);
  }
  __device__ void Eliminate(int turn, int j, int chunks) {
    if (turn == 0) Eliminate<0>(j, chunks);
    if (turn == 1) Eliminate<1>(j, chunks);
    if (turn == 2) Eliminate<2>(j, chunks);
    if (turn == 3) Eliminate<3>(j, chunks);
  }

  __device__ void Rotate() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      T first[kChunk];
#pragma unroll
      for (int c = 0; c < kChunk; ++c) first[c] = x_[r][c];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        x_[r][c] = c + kChunk < kColumns ? x_[r][(c + kChunk) % kColumns] : first[c % kChunk];
      }
    }
  }

  // Returns the lane that has the warp's best candidate.
  __device__ static int BestLane(const Candidate& mine) {
    unsigned lanes = LanesOfLargest(mine.size);
    if (__popc(lanes) > 1) {
      const bool among = lanes >> (threadIdx.x % 32) & 1;
      const auto place = static_cast<unsigned>(among ? mine.place : kNoInfo);
      lanes &= __ballot_sync(~0u, place == __reduce_min_sync(~0u, place));
    }
    return __ffs(static_cast<int>(lanes)) - 1;
  }
  // Returns the candidate of BestLane to every lane.
  __device__ static Candidate OfBestLane(const Candidate& mine, int* lane) {
    *lane = BestLane(mine);
    return {OfLane(mine.size, *lane), OfLane(mine.place, *lane)};
  }

  // Searches this thread's best row for column j, which is in column `c` of the registers.
  template <int c>
  __device__ void Search(int j) {
    if constexpr (c < kColumns) {
      mine_ = {0, kNoInfo};
      element_ = FromReal<T>(0);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const Candidate candidate = {PivotSize(x_[r][c]), place_[r]};
        if (place_[r] < j || !candidate.Beats(mine_)) continue;
        mine_ = candidate;
        element_ = x_[r][c];
      }
    }
  }

  // Sets best_ to the block's best candidate and sends it to the others. Returns the reciprocal of
  // this thread's candidate.
  __device__ T Propose(int j) {
    Shared& s = shared();
    if (BestLane(mine_) == Lane()) s.of_warp[j & 1][Warp()] = mine_;
    __syncthreads();
    const T reciprocal = Reciprocal(Scale(element_, Unit(mine_.size)));
    int lane = 0;
    Candidate of_lane = {0, kNoInfo};
    if (Lane() < threads_ / 32) of_lane = s.of_warp[j & 1][Lane()];
    best_ = OfBestLane(of_lane, &lane);
    if (blocks_ > 1 && Warp() == 0) {
      const int block = static_cast<int>(blockIdx.x);
      if (!Clustered()) {
        SendHead(HeadOf(j, block), best_, Tag(j));
      } else {
        if (Lane() == 0) s.heads_came[j & 1].Expect(blocks_ * sizeof(Candidate));
        if (Lane() < blocks_) {
          SendInCluster(&best_, &s.of_block[j & 1][block], Lane(), &s.heads_came[j & 1]);
        }
      }
    }
    return reciprocal;
  }

  // Eliminates column j, whose pivot and pivot row are in shared memory.
  template <int turn>
  __device__ void Eliminate(int j, int chunks) {
    const T* pivot = shared().pivot[j & 1];
    const T reciprocal = pivot[kColumns];
    const auto unit = Unit(best_.size);
    const bool last = turn + 1 == kChunk && chunks == 1;
    // The column below a pivot of zero is zero, and stays zero.
    const bool zero = best_.size == 0;
    const T next = last ? FromReal<T>(0) : pivot[turn + 1 < kColumns ? turn + 1 : 0];
    // Has no branches, so that the rows' chains of operations overlap.
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int place = place_[r];
      place_[r] = place == best_.place ? j : place == j ? best_.place : place;
      updates_[r] = !zero && place_[r] > j;
      const T l = Times(Scale(x_[r][turn], unit), reciprocal);
      factor_[r] = Scale(l, -1);
      if (updates_[r]) x_[r][turn] = l;
      if constexpr (turn + 1 < kColumns) {
        const T updated = MultiplyAdd(factor_[r], next, x_[r][turn + 1]);
        if (updates_[r] && !last) x_[r][turn + 1] = updated;
      }
    }
    Search<turn + 1>(j + 1);
    if (blockIdx.x == 0 && thread_ == 0) {
      pivots_[j] = static_cast<int>(offset_ + best_.place);
      if (zero) *info_ = min(*info_, static_cast<int>(offset_ + j + 1));
      if (!Finite(pivot[turn])) *info_ = min(*info_, kNotFinite);
    }
  }

  // Returns the factor by which a pivot of this size is multiplied, so that its reciprocal is in
  // the range.
  __device__ static typename RealOf<T>::type Unit(Size size) {
    return size < Bits(kSmall) ? kLarge : size > Bits(1 / kSmall) ? 1 / kLarge : 1;
  }

  // A chunk of the pivot's row.
  struct __align__(16) Piece {
    T u[kChunk];
  };

  // Updates the columns after j with column j - 1; `turn` is column j's, and `chunks` chunks are
  // not done. The pivot's row is arranged as in the turn of column j - 1.
  template <int turn>
  __device__ void UpdateRest(int j, int chunks) {
    constexpr int shift = turn == 0 ? kChunk : 0;
    if constexpr (shift < kColumns) {
      const T* pivot = shared().pivot[(j + 1) & 1] + shift;
      const Piece piece = *reinterpret_cast<const Piece*>(pivot);
      UpdateChunks<0, turn + 1>(piece, pivot, chunks);
    }
  }
  // Updates chunk `chunk`, from its column `begin` on, and later chunks. Loads the next piece
  // meanwhile.
  template <int chunk, int begin>
  __device__ void UpdateChunks(const Piece& piece, const T* pivot, int chunks) {
    constexpr bool has_next = chunk + 1 < kChunks;
    Piece next;
    if (has_next) next = *reinterpret_cast<const Piece*>(pivot + (chunk + 1) * kChunk);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = begin; i < kChunk; ++i) {
        T& x = x_[r][chunk * kChunk + i];
        const T updated = MultiplyAdd(factor_[r], piece.u[i], x);
        if (updates_[r]) x = updated;
      }
    }
    if constexpr (has_next) {
      if (chunk + 1 < chunks) UpdateChunks<chunk + 1, 0>(next, pivot, chunks);
    }
  }

  // Offers this thread's row with its best element, in the columns that still matter.
  __device__ void Offer(int chunks, const T& reciprocal, T* row) const {
    row[kColumns] = reciprocal;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (place_[r] != mine_.place) continue;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        if (chunk >= chunks) break;
        Piece piece;
#pragma unroll
        for (int i = 0; i < kChunk; ++i) piece.u[i] = x_[r][chunk * kChunk + i];
        *reinterpret_cast<Piece*>(row + chunk * kChunk) = piece;
      }
    }
  }

  // Sets best_ to the pivot of column j, and s.pivot to its row.
  __device__ void Choose(int j, int chunks, const T& reciprocal) {
    Shared& s = shared();
    const int side = j & 1;
    int lane = 0;
    const bool offers = mine_.place == best_.place && best_.place != kNoInfo;
    T* row = blocks_ == 1 ? s.pivot[side] : s.row[side];
    if (offers) Offer(chunks, reciprocal, row);
    if (Clustered()) {
      const unsigned round = j / 2 & 1;
      if (thread_ == 0) s.row_came[side].Expect(kRow * sizeof(T));
      s.heads_came[side].Await(round);
      Candidate of_lane = {0, kNoInfo};
      if (Lane() < blocks_) of_lane = s.of_block[side][Lane()];
      best_ = OfBestLane(of_lane, &lane);
      if (AnyOfWarp(offers && best_.place == mine_.place)) {
        constexpr int kUnit = 16 / sizeof(T), kUnits = kRow / kUnit;
        for (int i = Lane(); i < kUnits * blocks_; i += 32) {
          const int u = i % kUnits * kUnit;
          SendInCluster(row + u, s.pivot[side] + u, i / kUnits, &s.row_came[side]);
        }
      }
      s.row_came[side].Await(round);
      return;
    } else if (blocks_ > 1) {
      TaggedWord* words = RowOf(j, static_cast<int>(blockIdx.x));
      if (AnyOfWarp(offers)) {
        for (int w = Lane(); w < kRowWords; w += 32) {
          StoreWord(words + w, Quarter(row, 2 * w), Quarter(row, 2 * w + 1), Tag(j));
        }
      }
      if (Warp() == 0) Receive(j);
    }
    __syncthreads();
    if (blocks_ > 1 && !Clustered()) best_ = s.best;
  }

  // First all heads, then all rows, both double-buffered by column.
  __device__ TaggedWord* HeadOf(int j, int block) const {
    return slots_ + ((j & 1) * blocks_ + block) * kHeadWords;
  }
  __device__ TaggedWord* RowOf(int j, int block) const {
    return slots_ + 2 * blocks_ * kHeadWords + ((j & 1) * blocks_ + block) * kRowWords;
  }
  __device__ unsigned Tag(int j) const { return first_tag_ + static_cast<unsigned>(j); }
  __device__ static unsigned Quarter(const T* row, int i) {
    unsigned quarter;
    memcpy(&quarter, reinterpret_cast<const char*>(row) + 4 * i, 4);
    return quarter;
  }
  __device__ static void SetQuarter(T* row, int i, unsigned quarter) {
    memcpy(reinterpret_cast<char*>(row) + 4 * i, &quarter, 4);
  }

  __device__ void SendHead(TaggedWord* slot, const Candidate& best, unsigned tag) const {
    if (Lane() != 0) return;
    const unsigned place = static_cast<unsigned>(best.place);
    if constexpr (kHeadWords == 2) {
      StoreWord(slot + 1, place, 0, tag);
      StoreWord(slot, static_cast<unsigned>(best.size >> 32), static_cast<unsigned>(best.size),
                tag);
    } else {
      StoreWord(slot, best.size, place, tag);
    }
  }

  // Runs on the first warp: receives the best candidate of all blocks, and its row.
  __device__ void Receive(int j) const {
    Shared& s = shared();
    const unsigned tag = Tag(j);
    TaggedWord heads[kAtOnce][kHeadWords];
    bool all = false;
    while (!all) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (32 * i >= blocks_) continue;
        const TaggedWord* slot = HeadOf(j, min(32 * i + Lane(), blocks_ - 1));
#pragma unroll
        for (int w = 0; w < kHeadWords; ++w) heads[i][w] = LoadWord(slot + w);
      }
      all = true;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (32 * i >= blocks_) continue;
#pragma unroll
        for (int w = 0; w < kHeadWords; ++w) all = all && heads[i][w].Has(tag);
      }
    }
    Candidate mine = {0, kNoInfo};
    int block = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (32 * i >= blocks_) continue;
      Candidate candidate;
      if constexpr (kHeadWords == 2) {
        candidate = {Size(heads[i][0].First()) << 32 | heads[i][0].Second(),
                     static_cast<int>(heads[i][1].First())};
      } else {
        candidate = {heads[i][0].First(), static_cast<int>(heads[i][0].Second())};
      }
      if (candidate.Beats(mine)) {
        mine = candidate;
        block = min(32 * i + Lane(), blocks_ - 1);
      }
    }
    int lane = 0;
    const Candidate best = OfBestLane(mine, &lane);
    block = OfLane(block, lane);
    const TaggedWord* row = RowOf(j, block);
    for (int w = Lane(); w < kRowWords; w += 32) {
      TaggedWord word;
      do {
        word = LoadWord(row + w);
      } while (!word.Has(tag));
      SetQuarter(s.pivot[j & 1], 2 * w, word.First());
      SetQuarter(s.pivot[j & 1], 2 * w + 1, word.Second());
    }
    if (Lane() == 0) s.best = best;
  }

  // The reciprocal of a number below kSmall may be infinite, and of one above 1 / kSmall may
  // vanish.
  static constexpr typename RealOf<T>::type kSmall = sizeof(Size) == 8 ? 0x1p-1000 : 0x1p-100f;
  static constexpr typename RealOf<T>::type kLarge = 0x1p64f;

  const int n_, k_;
  const int threads_, thread_, blocks_, first_row_, m_;
  T* const a_;
  const Index lda_, offset_;
  int* const pivots_;
  int* const info_;
  TaggedWord* const slots_;
  const unsigned first_tag_;
  int* const moves_;
  T x_[kRows][kColumns];
  int place_[kRows];
  // The factors by which column j + 1 was updated, and later columns will be.
  T factor_[kRows];
  bool updates_[kRows] = {};
  // The thread's candidate for the next column, and the pivot of this one.
  Candidate mine_ = {0, kNoInfo}, best_ = {0, kNoInfo};
  T element_;
};

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_LU_LU_PANEL_CUH_
