// The operations of an LU factorization on the device other than its leaves (lu_panel.cuh) and
// products: interchanges, solutions and determinants (lu_kernels.h).
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_LU_LU_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_LU_LU_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/scalars.cuh"
#include "xla_ffi/device/cuda/core/warps.cuh"

namespace jaxmg::kernels {

// The step of a panel after the kernels have factored its leaves `first` to `last`, of `width`
// columns each. It applies the interchanges of these leaves to other columns, and computes these
// columns' rows of U: the solution with the leaves' unit lower triangle. A leaf's list of moves
// (LuPanel::WriteMoves) is relative to its first row, which has the number of its first column. The
// step doesn't solve for more than kLuDepth rows of U.
//
// Uses one block for each kLuStepColumns columns from `column` on (a leaf has a multiple of these):
// columns of the leaves, or `right` columns after them.
template <typename T>
class LuStep {
 public:
  __device__ LuStep(int n, T* a, Index lda, int width, int first, int last, int column, int right,
                    const int* moves)
      : n_(n),
        width_(width),
        first_(first),
        last_(last),
        begin_(first * width),
        end_(min(last * width, n)),
        thread_(static_cast<int>(threadIdx.x)),
        threads_(static_cast<int>(blockDim.x)),
        a_(a),
        lda_(lda),
        moves_(moves),
        column_(column + static_cast<int>(blockIdx.x) * kColumns),
        columns_(min(kColumns, (column < end_ ? end_ : end_ + right) - column_)) {}

  __device__ void Run() {
    if (column_ < end_) {
      InterchangeLeft();
    } else {
      SolveRight();
    }
  }

 private:
  static constexpr int kColumns = kLuStepColumns, kTile = 32;

  // Number of elements that a thread moves in an interchange; blocks have kThreads threads, or a
  // quarter.
  static constexpr int kMoves = 8 * kLuColumns * kColumns / kThreads;

  struct Shared {
    T x[kLuDepth][kColumns];  // these columns' rows that are solved for
  };
  struct Move {
    int from, to;  // -1: nothing moves
  };
  __device__ static Shared& shared() {
    __shared__ __align__(16) unsigned char memory[sizeof(Shared)];
    return *reinterpret_cast<Shared*>(memory);
  }

  // Calls f(i, column) for `count` rows of the block's columns.
  template <typename F>
  __device__ void ForEach(int count, const F& f) const {
    for (int i = thread_; i < count * columns_; i += threads_) f(i % count, i / count);
  }

  // Loads this thread's moves of a leaf in the block's columns.
  __device__ void LoadMoves(int leaf, Move (&moves)[kMoves]) const {
    const int count = 2 * min(width_, n_ - leaf * width_);
    const int* from = moves_ + Index(leaf) * 4 * width_;
#pragma unroll
    for (int k = 0; k < kMoves; ++k) {
      const int i = thread_ + k * threads_;
      const bool moves_one = i < count * columns_;
      moves[k].from = moves_one ? from[i % count] : -1;
      moves[k].to = moves_one ? from[count + i % count] : -1;
    }
  }
  // Applies the interchanges of leaves `leaf` to `last`. x(row, column) returns the element's
  // place.
  template <typename F>
  __device__ void Interchange(int leaf, int last, const F& x) const {
    Move next[kMoves];
    LoadMoves(leaf, next);
    for (; leaf < last; ++leaf) {
      const int count = 2 * min(width_, n_ - leaf * width_), top = leaf * width_;
      T values[kMoves];
      int to[kMoves];
#pragma unroll
      for (int k = 0; k < kMoves; ++k) {
        const int c = (thread_ + k * threads_) / count;
        if (next[k].from >= 0) values[k] = x(top + next[k].from, c);
        to[k] = next[k].to;
      }
      if (leaf + 1 < last) LoadMoves(leaf + 1, next);
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kMoves; ++k) {
        const int c = (thread_ + k * threads_) / count;
        if (to[k] >= 0) x(top + to[k], c) = values[k];
      }
      __syncthreads();
    }
  }

