// Substitution with a triangular matrix for few right-hand sides, in one launch (Blas::Trsm).
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_CHOLESKY_TRIANGULAR_CUH_
#define JAXMG_XLA_FFI_DEVICE_CUDA_CHOLESKY_TRIANGULAR_CUH_

#include "xla_ffi/device/constants.h"
#include "xla_ffi/device/cuda/core/scalars.cuh"
#include "xla_ffi/device/cuda/core/signals.cuh"
#include "xla_ffi/device/cuda/core/warps.cuh"

namespace jaxmg::kernels {

// A system M X = B of order n, M lower triangular, with `nrhs` right-hand sides. M(i, k) is a[i *
// row + k * column], or its conjugate. Strides may be negative, so that an upper triangle becomes a
// lower one in reverse order. X(i, r) is x[i * x_row + r * x_column], and B(i, r) likewise in b,
// which may be x.
template <typename T>
struct Triangular {
  Index n;
  int nrhs, conjugated, unit;
  const T* a;
  Index row, column;
  const T* b;
  Index b_row, b_column;
  T* x;
  Index x_row, x_column;
};

// A block takes the next kRows rows by a ticket, for up to kColumns right-hand sides. It subtracts
// from B the contributions of earlier rows, as these are solved for, and solves with the diagonal
// tile:
//
//         k            kRows
//     ┌───────┬───────┬──────┐         X(k) arrives as words with a tag (signals.cuh), in one
//     │ tile  │ tile  │ diag │         transfer; the tile is loaded before that.
//     └───────┴───────┴──────┘
//
// A block waits only for blocks with lower tickets, which have already begun. So it doesn't matter
// how many blocks fit on the device.
//
// The threads are a square of kEdge x kEdge, which loads a tile square by square. Neighboring
// threads read neighboring elements of M.
template <typename T, int kColumns, int kEdge = kTriangleEdge,
          int kSquares = kTriangleSquares<sizeof(T)>>
class TriangleSolver {
 public:
  static constexpr int kRows = kEdge * kSquares, kThreads = kEdge * kEdge;
  static constexpr int kWords = kTriangleWords<sizeof(T)>;

  // `words` has space for kWords n nrhs words, none of which has the tag. `*ticket` is first_ticket
  // plus the number of blocks that have begun.
  __device__ TriangleSolver(const Triangular<T>& of, TaggedWord* words, unsigned tag,
                            unsigned* ticket, unsigned first_ticket)
      : of_(of),
        words_(words),
        tag_(tag),
        ticket_(ticket),
        first_ticket_(first_ticket),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % 32),
        warp_(thread_ / 32),
        across_(of.column == 1 || of.column == -1),
        row_(across_ ? thread_ / kEdge : thread_ % kEdge),
        column_(across_ ? thread_ % kEdge : thread_ / kEdge) {}

  __device__ void Run() {
    TakeTicket();
    const bool solves = warp_ < kSolvers && warp_ / kHalves < columns_ && OwnRow() < rows_;
    const T own =
        solves ? of_.b[(begin_ + OwnRow()) * of_.b_row + (first_ + OwnColumn()) * of_.b_column]
               : FromReal<T>(0);
    LoadDiagonal();
    T sums[kSquares][kColumns];
#pragma unroll
    for (int q = 0; q < kSquares; ++q) {
#pragma unroll
      for (int r = 0; r < kColumns; ++r) sums[q][r] = FromReal<T>(0);
    }
    T tile[kSquares][kSquares];
    if (step_ > 0) LoadTile(0, tile);
    for (int k = 0; k < step_; ++k) {
      T next[kSquares][kSquares];
      if (k + 1 < step_) LoadTile(k + 1, next);
      Receive(k);
      __syncthreads();
      Multiply(tile, shared().solved[k % 2], sums);
#pragma unroll
      for (int q = 0; q < kSquares; ++q) {
#pragma unroll
        for (int c = 0; c < kSquares; ++c) tile[q][c] = next[q][c];
      }
    }
    const int parts = Collect(sums);
    __syncthreads();
    SolveDiagonal(own, solves, parts);
  }

 private:
  // Rows of one right-hand side that a warp solves for, one in each lane; the number of dependent
  // rows that a lane solves at once; and the number of warps that solve.
  static constexpr int kHalf = 32, kHalves = kRows / kHalf, kGo = 8;
  static constexpr int kSolvers = kHalves * kColumns;
  static_assert(kRows % kHalf == 0 && kSolvers <= kThreads / 32);

  struct Shared {
    // Row by row, the lower triangle of the diagonal tile; and the reciprocals of its diagonal.
    T diagonal[kRows * (kRows + 1) / 2];
    T reciprocals[kRows];
    T solved[2][kRows][kColumns];  // earlier rows, double-buffered
    T parts[kThreads / 32][kRows][kColumns];
    T x[kRows][kColumns];
    int ticket;
  };
  __device__ static Shared& shared() {
    __shared__ __align__(16) unsigned char memory[sizeof(Shared)];
    return *reinterpret_cast<Shared*>(memory);
  }

