#include "xla_ffi/device/cuda/lu.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/device/cuda/device.h"

namespace jaxmg {
namespace {

// What the kernel has of shared memory beside its rows, at most.
constexpr int64_t kOwnSharedBytes = 24 << 10;

}  // namespace

template <typename T>
Status CudaLu<T>::Blocks(int64_t m, int64_t* blocks) const {
  int multiprocessors = 0;
  JAXMG_RETURN_IF_ERROR(device_.resources().Multiprocessors(&multiprocessors));
  *blocks = std::clamp<int64_t>(m / kLuRows, 1, std::min(multiprocessors, kLuBlocks));
  return Status::Ok();
}

template <typename T>
Status CudaLu<T>::MostColumns(int64_t m, int64_t* columns) const {
  int bytes = 0;
  int64_t blocks = 0;
  JAXMG_RETURN_IF_ERROR(device_.resources().SharedBytes(&bytes));
  JAXMG_RETURN_IF_ERROR(Blocks(m, &blocks));
  const int64_t rows = (m + blocks - 1) / blocks;
  *columns = std::min<int64_t>((bytes - kOwnSharedBytes) / (rows * sizeof(T)), kLuColumns);
  if (*columns > 0) return Status::Ok();
  return Error(Code::kInvalidArgument, "a panel of ", m, " rows is too large for a GPU");
}

template <typename T>
Status CudaLu<T>::FactorColumns(Stream stream, int64_t m, int64_t n, T* a, int64_t lda,
                                int64_t offset, int32_t* pivots, int32_t* info) {
  int64_t blocks = 0;
  JAXMG_RETURN_IF_ERROR(Blocks(m, &blocks));
  const int64_t rows = (m + blocks - 1) / blocks;
  constexpr size_t kHead = 16;  // aligns what follows
  const size_t rows_bytes = 2 * n * (blocks + 1) * sizeof(T), sizes_bytes = 2 * blocks * sizeof(R);
  void* scratch = nullptr;
  JAXMG_RETURN_IF_ERROR(device_.Scratch(
      stream, kHead + rows_bytes + sizes_bytes + 2 * blocks * sizeof(int32_t), &scratch));
  auto* met = static_cast<int32_t*>(scratch);
  char* exchanged = static_cast<char*>(scratch) + kHead;
  JAXMG_RETURN_IF_ERROR(device_.FillInt32(stream, met, 1, 0));
  return device_.LaunchCooperative(Kernel::kFactorLuPanel, CudaType<T>::kLetter, stream, blocks,
                                kLuThreads, static_cast<int>(rows * n * sizeof(T)), m,
                                static_cast<int>(n), a, lda, offset, pivots, info, met, exchanged,
                                exchanged + rows_bytes, exchanged + rows_bytes + sizes_bytes);
}

// Halves, so that most of it is products: [A1 A2], P1 A1 = L1 U1, then A2 by L1, then what is left
// of A2. (S. Toledo, "Locality of reference in LU decomposition with partial pivoting", SIAM J.
// Matrix Anal. Appl. 18, 1997.)
template <typename T>
Status CudaLu<T>::FactorPanel(Stream stream, int64_t m, int64_t n, T* a, int64_t lda,
                              int64_t offset, int32_t* pivots, int32_t* info) {
  if (m == 0 || n == 0) return Status::Ok();
  int64_t most = 0;
  JAXMG_RETURN_IF_ERROR(MostColumns(m, &most));
  if (n <= most) return FactorColumns(stream, m, n, a, lda, offset, pivots, info);
  // Whole panels of one kernel on the left.
  const int64_t left = (n / 2 + most - 1) / most * most, right = n - left;
  const int64_t depth = std::min(m, left), rest = m - depth;
  T* a2 = a + left * lda;
  JAXMG_RETURN_IF_ERROR(FactorPanel(stream, m, left, a, lda, offset, pivots, info));
  JAXMG_RETURN_IF_ERROR(SwapRows(stream, Order::kForward, right, a2, lda, offset, depth, pivots));
  JAXMG_RETURN_IF_ERROR(blas_.Trsm(stream, Side::kLeft, Op::kNone, depth, right, a, lda, a2, lda,
                                   {Uplo::kLower, Diag::kUnit}));
  if (rest == 0) return Status::Ok();
  JAXMG_RETURN_IF_ERROR(blas_.Gemm(stream, Op::kNone, Op::kNone, rest, right, depth, -1, a + depth,
                                   lda, a2, lda, 1, a2 + depth, lda));
  JAXMG_RETURN_IF_ERROR(
      FactorPanel(stream, rest, right, a2 + depth, lda, offset + depth, pivots + depth, info));
  return SwapRows(stream, Order::kForward, left, a + depth, lda, offset + depth,
                  std::min(rest, right), pivots + depth);
}

template <typename T>
Status CudaLu<T>::Swap(Stream stream, Order order, int64_t n, T* a, int64_t line, int64_t element,
                       int64_t offset, int64_t count, const int32_t* pivots) {
  if (n == 0) return Status::Ok();
  const bool backward = order == Order::kBackward;
  const int64_t pieces = (count + kLuSwaps - 1) / kLuSwaps;
  void* scratch = nullptr;
  JAXMG_RETURN_IF_ERROR(device_.Scratch(stream, 4 * kLuSwaps * sizeof(int32_t), &scratch));
  auto* from = static_cast<int32_t*>(scratch);
  int32_t* to = from + 2 * kLuSwaps;
  for (int64_t step = 0; step < pieces; ++step) {
    const int64_t begin = (backward ? pieces - 1 - step : step) * kLuSwaps;
    const int piece = static_cast<int>(std::min<int64_t>(kLuSwaps, count - begin));
    JAXMG_RETURN_IF_ERROR(device_.LaunchOne(Kernel::kPlanSwaps, 's', stream,
                                            static_cast<int>(backward), piece, offset + begin,
                                            pivots + begin, from, to));
    JAXMG_RETURN_IF_ERROR(device_.LaunchBlocks(Kernel::kMoveRows, CudaType<T>::kLetter, stream,
                                               std::min<int64_t>(n, 4096), kThreads, n, piece, from,
                                               to, a + begin * line, line, element));
  }
  return Status::Ok();
}

template <typename T>
Status CudaLu<T>::SwapRows(Stream stream, Order order, int64_t n, T* a, int64_t lda, int64_t offset,
                           int64_t count, const int32_t* pivots) {
  return Swap(stream, order, n, a, 1, lda, offset, count, pivots);
}

template <typename T>
Status CudaLu<T>::SwapColumns(Stream stream, Order order, int64_t m, T* a, int64_t lda,
                              int64_t count, const int32_t* pivots) {
  return Swap(stream, order, m, a, lda, 1, 0, count, pivots);
}

template <typename T>
Status CudaLu<T>::AddDeterminant(Stream stream, int64_t n, const T* u, int64_t ldu, int64_t offset,
                                 const int32_t* pivots, R* log_abs, T* sign) {
  if (n == 0) return Status::Ok();
  return device_.LaunchOne(Kernel::kAddDeterminant, CudaType<T>::kLetter, stream, n, u, ldu, offset,
                           pivots, log_abs, sign);
}

#define JAXMG_INSTANTIATE(T) template class CudaLu<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