  // Applies interchanges to the leaves' columns: a left half lacks the interchanges of the
  // corresponding right half's leaves, and so on within the right half. (FactorHalves divides
  // them.)
  __device__ void InterchangeLeft() {
    int pending = first_;
    const int last = last_;
    const int leaf = column_ / width_;
    while (pending < last) {
      const int middle = pending + (last - pending + 1) / 2;
      if (middle == last) return;
      pending = middle;
      if (leaf < middle) break;
    }
    Interchange(pending, last,
                [&](int row, int c) -> T& { return a_[row + (column_ + c) * lda_]; });
  }

  __device__ void SolveRight() {
    Shared& s = shared();
    const int depth = end_ - begin_;
    T* b = a_ + column_ * lda_;
    if (depth > kLuDepth) {
      return Interchange(first_, last_, [&](int row, int c) -> T& { return b[row + c * lda_]; });
    }
    ForEach(depth, [&](int i, int c) { s.x[i][c] = b[begin_ + i + c * lda_]; });
    __syncthreads();
    Interchange(first_, last_, [&](int row, int c) -> T& {
      return row < end_ ? s.x[row - begin_][c] : b[row + c * lda_];
    });
    for (int tile = 0; tile < depth; tile += kTile) {
      const int count = min(kTile, depth - tile);
      const T* l = a_ + begin_ + tile + (begin_ + tile) * lda_;
      // Uses all warps, so that the compiler sees that lanes stay together.
      for (int c = 0; c < columns_; c += threads_ / 32) SolveTile(count, l, tile, c + thread_ / 32);
      __syncthreads();
      for (int i = tile + kTile + thread_; i < depth; i += threads_) {
        T sums[kColumns];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) sums[c] = s.x[i][c];
#pragma unroll
        for (int k = 0; k < kTile; ++k) {
          const T factor = Scale(l[i - tile + k * lda_], -1);
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            sums[c] = MultiplyAdd(factor, s.x[tile + k][c], sums[c]);
          }
        }
#pragma unroll
        for (int c = 0; c < kColumns; ++c) s.x[i][c] = sums[c];
      }
      __syncthreads();
    }
    ForEach(depth, [&](int i, int c) { b[begin_ + i + c * lda_] = s.x[i][c]; });
  }

  // Solves for column c with a diagonal tile. Uses a warp, with a row in each lane.
  __device__ void SolveTile(int count, const T* l, int tile, int c) const {
    Shared& s = shared();
    const int lane = thread_ % 32;
    T factors[kTile];
#pragma unroll
    for (int k = 0; k < kTile; ++k) {
      factors[k] = k < lane && lane < count ? Scale(l[lane + k * lda_], -1) : FromReal<T>(0);
    }
    const bool has_row = lane < count && c < columns_;
    T x = has_row ? s.x[tile + lane][c] : FromReal<T>(0);
#pragma unroll
    for (int k = 0; k < kTile; ++k) {
      const T solved = OfLane(x, k);
      if (k < lane && lane < count) x = MultiplyAdd(factors[k], solved, x);
    }
    if (has_row) s.x[tile + lane][c] = x;
  }

  const int n_, width_, first_, last_, begin_, end_, thread_, threads_;
  T* const a_;
  const Index lda_;
  const int* const moves_;
  const int column_, columns_;  // the block's
};

// Bitonic sort of `size` numbers in shared memory, a power of two. Uses one block.
__device__ inline void SortInBlock(int size, unsigned long long* x) {
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  for (int width = 2; width <= size; width *= 2) {
    for (int apart = width / 2; apart > 0; apart /= 2) {
      for (int i = thread; i < size / 2; i += threads) {
        const int low = i / apart * 2 * apart + i % apart, high = low + apart;
        const unsigned long long first = x[low], second = x[high];
        if ((first > second) != ((low & width) == 0)) continue;
        x[low] = second;
        x[high] = first;
      }
      __syncthreads();
    }
  }
}