  __device__ int OwnRow() const { return warp_ % kHalves * kHalf + lane_; }
  __device__ int OwnColumn() const { return warp_ / kHalves; }
  __device__ static T& Diagonal(int i, int k) { return shared().diagonal[i * (i + 1) / 2 + k]; }

  // Consecutive tickets have the same rows.
  __device__ void TakeTicket() {
    if (thread_ == 0) shared().ticket = static_cast<int>(atomicAdd(ticket_, 1u) - first_ticket_);
    __syncthreads();
    const int groups = (of_.nrhs + kColumns - 1) / kColumns, ticket = shared().ticket;
    step_ = ticket / groups;
    first_ = ticket % groups * kColumns;
    columns_ = min(kColumns, of_.nrhs - first_);
    begin_ = Index(step_) * kRows;
    rows_ = static_cast<int>(min(Index(kRows), of_.n - begin_));
  }

  // Returns the thread's first element of the block's tile k.
  __device__ const T* TileAt(int k) const {
    return of_.a + (begin_ + row_) * of_.row + (Index(k) * kRows + column_) * of_.column;
  }
  __device__ T Load(const T* tile, int q, int c) const {
    const T x = tile[q * (kEdge * of_.row) + c * (kEdge * of_.column)];
    return of_.conjugated != 0 ? Conj(x) : x;
  }

  __device__ void LoadDiagonal() const {
    Shared& s = shared();
    const T* at = TileAt(step_);
#pragma unroll
    for (int q = 0; q < kSquares; ++q) {
#pragma unroll
      for (int c = 0; c < kSquares; ++c) {
        const int i = row_ + q * kEdge, k = column_ + c * kEdge;
        if (k > i || (k == i && of_.unit != 0)) continue;
        const T x = i < rows_ ? Load(at, q, c) : FromReal<T>(k == i);
        Diagonal(i, k) = x;
        if (k == i) s.reciprocals[i] = Divide(FromReal<T>(1), x);
      }
    }
  }

  __device__ void LoadTile(int k, T (&tile)[kSquares][kSquares]) const {
    const T* at = TileAt(k);
#pragma unroll
    for (int q = 0; q < kSquares; ++q) {
#pragma unroll
      for (int c = 0; c < kSquares; ++c) {
        tile[q][c] = row_ + q * kEdge < rows_ ? Load(at, q, c) : FromReal<T>(0);
      }
    }
  }

