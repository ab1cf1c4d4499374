// Numbers that the kernels and the code that calls them both need. NVRTC compiles the kernels
// without the standard library, so nothing is included here.
#ifndef JAXMG_XLA_FFI_DEVICE_CONSTANTS_H_
#define JAXMG_XLA_FFI_DEVICE_CONSTANTS_H_

namespace jaxmg {

// An info is the smallest order of a leading minor that is not positive definite, or LAPACK's of
// the solver of eigenvalues. What an info starts from: larger than any.
inline constexpr int kNoInfo = 0x7fffffff;
// As LAPACK's -i, argument i is illegal: ranks have brought different b.
inline constexpr int kDifferentOperands = -2;
// An LU factorization has come upon a pivot that is not finite. Below all orders, so that it is
// what an info keeps.
inline constexpr int kNotFinite = -1;
// The program runs on other devices than those that it was made for.
inline constexpr int kMisplaced = -101;

// Threads of a block: one row of 256, or 32 x 8 for the kernels that move tiles of 32 x 32.
inline constexpr int kThreads = 256;
inline constexpr int kTileEdge = 32;
inline constexpr int kTileRows = 8;
// Rows that a block of kSolveRowsAlone solves, one a thread, and the most columns that they have.
inline constexpr int kSolveRows = 128;
inline constexpr int kSolveColumns = 128;
// Threads that have a row in kSolveRowsInTeams, rows of a block (half as many of complex128), and
// the rows up to which that is faster, for complex128 alone: docs/performance.md.
inline constexpr int kTeam = 4;
inline constexpr int kTeamRows = 16;
inline constexpr int kMostTeams = 8192;

// The most subdiagonals of a band whose bulges are chased, and of complex128's; the threads that
// share a row of what is worked on.
inline constexpr int kMostBand = 64;
inline constexpr int kMostBandComplex128 = 48;
inline constexpr int kChaseGroups = 4;

// The most sweeps of a group, whose reflectors kernels expand, and the threads of a block of those.
inline constexpr int kGroupSweeps = 32;
inline constexpr int kExpandThreads = 128;

// How a kernel applies groups of sweeps: tiles of 8 columns that a warp has, of 8 rows by which a
// step is further down, of 8 sweeps, and warps that have columns.
template <int kColumnTiles, int kStepTiles, int kSweepTiles, int kWorkingWarps>
struct GroupLayout {
  static constexpr int kM = kColumnTiles, kShift = kStepTiles, kGroupTiles = kSweepTiles;
  static constexpr int kTiles = kShift + kGroupTiles;  // of a block of reflectors
  static constexpr int kWarps = kWorkingWarps, kThreads = 32 * (kWarps + 1);
  static constexpr int kColumns = 8 * kM * kWarps;
  static constexpr int kRows = 8 * kTiles, kSweeps = 8 * kGroupTiles;
  // Of V and of W in shared memory, such that what a warp reads at a time lies in different banks;
  // and the elements of both.
  static constexpr int kLdV = (kRows + 15) / 16 * 16 + 8, kLdW = kRows + 2;
  static constexpr int kBuffer = kSweeps * (kLdV + kLdW);
  // The rows of a step that come next, of every warp; and all of it.
  static constexpr int kLdZ = 8 * kM + 2;
  static constexpr int kShared = 2 * kBuffer + kWarps * 8 * kShift * kLdZ;
};

// Of float64, and of complex128.
template <bool kComplex>
struct GroupShape : GroupLayout<kComplex ? 1 : 2, (kComplex ? kMostBandComplex128 : kMostBand) / 8,
                                kGroupSweeps / 8, 7> {};

// QR of a panel: its most columns, threads of a block, rows that a block has at least where there
// are several, and the most blocks that have rows.
inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelThreads = 512;
inline constexpr int kPanelRows = 256;
inline constexpr int kPanelBlocks = 256;

// LU of a panel: the most columns and the least that kernels are for, threads of a block, bytes
// that a thread has in registers, and hence rows, by the bytes of an element; the most blocks, and
// of a cluster; the words that a block sends to others in a column at most. And the most
// interchanges of rows that are done at once.
inline constexpr int kLuColumns = 32, kLuLeastColumns = 4;
inline constexpr int kLuThreads = 256;
inline constexpr int kLuThreadBytes = 512;
template <int kBytes, int kColumns>
inline constexpr int kLuRows = kLuThreadBytes / kBytes / kColumns;
inline constexpr int kLuBlocks = 160;
inline constexpr int kLuCluster = 16;
inline constexpr int kLuSlotWords = 2 + 2 * (kLuColumns + 1);
inline constexpr int kLuSwaps = 1024;
// What a step between two halves of a panel has to solve at most, and the columns that a block has.
inline constexpr int kLuDepth = 512;
inline constexpr int kLuStepColumns = 4;

// Threads that have a root, an element of z or a vector of a merge of divide and conquer.
inline constexpr int kSecularThreads = 128;

// The parts of a factor that are multiplied, of three to six products the last ones (parts.h).
inline constexpr int kMostProducts = 6;
inline constexpr int kLeftPart[kMostProducts] = {2, 1, 0, 1, 0, 0};
inline constexpr int kRightPart[kMostProducts] = {0, 1, 2, 0, 1, 0};

// Of float16 numbers there are three products, and of kHalfScale x = h0 + h1 the parts h0,
// kHalfShift h1 and h0 / kHalfShift.
inline constexpr float kHalfScale = 4, kHalfShift = 64;
inline constexpr int kLeftHalf[] = {1, 2, 0};
inline constexpr int kRightHalf[] = {2, 1, 0};

// Real numbers of a factor whose parts, of each of the products, lie side by side (parts.h): as
// many as tensor cores multiply at once.
inline constexpr int kPartsGroup = 16;

// Products of parts on Hopper GPUs (part_products.cuh): the columns that tensor cores sum up, the
// tile of C that a block has, the rows of a factor that are loaded at once, the block's stages of
// shared memory, and its threads.
inline constexpr int kChunkDepth = 3 * kPartsGroup;
inline constexpr int kProductTileM = 128, kProductTileN = 256;
inline constexpr int kProductBox = 64;
inline constexpr int kProductStages = 6;
inline constexpr int kProductThreads = 384;
inline constexpr int kProductShared =
    kProductStages * (kProductTileM + kProductTileN) * kChunkDepth * 2 + 2048;
// What tensor cores sum up falls short of itself by 0.65 units of 2^-24 on average (0.50 to 0.75,
// benchmarks/part_products.cu). So chunks are multiplied by kChunkFactor and their sum by
// kSumFactor, which are together 1 + 0.65 * 2^-24 and far enough from 1 to be numbers of float32.
inline constexpr float kChunkFactor = 1 + 1212.0f / 8388608;
inline constexpr float kSumFactor = 1 - 2423.0f / 16777216;

// Columns of a row of which a thread of kRowLargest finds the largest element.
inline constexpr int kLargestColumns = 64;

// Bytes of a column that a block of kCopyColumns copies.
inline constexpr int kCopySegment = kThreads * 64;

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CONSTANTS_H_
