// Constants that the kernels share with the code that calls them. NVRTC compiles the kernels
// without the standard library, so this header includes nothing.
#ifndef JAXMG_XLA_FFI_DEVICE_CONSTANTS_H_
#define JAXMG_XLA_FFI_DEVICE_CONSTANTS_H_

namespace jaxmg {

// The initial value of an info, larger than all other values. Other values are the smallest order
// of a leading minor that is not positive definite, or LAPACK's info of the eigensolver.
inline constexpr int kNoInfo = 0x7fffffff;
// As in LAPACK, -i means that argument i is illegal: here the ranks have different b.
inline constexpr int kDifferentOperands = -2;
// An LU factorization has a pivot that is not finite. The value is below all orders, so that a
// minimum of infos preserves it.
inline constexpr int kNotFinite = -1;
// The rank coordinates differ from those that the host assumes
// (handlers/platform/cuda_platform.cc).
inline constexpr int kMisplaced = -101;
// A rank's record of the outcome (engine/core/outcome.h) in words of 4 bytes: an info, a digest,
// and, at the given words, the rank's terms of the determinant's logarithm and sign.
inline constexpr int kRecordWords = 8;
inline constexpr int kRecordLogDet = 2;
inline constexpr int kRecordSign = 4;

// Threads of a block: one row of 256, or 32 x 8 for the kernels that move tiles of 32 x 32.
inline constexpr int kThreads = 256;
inline constexpr int kTileEdge = 32;
inline constexpr int kTileRows = 8;
// Rows that a block of kSolveRowsAlone solves, one per thread, and the maximum number of columns.
inline constexpr int kSolveRows = 128;
inline constexpr int kSolveColumns = 128;
// kSolveRowsInTeams: threads per row, rows per block (half as many for complex128), and the number
// of rows up to which this kernel is faster, which only complex128 uses (docs/laboratory.md).
inline constexpr int kTeam = 4;
inline constexpr int kTeamRows = 16;
inline constexpr int kMostTeams = 8192;

// The maximum number of subdiagonals of a band in the chase, also for complex128, and the number of
// threads that share a row.
inline constexpr int kMostBand = 64;
inline constexpr int kMostBandComplex128 = 48;
inline constexpr int kChaseGroups = 4;

// The maximum number of sweeps of a group, and the threads of a block that expands reflectors.
inline constexpr int kGroupSweeps = 32;
inline constexpr int kExpandThreads = 128;

// The shape of the kernel that applies groups of sweeps: the tiles of 8 columns per warp, the tiles
// of 8 rows by which a step advances, the tiles of 8 sweeps, and the number of computing warps.
template <int kColumnTiles, int kStepTiles, int kSweepTiles, int kWorkingWarps>
struct GroupLayout {
  static constexpr int kM = kColumnTiles, kShift = kStepTiles, kGroupTiles = kSweepTiles;
  static constexpr int kTiles = kShift + kGroupTiles;  // in the height of a block of reflectors
  static constexpr int kWarps = kWorkingWarps, kThreads = 32 * (kWarps + 1);
  static constexpr int kColumns = 8 * kM * kWarps;
  static constexpr int kRows = 8 * kTiles, kSweeps = 8 * kGroupTiles;
  // The leading dimensions of V and W in shared memory, which avoid bank conflicts, and the number
  // of elements of both.
  static constexpr int kLdV = (kRows + 15) / 16 * 16 + 8, kLdW = kRows + 2;
  static constexpr int kBuffer = kSweeps * (kLdV + kLdW);
  // The leading dimension of every warp's prefetched rows, and the number of elements of shared
  // memory.
  static constexpr int kLdZ = 8 * kM + 2;
  static constexpr int kShared = 2 * kBuffer + kWarps * 8 * kShift * kLdZ;
};

// The shapes for float64 and complex128.
template <bool kComplex>
struct GroupShape : GroupLayout<kComplex ? 1 : 2, (kComplex ? kMostBandComplex128 : kMostBand) / 8,
                                kGroupSweeps / 8, 7> {};

// QR of a panel: the maximum number of columns, threads per block, the minimum number of rows of a
// block if there are several, and the maximum number of blocks with rows.
inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelThreads = 512;
inline constexpr int kPanelRows = 256;
inline constexpr int kPanelBlocks = 256;
// QR of a panel whose rows are all in registers: columns per warp, the maximum number of rows per
// lane by the bytes of an element, the number of blocks from which on they have more than half of
// that maximum, and the number of parts of a sum for T.
inline constexpr int kWarpColumns = 4;
template <int kBytes>
inline constexpr int kLaneRows = 64 / kBytes;
inline constexpr int kRegisterBlocks = 32;
inline constexpr int kPanelParts = 8;

// LU of a panel: the largest and the smallest number of columns that the kernels support, threads
// per block, a thread's bytes in registers and hence its rows by the bytes of an element, the
// maximum number of blocks and of blocks in a cluster, the maximum number of words that a block
// sends to others per column, and the maximum number of row interchanges at once.
inline constexpr int kLuColumns = 32, kLuLeastColumns = 4;
inline constexpr int kLuThreads = 256;
inline constexpr int kLuThreadBytes = 512;
template <int kBytes, int kColumns>
inline constexpr int kLuRows = kLuThreadBytes / kBytes / kColumns;
inline constexpr int kLuBlocks = 160;
inline constexpr int kLuCluster = 16;
inline constexpr int kLuSlotWords = 2 + 2 * (kLuColumns + 1);
inline constexpr int kLuSwaps = 1024;
// The maximum number of rows that the step between two halves of a panel solves for, and the
// columns of a block.
inline constexpr int kLuDepth = 512;
inline constexpr int kLuStepColumns = 4;

// Substitution with a triangle for few right-hand sides. The threads of a block form a square with
// kTriangleEdge threads on each side, and a tile has kTriangleSquares such squares on each side. A
// block solves for up to kTriangleColumns right-hand sides. An element takes kTriangleWords words
// of 8 bytes.
inline constexpr int kTriangleEdge = 16;
template <int kBytes>
inline constexpr int kTriangleSquares = kBytes == 16 ? 2 : 4;
inline constexpr int kTriangleColumns = 4;
template <int kBytes>
inline constexpr int kTriangleWords = (kBytes + 7) / 8;

// Substitution of columns with a unit lower triangle: the order of triangles by the bytes of an
// element, and the columns of a block, one for each thread.
template <int kBytes>
inline constexpr int kColumnSolverOrder = kBytes == 16 ? 32 : 64;
inline constexpr int kColumnSolverThreads = 128;

// Number of threads that share a root, an element of z or a vector in a merge of divide and
// conquer.
inline constexpr int kSecularThreads = 128;
// The same number for merges of stacks, which are many, and the maximum number of evaluations of
// their equation.
inline constexpr int kStackThreads = 64;
inline constexpr int kMostSecularEvaluations = 80;
// The largest order of tridiagonal matrices that QL solves, with a thread for each row of the
// eigenvectors.
inline constexpr int kMostQl = 32;
// LU of stacks: threads of a block that factors a panel, and the maximum number of columns of a
// panel.
inline constexpr int kStackLuThreads = 512;
inline constexpr int kStackLuColumns = 32;
inline constexpr int kStackMoveThreads = 128;  // of a block that moves rows, a column per thread
// The maximum number of columns of a matrix that is factored as one panel.
inline constexpr int kStackLuWhole = 64;
// The maximum number of threads of a block that reduces a matrix of a stack to tridiagonal form,
// and the number of rows that a warp processes at a time.
inline constexpr int kStackTridiagonalThreads = 512;
inline constexpr int kStackTridiagonalRows = 8;
// Products with reflectors of stacks: the reflectors of a panel by the bytes of an element.
template <int kBytes>
inline constexpr int kStackReflectors = kBytes == 16 ? 32 : 64;
// QR of stacks: the columns of a panel, one for each lane of a warp, and the number of warps of a
// block that hold its rows.
inline constexpr int kStackQrColumns = 32;
inline constexpr int kStackQrWarps = 16;
// Cholesky factorizations of stacks, and inverses of their triangles. kStackTriangle: the order of
// the blocks that threads hold in registers. kStackDiagonal: the order of diagonal blocks, which
// consist of one or 2 x 2 of these. kStackDiagonalThreads: threads that factor a diagonal block.
// kStackRows: threads for the rows below it, one for each row.
inline constexpr int kStackTriangle = 32;
template <int kBytes>
inline constexpr int kStackDiagonal = kBytes == 16 ? kStackTriangle : 2 * kStackTriangle;
inline constexpr int kStackDiagonalThreads = 64;
inline constexpr int kStackRows = 128;
// Threads of a block that substitutes, and the largest order of its matrix.
inline constexpr int kStackSubstitutionThreads = 256;
inline constexpr int kMostStackSubstitution = 4096;
// The largest order of matrices that a warp inverts, or solves with, in registers; the maximum
// number of right-hand sides; and threads per block.
inline constexpr int kMostSmall = 32;
inline constexpr int kMostSmallColumns = 4;
inline constexpr int kSmallThreads = 128;

// Elementwise operations on stacks: threads per block, the approximate number of elements of a
// block's piece of a matrix, and the maximum number of pieces of a matrix. Then the codes of the
// sums.
inline constexpr int kStackElementThreads = 256;
inline constexpr int kStackPiece = 8192, kMostStackPieces = 64;
inline constexpr int kSumInner = 0, kSumDifference = 1, kSumFromIdentity = 2;

// Indices of the parts that are multiplied with each other; three products use the last three
// entries (parts.h).
inline constexpr int kMostProducts = 6;
inline constexpr int kLeftPart[kMostProducts] = {2, 1, 0, 1, 0, 0};
inline constexpr int kRightPart[kMostProducts] = {0, 1, 2, 0, 1, 0};

// Splitting into float16 numbers has three products. The parts of kHalfScale x = h0 + h1 are h0,
// kHalfShift h1 and h0 / kHalfShift.
inline constexpr float kHalfScale = 4, kHalfShift = 64;
// The largest element of a scaled row is between this value, 2^kScaledExponent, and twice that. A
// scale is at least the smallest normal number.
inline constexpr int kScaledExponent = 12;
inline constexpr float kScaledPart = 4096;
inline constexpr int kLeftHalf[] = {1, 2, 0};
inline constexpr int kRightHalf[] = {2, 1, 0};

// The number of real numbers of a factor in a group of parts (parts.h): the depth of one tensor
// core instruction.
inline constexpr int kPartsGroup = 16;

// Products of parts on Hopper GPUs (part_products.cuh): the columns that tensor cores sum, a
// block's tile of C, the rows of a factor per load, the stages in shared memory, and threads per
// block.
inline constexpr int kChunkDepth = 3 * kPartsGroup;
inline constexpr int kProductTileM = 128, kProductTileN = 256;
inline constexpr int kProductBox = 64;
inline constexpr int kProductStages = 6;
inline constexpr int kProductThreads = 384;
inline constexpr int kProductShared =
    kProductStages * (kProductTileM + kProductTileN) * kChunkDepth * 2 + 2048;
// Tensor cores truncate sums, by 0.65 * 2^-24 relative on average (0.50 to 0.75,
// benchmarks/part_products.cu). To compensate, chunks are multiplied by kChunkFactor and their sum
// by kSumFactor. The product of the two factors is 1 + 0.65 * 2^-24; both differ enough from 1 to
// be float32 numbers.
inline constexpr float kChunkFactor = 1 + 1212.0f / 8388608;
inline constexpr float kSumFactor = 1 - 2423.0f / 16777216;

// The rows of a column that a block of kTakeRows processes.
inline constexpr int kTakenRows = 4 * kThreads;

// The columns of a row in which a thread of kRowLargest searches for the largest element.
inline constexpr int kLargestColumns = 64;

// The bytes of a column that a block of kCopyColumns copies, and of a part that a block of
// kCopyToParts copies.
inline constexpr int kCopySegment = kThreads * 64;

// The argument of kCopyToParts: bytes starts[i] to starts[i + 1] are copied to `to[i]`. A kernel's
// arguments are limited to 4 KB.
inline constexpr int kMostParts = 128;
struct PartsToCopy {
  char* to[kMostParts];
  long long starts[kMostParts + 1];
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CONSTANTS_H_