  // Receives X(k) for this block's right-hand sides. Only the next block in order is urgent; others
  // pause between accesses to memory.
  __device__ void Receive(int k) const {
    const bool next = k + 1 == step_;
    for (int v = thread_; v < kRows * kColumns; v += kThreads) {
      const int i = v / kColumns, r = v % kColumns;
      T x = FromReal<T>(0);
      if (r < columns_) {
        const TaggedWord* from = WordsOf(Index(k) * kRows + i, r);
        unsigned halves[2 * kWords];
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          TaggedWord word = LoadWord(from + w);
          while (!word.Has(tag_)) {
            if (!next) __nanosleep(kNap);
            word = LoadWord(from + w);
          }
          halves[2 * w] = word.First();
          halves[2 * w + 1] = word.Second();
        }
        memcpy(&x, halves, sizeof(T));
      }
      shared().solved[k % 2][i][r] = x;
    }
  }

  __device__ void Multiply(const T (&tile)[kSquares][kSquares], const T (&x)[kRows][kColumns],
                           T (&sums)[kSquares][kColumns]) const {
#pragma unroll
    for (int c = 0; c < kSquares; ++c) {
      T of_column[kColumns];
#pragma unroll
      for (int r = 0; r < kColumns; ++r) of_column[r] = x[column_ + c * kEdge][r];
#pragma unroll
      for (int q = 0; q < kSquares; ++q) {
#pragma unroll
        for (int r = 0; r < kColumns; ++r) {
          sums[q][r] = MultiplyAdd(tile[q][c], of_column[r], sums[q][r]);
        }
      }
    }
  }

  // Sums over the threads that have the same rows, with shuffles within a warp. Returns the number
  // of remaining parts, each with all rows.
  __device__ int Collect(T (&sums)[kSquares][kColumns]) const {
    const int begin = across_ ? 1 : kEdge, end = across_ ? kEdge : 32;
    for (int lanes = begin; lanes < end; lanes *= 2) {
#pragma unroll
      for (int q = 0; q < kSquares; ++q) {
#pragma unroll
        for (int r = 0; r < kColumns; ++r) {
          sums[q][r] = Plus(sums[q][r], AcrossLanes(sums[q][r], lanes));
        }
      }
    }
    if (across_ ? column_ == 0 : lane_ < kEdge) {
#pragma unroll
      for (int q = 0; q < kSquares; ++q) {
#pragma unroll
        for (int r = 0; r < kColumns; ++r) {
          shared().parts[across_ ? 0 : warp_][row_ + q * kEdge][r] = sums[q][r];
        }
      }
    }
    return across_ ? 1 : kThreads / 32;
  }

  // Solves half after half. `own` is an element of B, in the threads that solve.
  __device__ void SolveDiagonal(const T& own, bool solves, int parts) const {
    Shared& s = shared();
    const int row = OwnRow(), column = OwnColumn();
    T x = own;
    if (solves) {
      T sum = FromReal<T>(0);
      for (int part = 0; part < parts; ++part) sum = Plus(sum, s.parts[part][row][column]);
      x = Plus(x, Scale(sum, -1));
    }
    // All lanes of a warp have the same half.
    for (int half = 0; half < kHalves; ++half) {
      if (warp_ < kSolvers && warp_ % kHalves == half) {
        if (half > 0) x = MinusSolved(x, row, column, half * kHalf);
        x = SolveHalf(x, half * kHalf);
        s.x[row][column] = x;
        if (solves) Send(x, row, column);
      }
      if (half + 1 < kHalves) __syncthreads();
    }
  }

  // Returns x minus the contributions of rows 0 to `count` of the tile.
  __device__ T MinusSolved(const T& x, int row, int column, int count) const {
    constexpr int kSums = 4;  // several, so that they don't wait for each other
    T sums[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = FromReal<T>(0);
    for (int k = 0; k < count; k += kSums) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        sums[i] = MultiplyAdd(Diagonal(row, k + i), shared().x[k + i][column], sums[i]);
      }
    }
    return Plus(x, Scale(Plus(Plus(sums[0], sums[1]), Plus(sums[2], sums[3])), -1));
  }

  // Solves with a warp for rows `begin` to begin + kHalf, one in each lane. Every lane solves for
  // kGo rows at a time, which is faster than waiting for another lane after each row.
  __device__ T SolveHalf(T x, int begin) const {
    Shared& s = shared();
    const bool unit = of_.unit != 0;
    const bool divides = !unit && AnyOfWarp(!Ordinary(Diagonal(begin + lane_, begin + lane_)));
    for (int go = 0; go < kHalf; go += kGo) {
      const int top = begin + go;
      T solved[kGo];
#pragma unroll
      for (int i = 0; i < kGo; ++i) solved[i] = OfLane(x, go + i);
#pragma unroll
      for (int k = 0; k < kGo; ++k) {
        if (divides) {
          solved[k] = Divide(solved[k], Diagonal(top + k, top + k));
        } else if (!unit) {
          solved[k] = Times(solved[k], s.reciprocals[top + k]);
        }
#pragma unroll
        for (int i = k + 1; i < kGo; ++i) {
          solved[i] = MultiplyAdd(Scale(Diagonal(top + i, top + k), -1), solved[k], solved[i]);
        }
      }
#pragma unroll
      for (int k = 0; k < kGo; ++k) {
        if (lane_ == go + k) x = solved[k];
        if (lane_ >= go + kGo) {
          x = MultiplyAdd(Scale(Diagonal(begin + lane_, top + k), -1), solved[k], x);
        }
      }
    }
    return x;
  }

  // Returns whether the reciprocal of x is in the range, with all digits.
  __device__ static bool Ordinary(T x) {
    using R = typename RealOf<T>::type;
    const R size = fmax(fabs(RealPart(x)), fabs(ImaginaryPart(x)));
    const R small = sizeof(R) == 8 ? R(0x1p-1000) : R(0x1p-100);
    return size >= small && size <= 1 / small;  // and not NaN
  }

  __device__ void Send(const T& x, int row, int column) const {
    of_.x[(begin_ + row) * of_.x_row + (first_ + column) * of_.x_column] = x;
    unsigned halves[2 * kWords] = {};
    memcpy(halves, &x, sizeof(T));
    TaggedWord* to = WordsOf(begin_ + row, column);
#pragma unroll
    for (int w = 0; w < kWords; ++w) StoreWord(to + w, halves[2 * w], halves[2 * w + 1], tag_);
  }

  __device__ TaggedWord* WordsOf(Index i, int column) const {
    return words_ + (i * of_.nrhs + first_ + column) * kWords;
  }

  static constexpr unsigned kNap = 200;  // nanoseconds

  const Triangular<T>& of_;
  TaggedWord* const words_;
  const unsigned tag_;
  unsigned* const ticket_;
  const unsigned first_ticket_;
  const int thread_, lane_, warp_;
  const bool across_;
  const int row_, column_;  // in a square
  // The block's rows and right-hand sides.
  int step_ = 0, first_ = 0, columns_ = 0, rows_ = 0;
  Index begin_ = 0;
};

}  // namespace jaxmg::kernels

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_CHOLESKY_TRIANGULAR_CUH_