// Uses one block. Combines `count` interchanges of rows i and pivots[i] - offset, at most kLuSwaps,
// into moves: row to[i] becomes the former row from[i], for i < 2 * count; -1 if nothing moves.
//
// Each affected row has a place: row i < count has place i; a later row has place count + i, where
// i is its first interchange. Interchange i moves the content of the pivot's place to place i,
// where it stays. An earlier interchange with the same pivot, the last of which is j, has moved the
// content of place j to the pivot's place. Let source[j] be the row that place j holds just before
// interchange j. Following such interchanges back finds it, for all j at once in doubling steps.
__device__ inline void PlanSwaps(int backward, int count, Index offset, const int* pivots,
                                 int* from, int* to) {
  __shared__ unsigned long long order[kLuSwaps];  // rows and their interchanges
  __shared__ int place[kLuSwaps], before[kLuSwaps], sources[2][kLuSwaps], content[2 * kLuSwaps];
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  auto row_at = [&](int k) { return static_cast<int>(order[k] >> 32); };
  auto step_at = [&](int k) { return static_cast<int>(order[k] & 0xffffffff); };
  auto is_last = [&](int k) { return k + 1 == count || row_at(k + 1) != row_at(k); };
  int size = 1;
  while (size < count) size *= 2;
  for (int i = thread; i < size; i += threads) {
    const auto row = static_cast<unsigned long long>(i < count ? pivots[i] - offset : kNoInfo);
    order[i] = row << 32 | static_cast<unsigned>(i);
    if (i >= count) continue;
    sources[0][i] = content[i] = i;
    content[count + i] = count + i;
  }
  __syncthreads();
  SortInBlock(size, order);
  for (int k = thread; k < count; k += threads) {
    const int row = row_at(k), i = step_at(k);
    before[i] = k > 0 && row_at(k - 1) == row ? step_at(k - 1) : -1;
    int first = 0;  // the first entry of this row, by bisection
    for (int half = size / 2; half > 0; half /= 2) {
      if (first + half <= k && row_at(first + half - 1) < row) first += half;
    }
    place[i] = row < count ? row : count + step_at(first);
    // i is the last interchange with this row before the row's own. If the row's own leaves it in
    // its place, i is its own, because no interchange has such a row as its source.
    if (row < count && is_last(k)) sources[0][row] = i;
  }
  __syncthreads();
  const int* source = sources[0];
  for (int reach = 1, side = 1; reach < count; reach *= 2, side = 1 - side) {
    for (int i = thread; i < count; i += threads) sources[side][i] = source[source[i]];
    __syncthreads();
    source = sources[side];
  }
  for (int k = thread; k < count; k += threads) {
    const int i = step_at(k);
    content[i] = before[i] < 0 ? place[i] : source[before[i]];
    if (row_at(k) >= count && is_last(k)) content[place[i]] = source[i];
  }
  __syncthreads();
  auto row_of = [&](int at) {
    return at < count ? at : static_cast<int>(pivots[at - count] - offset);
  };
  // Backward, the moves are the inverse permutation.
  for (int i = thread; i < 2 * count; i += threads) {
    const int other = content[i], target = backward != 0 ? other : i;
    const bool moves = other != i;
    from[target] = moves ? row_of(backward != 0 ? i : other) : -1;
    to[target] = moves ? row_of(target) : -1;
  }
}

