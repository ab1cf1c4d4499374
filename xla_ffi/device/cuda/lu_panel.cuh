// LU with partial pivoting of a panel of few columns, with its rows in registers (lu_kernels.h).
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_LU_PANEL_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_LU_PANEL_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/clusters.cuh"
#include "xla_ffi/device/cuda/scalars.cuh"
#include "xla_ffi/device/cuda/signals.cuh"
#include "xla_ffi/device/cuda/warps.cuh"

namespace jaxmg::kernels {

// 1 / x, to rounding or nearly so, for x well inside of the range.
__device__ inline float Reciprocal(float x) { return 1 / x; }
__device__ inline double Reciprocal(double x) {
#ifdef __CUDA_ARCH__
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));  // 20 bits, and twice as many each time
  y = fma(y, fma(-x, y, 1.0), y);
  return fma(y, fma(-x, y, 1.0), y);
#else
  return 1 / x;
#endif
}
// Smith's algorithm, which neither overflows nor vanishes on the way.
template <typename T>
__device__ T Reciprocal(T x) {
  const bool real = fabs(x.x) >= fabs(x.y);
  const auto large = real ? x.x : x.y, small = real ? x.y : x.x;
  const auto ratio = small * Reciprocal(large), size = Reciprocal(large + small * ratio);
  return real ? FromParts<T>(size, -ratio * size) : FromParts<T>(ratio * size, -size);
}

// The bits of a number that is not negative, which are in the order of the numbers.
__device__ inline unsigned Bits(float x) { return __float_as_uint(x); }
__device__ inline unsigned long long Bits(double x) {
  return static_cast<unsigned long long>(__double_as_longlong(x));
}
template <typename T>
struct BitsOf {
  using type = decltype(Bits(typename RealOf<T>::type(0)));
};

// What LAPACK compares pivots by, as bits. NaN counts as infinity, so that it is found.
template <typename T>
__device__ typename BitsOf<T>::type PivotSize(T x) {
  using R = typename RealOf<T>::type;
  const R size = fabs(RealPart(x)) + fabs(ImaginaryPart(x));
  return Bits(size == size ? size : R(__int_as_float(0x7f800000)));
}

// P A = L U of an m x n panel, n at most kColumns, with partial pivoting. The blocks run at the
// same time. A thread has kRows rows in registers and keeps them there: an interchange of rows only
// changes the places to which they are written in the end.
//
// In each column j
//   - every warp looks for its largest element, and the block for its largest one of those;
//   - the rows are updated by column j - 1, except for column j, which was before the search;
//   - the thread that has the block's largest element offers its row;
//   - the blocks exchange the sizes and take the row of the best one: through the shared memory of
//     a cluster, or else through global memory. A block alone takes its own;
//   - column j + 1 is updated by that row.
//
// Columns take turns: in a chunk of kChunk columns, the one that is eliminated is `turn`, which is
// a constant where registers are addressed by it. After a chunk all columns move by as many places
// to the left, cyclically. What is the same for all turns stands outside of them: code that does
// not fit the cache for instructions costs more than all that it does.
template <typename T, int kColumns>
class LuPanel {
  using Size = typename BitsOf<T>::type;

 public:
  static constexpr int kRows = kLuRows<sizeof(T), kColumns>;

