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

// Bytes of a column that a block of kCopyColumns copies.
inline constexpr int kCopySegment = kThreads * 64;

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CONSTANTS_H_