// Moves rows `from` to rows `to` of the results of PlanSwaps, with blocks of kThreads that take
// columns in turn. Element (i, j) of the n columns is a[i * row + j * column], so that this also
// moves columns of a matrix. A thread has its moves in registers, so that it reads all their
// elements at once.
template <typename T>
__device__ void MoveRows(Index n, int count, const int* from, const int* to, T* a, Index row,
                         Index column) {
  constexpr int kEach = 2 * kLuSwaps / kThreads;
  const int thread = static_cast<int>(threadIdx.x);
  int sources[kEach], targets[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int i = thread + e * kThreads;
    const bool moves = i < 2 * count && from[i] >= 0;
    sources[e] = moves ? from[i] : -1;
    targets[e] = moves ? to[i] : -1;
  }
  for (Index j = blockIdx.x; j < n; j += gridDim.x) {
    T* line = a + j * column;
    T values[kEach];
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (sources[e] >= 0) values[e] = line[sources[e] * row];
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (targets[e] >= 0) line[targets[e] * row] = values[e];
    }
    __syncthreads();
  }
}

// a_ij := buffer_(sources_i - first)j for columns of m rows, which have no gaps in the buffer.
// Blocks process kTakenRows rows of a column each.
template <typename T>
__device__ void TakeRows(Index m, Index first, const int* sources, const T* buffer, T* a,
                         Index lda) {
  const Index pieces = (m + kTakenRows - 1) / kTakenRows;
  const Index j = blockIdx.x / pieces, begin = blockIdx.x % pieces * kTakenRows;
  const Index end = min(begin + kTakenRows, m);
  for (Index i = begin + threadIdx.x; i < end; i += blockDim.x) {
    a[j * lda + i] = buffer[j * m + sources[i] - first];
  }
}

// Uses one block of at most kThreads. Adds log |det| of the upper triangle to *log_abs, and
// multiplies *sign by its sign and the sign of the interchanges. The order does not depend on
// timing; logarithms are in double precision.
template <typename T>
__device__ void AddDeterminant(Index n, const T* u, Index ldu, Index offset, const int* pivots,
                               typename RealOf<T>::type* log_abs, T* sign) {
  using R = typename RealOf<T>::type;
  __shared__ double sums[kThreads];
  __shared__ __align__(16) unsigned char memory[kThreads * sizeof(T)];
  T* phases = reinterpret_cast<T*>(memory);
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  T phase = FromReal<T>(1);
  for (Index j = thread; j < n; j += threads) {
    const T x = u[j * ldu + j];
    const R size = hypot(RealPart(x), ImaginaryPart(x));
    sum += log(static_cast<double>(size));
    const R turned = pivots[j] == offset + j ? 1 : -1;
    phase = Times(phase, FromParts<T>(size == 0 ? 0 : turned * (RealPart(x) / size),
                                      size == 0 ? 0 : turned * (ImaginaryPart(x) / size)));
  }
  sums[thread] = sum;
  phases[thread] = phase;
  __syncthreads();
  for (int count = threads, half; count > 1; count = half) {
    half = (count + 1) / 2;
    if (thread + half < count) {
      sums[thread] += sums[thread + half];
      phases[thread] = Times(phases[thread], phases[thread + half]);
    }
    __syncthreads();
  }
  if (thread != 0) return;
  *log_abs += static_cast<R>(sums[0]);
  *sign = Times(*sign, phases[0]);
}

// Uses one block. Converts the pivots of a library's factor, which count from 1, to the form of
// lu_kernels.h. Updates *info with the first diagonal element of U that is zero or not finite.
template <typename T>
__device__ void CheckLuFactor(Index n, const T* a, Index lda, Index offset, const Index* from_one,
                              int* pivots, int* info) {
  __shared__ int first;
  if (threadIdx.x == 0) first = *info;
  __syncthreads();
  for (Index j = threadIdx.x; j < n; j += blockDim.x) {
    const T pivot = a[j * lda + j];
    pivots[j] = static_cast<int>(offset + from_one[j] - 1);
    if (!Finite(pivot)) {
      atomicMin(&first, kNotFinite);
    } else if (IsZero(pivot)) {
      atomicMin(&first, static_cast<int>(offset + j + 1));
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) *info = first;
}

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_LU_LU_CUH_