  // `slots`: room for 2 kLuSlotWords words of each block, none of which has a tag from first_tag to
  // first_tag + n - 1; null: the blocks are one cluster. `moves`: null, or see WriteMoves.
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
    if (Clustered()) AwaitCluster();  // others may still write to this one's memory
  }

 private:
  static constexpr int kChunk = 4, kChunks = kColumns / kChunk;
  // Of a row that is offered: its columns, and the reciprocal of the pivot; in units of 16 bytes.
  static constexpr int kRow = kColumns + 16 / sizeof(T);
  // 8 bytes are in a word: a row's, and before them a candidate's size and place.
  static constexpr int kRowWords = kRow * sizeof(T) / 8;
  static constexpr int kHeadWords = sizeof(Size) == 8 ? 2 : 1;
  static constexpr int kWords = kHeadWords + kRowWords;
  // Blocks whose candidates one lane reads.
  static constexpr int kAtOnce = kLuBlocks / 32;
  static_assert(kRowWords > 0 && kWords <= kLuSlotWords);

  struct __align__(16) Candidate {
    Size size;
    int place;  // of the row now; kNoInfo: there is none
    __device__ bool Beats(const Candidate& other) const {
      return size > other.size || (size == other.size && place < other.place);
    }
  };
  // By turns of two, so that a block may be one column ahead of another one that still reads.
  struct Shared {
    Candidate of_warp[2][32], best;
    Candidate of_block[2][kLuCluster];
    Arrival heads_came[2], row_came[2];
    // The row of the block's candidate, and of the pivot; one and the same of a block alone.
    __align__(16) T row[2][kRow];
    __align__(16) T pivot[2][kRow];
    __align__(16) T beyond[kChunk];  // is loaded with the last chunk, and not used
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

  // The interchanges in all, as PlanSwaps has them for n of them: row to[i] is what row from[i]
  // was. A row that becomes row i < n is number i, one that was row i < n and goes below is n + i.
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

  // With the turn as a constant.
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

  // The lane that has the best candidate of the warp's.
  __device__ static int BestLane(const Candidate& mine) {
    unsigned lanes = LanesOfLargest(mine.size);
    if (__popc(lanes) > 1) {
      const bool among = lanes >> (threadIdx.x % 32) & 1;
      const auto place = static_cast<unsigned>(among ? mine.place : kNoInfo);
      lanes &= __ballot_sync(~0u, place == __reduce_min_sync(~0u, place));
    }
    return __ffs(static_cast<int>(lanes)) - 1;
  }
  // That candidate; every lane gets it.
  __device__ static Candidate OfBestLane(const Candidate& mine, int* lane) {
    *lane = BestLane(mine);
    return {OfLane(mine.size, *lane), OfLane(mine.place, *lane)};
  }

  // This thread's best row for column j, which is in column `c` of the registers.
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

  // The block's best candidate becomes best_, and the others learn of it. Returns the reciprocal of
  // this thread's.
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

  // Column j: its pivot is in shared memory, with the row.
  template <int turn>
  __device__ void Eliminate(int j, int chunks) {
    const T* pivot = shared().pivot[j & 1];
    const T reciprocal = pivot[kColumns];
    const auto unit = Unit(best_.size);
    const bool last = turn + 1 == kChunk && chunks == 1;
    // The column below a pivot of zero is zero, and stays so.
    const bool zero = best_.size == 0;
    const T next = last ? FromReal<T>(0) : pivot[turn + 1 < kColumns ? turn + 1 : 0];
    // No branches, so that the rows' chains of operations overlap.
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

  // What a pivot of this size is multiplied by, so that its reciprocal is inside of the range.
  __device__ static typename RealOf<T>::type Unit(Size size) {
    return size < Bits(kSmall) ? kLarge : size > Bits(1 / kSmall) ? 1 / kLarge : 1;
  }

  // A chunk of the pivot's row.
  struct __align__(16) Piece {
    T u[kChunk];
  };

  // By column j - 1, the columns behind j, which is in its turn; `chunks` are not done. The pivot's
  // row is as it was in that turn.
  template <int turn>
  __device__ void UpdateRest(int j, int chunks) {
    constexpr int shift = turn == 0 ? kChunk : 0;
    if constexpr (shift < kColumns) {
      const T* pivot = shared().pivot[(j + 1) & 1] + shift;
      const Piece piece = *reinterpret_cast<const Piece*>(pivot);
      UpdateChunks<0, turn + 1>(piece, pivot, chunks);
    }
  }
  // Chunk `chunk`, from column `begin` of it on, and those behind it. The next piece is under way
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

  // The row of this thread's that has its best element, as far as columns still matter.
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

  // The pivot of column j becomes best_, and its row s.pivot.
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

  // All heads, then all rows, each by turns of two columns.
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

  // The first warp: the best candidate of all blocks, and its row.
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

  // Below kSmall a reciprocal may be infinite, and above its reciprocal may vanish.
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
  // What column j + 1 was updated by, and the columns behind will be.
  T factor_[kRows];
  bool updates_[kRows] = {};
  // The thread's for the next column, and the pivot of this one.
  Candidate mine_ = {0, kNoInfo}, best_ = {0, kNoInfo};
  T element_;
};

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_LU_PANEL_CUH_
