// Constants that the kernels share with the code that calls them. NVRTC compiles the kernels
// without the standard library, so this header includes nothing.
#ifndef JAXMG_XLA_FFI_DEVICE_CONSTANTS_H_
#define JAXMG_XLA_FFI_DEVICE_CONSTANTS_H_

namespace jaxmg {

// The initial value of an info, larger than any other. An info is the smallest order of a leading
// minor that is not positive definite, or LAPACK's info of the eigensolver.
inline constexpr int kNoInfo = 0x7fffffff;
// As in LAPACK, -i means that argument i is illegal: the ranks have different b.
inline constexpr int kDifferentOperands = -2;
// An LU factorization has a pivot that is not finite. Smaller than all orders, so that an info
// keeps it.
inline constexpr int kNotFinite = -1;
// The rank coordinates differ from those that the host assumes (handlers/cuda_platform.cc).
inline constexpr int kMisplaced = -101;
// A rank's record of the outcome (engine/core/outcome.h) in words of 4 bytes: an info and a digest,
// and from these words on the rank's terms of the logarithm and of the sign of the determinant.
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
// of rows up to which it is faster, which applies only to complex128 (docs/laboratory.md).
inline constexpr int kTeam = 4;
inline constexpr int kTeamRows = 16;
inline constexpr int kMostTeams = 8192;

// The maximum number of subdiagonals of a band in the chase, and that for complex128; the number of
// threads that share a row.
inline constexpr int kMostBand = 64;
inline constexpr int kMostBandComplex128 = 48;
inline constexpr int kChaseGroups = 4;

// The maximum number of sweeps of a group, and the threads of a block that expands reflectors.
inline constexpr int kGroupSweeps = 32;
inline constexpr int kExpandThreads = 128;

// The shape of the kernel that applies groups of sweeps: the tiles of 8 columns of a warp, the
// tiles of 8 rows by which a step advances, the tiles of 8 sweeps, and the warps that compute.
template <int kColumnTiles, int kStepTiles, int kSweepTiles, int kWorkingWarps>
struct GroupLayout {
  static constexpr int kM = kColumnTiles, kShift = kStepTiles, kGroupTiles = kSweepTiles;
  static constexpr int kTiles = kShift + kGroupTiles;  // in the height of a block of reflectors
  static constexpr int kWarps = kWorkingWarps, kThreads = 32 * (kWarps + 1);
  static constexpr int kColumns = 8 * kM * kWarps;
  static constexpr int kRows = 8 * kTiles, kSweeps = 8 * kGroupTiles;
  // The leading dimensions of V and of W in shared memory, which avoid bank conflicts, and the
  // elements of both.
  static constexpr int kLdV = (kRows + 15) / 16 * 16 + 8, kLdW = kRows + 2;
  static constexpr int kBuffer = kSweeps * (kLdV + kLdW);
  // The leading dimension of the prefetched rows of every warp, and all elements of shared memory.
  static constexpr int kLdZ = 8 * kM + 2;
  static constexpr int kShared = 2 * kBuffer + kWarps * 8 * kShift * kLdZ;
};

// The shapes for float64 and complex128.
template <bool kComplex>
struct GroupShape : GroupLayout<kComplex ? 1 : 2, (kComplex ? kMostBandComplex128 : kMostBand) / 8,
                                kGroupSweeps / 8, 7> {};

// QR of a panel: its most columns, threads of a block, rows that a block has at least where there
// are several, and the most blocks that have rows.
inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelThreads = 512;
inline constexpr int kPanelRows = 256;
inline constexpr int kPanelBlocks = 256;
// Where all of its rows are in registers: the columns that a warp has, the most rows that a lane
// has of an element's size, the blocks from which on they have more than half of that, and the
// parts of a sum for T.
inline constexpr int kWarpColumns = 4;
template <int kBytes>
inline constexpr int kLaneRows = 64 / kBytes;
inline constexpr int kRegisterBlocks = 32;
inline constexpr int kPanelParts = 8;

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

// Substitution with a triangle for few right-hand sides: the threads of a block are a square of
// this edge; the squares of a tile's edge, by the bytes of an element; the right-hand sides of a
// block where there are several, and the words of 8 bytes of an element.
inline constexpr int kTriangleEdge = 16;
template <int kBytes>
inline constexpr int kTriangleSquares = kBytes == 16 ? 2 : 4;
inline constexpr int kTriangleColumns = 4;
template <int kBytes>
inline constexpr int kTriangleWords = (kBytes + 7) / 8;

// Substitution of columns with a unit lower triangle: the order of triangles, by the bytes of an
// element, and the columns of a block.
template <int kBytes>
inline constexpr int kColumnSolverOrder = kBytes == 16 ? 32 : 64;
inline constexpr int kColumnSolverThreads = 128;

// Threads that share a root, an element of z or a vector in a merge of divide and conquer.
inline constexpr int kSecularThreads = 128;
// Those of merges for stacks, of which there are many, and the most evaluations of an equation
// there.
inline constexpr int kStackThreads = 64;
inline constexpr int kMostSecularEvaluations = 80;
// The largest order of tridiagonal matrices that are solved by QL, with a thread for each row of
// the eigenvectors.
inline constexpr int kMostQl = 32;
// LU of stacks: threads of a block that factors a panel, and the most columns of one.
inline constexpr int kStackLuThreads = 512;
inline constexpr int kStackLuColumns = 32;
inline constexpr int kStackMoveThreads = 128;  // of a block that moves rows, a column each
// The most columns of a matrix that is factored as one panel.
inline constexpr int kStackLuWhole = 64;
// Threads of a block that reduces a matrix of a stack to tridiagonal form, at most, and the rows
// that a warp has at a time.
inline constexpr int kStackTridiagonalThreads = 512;
inline constexpr int kStackTridiagonalRows = 8;
// QR of stacks: the columns of a panel, one for each lane of a warp, and the warps of a block that
// have rows of it.
inline constexpr int kStackQrColumns = 32;
inline constexpr int kStackQrWarps = 16;
// Cholesky factorizations and inverses of triangles of stacks: the order of the blocks that threads
// have in registers; that of blocks on the diagonal, by the bytes of an element, one or two of
// these; threads of a block that factors one; rows of a block below it, one for each thread.
inline constexpr int kStackTriangle = 32;
template <int kBytes>
inline constexpr int kStackDiagonal = kBytes == 16 ? kStackTriangle : 2 * kStackTriangle;
inline constexpr int kStackDiagonalThreads = 64;
inline constexpr int kStackRows = 128;
// Threads of a block that substitutes, and the largest order.
inline constexpr int kStackSubstitutionThreads = 256;
inline constexpr int kMostStackSubstitution = 4096;
// The largest order of matrices that a warp inverts, or solves with in registers, for how many
// right-hand sides, and the threads of a block.
inline constexpr int kMostSmall = 32;
inline constexpr int kMostSmallColumns = 4;
inline constexpr int kSmallThreads = 128;

// Elementwise operations on stacks: threads of a block, the elements of its piece of a matrix,
// about, and the most pieces of a matrix. Which sum is formed.
inline constexpr int kStackElementThreads = 256;
inline constexpr int kStackPiece = 8192, kMostStackPieces = 64;
inline constexpr int kSumInner = 0, kSumDifference = 1, kSumFromIdentity = 2;

// The parts that are multiplied with each other; three products use the last three entries
// (parts.h).
inline constexpr int kMostProducts = 6;
inline constexpr int kLeftPart[kMostProducts] = {2, 1, 0, 1, 0, 0};
inline constexpr int kRightPart[kMostProducts] = {0, 1, 2, 0, 1, 0};

// float16 numbers have three products. The parts of kHalfScale x = h0 + h1 are h0, kHalfShift h1
// and h0 / kHalfShift.
inline constexpr float kHalfScale = 4, kHalfShift = 64;
// The largest element of a scaled row is this or up to twice that: 2^kScaledExponent. A scale is at
// least the smallest normal number.
inline constexpr int kScaledExponent = 12;
inline constexpr float kScaledPart = 4096;
inline constexpr int kLeftHalf[] = {1, 2, 0};
inline constexpr int kRightHalf[] = {2, 1, 0};

// The number of real numbers of a factor in a group of parts (parts.h): as many as one instruction
// of tensor cores multiplies.
inline constexpr int kPartsGroup = 16;

// Products of parts on Hopper GPUs (part_products.cuh): the columns that tensor cores sum, the tile
// of C of a block, the rows of a factor per load, the stages of shared memory, and the threads of a
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
// by kSumFactor. Their product is 1 + 0.65 * 2^-24, and both differ enough from 1 to be float32
// numbers.
inline constexpr float kChunkFactor = 1 + 1212.0f / 8388608;
inline constexpr float kSumFactor = 1 - 2423.0f / 16777216;

// The rows of a column that a block of kTakeRows takes.
inline constexpr int kTakenRows = 4 * kThreads;

// The columns of a row in which a thread of kRowLargest searches the largest element.
inline constexpr int kLargestColumns = 64;

// The bytes of a column that a block of kCopyColumns copies, and of a part that one of kCopyToParts
// does.
inline constexpr int kCopySegment = kThreads * 64;

// What kCopyToParts copies at a time: bytes starts[i] to starts[i + 1] to `to[i]`. An argument of a
// kernel has 4 KB at most.
inline constexpr int kMostParts = 128;
struct PartsToCopy {
  char* to[kMostParts];
  long long starts[kMostParts + 1];
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CONSTANTS_H_
