#include "xla_ffi/device/cuda/stacks/stacks.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/device/cuda/device.h"
#include "xla_ffi/device/stacks/stack_polynomials.h"
#include "xla_ffi/device/stacks/stack_qr.h"
#include "xla_ffi/device/stacks/stack_reflectors.h"

namespace jaxmg {

template <typename T>
Status CudaStacks<T>::SharedBytes(int* bytes) const {
  constexpr int kDeclared = 2048;
  JAXMG_RETURN_IF_ERROR(device_.resources().SharedBytes(bytes));
  *bytes -= kDeclared;
  return Status::Ok();
}

template <typename T>
Status CudaStacks<T>::SolveTridiagonal(Stream stream, int64_t count, int64_t n, const R* d,
                                       const R* e, R* w, R* v) {
  const int64_t blocks = (count * kMostQl + kStackThreads - 1) / kStackThreads;
  return device_.LaunchBlocks(Kernel::solve_tridiagonal, CudaType<R>::kLetter, stream, blocks,
                              kStackThreads, count, static_cast<int>(n), d, e, w, v);
}

template <typename T>
Status CudaStacks<T>::ReduceToTridiagonal(Stream stream, int64_t count, int64_t n, R* a, R* d, R* e,
                                          R* tau) {
  int most = 0, threads = kStackTridiagonalThreads;
  JAXMG_RETURN_IF_ERROR(SharedBytes(&most));
  auto bytes = [n](int threads) {
    return static_cast<int64_t>((5 * n + threads / 32 * (n + 2)) * sizeof(R));
  };
  while (threads > 32 && (threads >= 2 * n || bytes(threads) > most)) threads /= 2;
  if (bytes(threads) > most) {
    return Error(Code::kInvalidArgument, "tridiagonal form of a stack: order ", n,
                 " doesn't fit the shared memory of GPU ", device_.ordinal());
  }
  return device_.LaunchShared(Kernel::reduce_stack, CudaType<R>::kLetter, stream, count, threads,
                              static_cast<int>(bytes(threads)), static_cast<int>(n), a, d, e, tau);
}

template <typename T>
Status CudaStacks<T>::ApplyReflectors(Stream stream, int64_t count, int64_t n, int64_t columns,
                                      const T* reflectors, const T* tau, T* x) {
  constexpr auto kWidth = static_cast<int>(StackedReflectors<T>::kWidth);
  if (count == 0 || columns == 0) return Status::Ok();
  const StackedReflectors<T> program(count, n, columns);
  void* space = nullptr;
  JAXMG_RETURN_IF_ERROR(device_.Scratch(stream, program.Space() * sizeof(T), &space));
  auto form = [&](const T* gram, T* t) {
    return device_.LaunchShared(Kernel::form_stacked_reflectors, CudaType<T>::kLetter, stream,
                                count * program.Panels(), kWidth,
                                kWidth * (kWidth + 1) * static_cast<int>(sizeof(T)),
                                static_cast<int>(n), gram, tau, t);
  };
  auto multiply = [&](int64_t rows, int64_t of_columns, int64_t k, R alpha,
                      const StackedFactor<T>& a, const StackedFactor<T>& b, R beta, T* c,
                      int64_t ld, int64_t size) {
    return MultiplyRows(stream, count, rows, of_columns, k, alpha, a, b, beta, c, ld, size);
  };
  return program.Run(form, multiply, static_cast<T*>(space), reflectors, x);
}

template <typename T>
Status CudaStacks<T>::Merge(Stream stream, const StackedMerges<R>& merges,
                            const MergedPairs<R>& pairs) {
  constexpr char kLetter = CudaType<R>::kLetter;
  const int64_t k = merges.k, poles = merges.count * k;
  if (poles == 0) return Status::Ok();
  void* space = nullptr;
  JAXMG_RETURN_IF_ERROR(device_.Scratch(stream, poles * (7 * sizeof(R) + sizeof(int32_t)), &space));
  R* const high = static_cast<R*>(space);
  R *const low = high + poles, *const z = low + poles;
  R *const origin_high = z + poles, *const origin_low = origin_high + poles;
  R *const tau = origin_low + poles, *const refined = tau + poles;
  auto* const places = reinterpret_cast<int32_t*>(refined + poles);
  JAXMG_RETURN_IF_ERROR(device_.LaunchElements(Kernel::sort_poles, kLetter, stream, poles,
                                               merges.count, k, merges.gap, merges.high, merges.low,
                                               merges.z, places, high, low, z));
  JAXMG_RETURN_IF_ERROR(device_.LaunchBlocks(Kernel::stacked_roots, kLetter, stream, poles,
                                             kStackThreads, k, high, low, z, merges.rho,
                                             origin_high, origin_low, tau));
  JAXMG_RETURN_IF_ERROR(device_.LaunchBlocks(Kernel::refine_stacked_z, kLetter, stream, poles,
                                             kStackThreads, k, high, low, z, merges.rho,
                                             origin_high, origin_low, tau, refined));
  return device_.LaunchBlocks(Kernel::stacked_vectors, kLetter, stream, poles, kStackThreads, k,
                              places, high, low, refined, origin_high, origin_low, tau, pairs.high,
                              pairs.low, pairs.vectors);
}

template <typename T>
Status CudaStacks<T>::FactorLu(Stream stream, int64_t count, int64_t n, T* a, int32_t* pivots) {
  constexpr char kLetter = CudaType<T>::kLetter;
  if (count == 0 || n == 0) return Status::Ok();
  // The largest panel width for which shared memory holds all rows.
  int most = 0, width = n <= kStackLuWhole ? static_cast<int>(n) : kStackLuColumns;
  JAXMG_RETURN_IF_ERROR(SharedBytes(&most));
  auto bytes = [n](int columns) {
    return static_cast<int64_t>((n | 1) * columns * sizeof(T) + n * sizeof(int32_t));
  };
  while (width > 1 && bytes(width) > most) width /= 2;
  if (bytes(width) > most) {
    return Error(Code::kInvalidArgument, "LU of a stack: a column of ", n,
                 " rows doesn't fit the shared memory of GPU ", device_.ordinal());
  }
  void* moves = nullptr;
  JAXMG_RETURN_IF_ERROR(device_.Scratch(stream, count * 2 * width * sizeof(int32_t), &moves));
  const auto order = static_cast<int>(n);
  const int threads = std::min(kStackLuThreads, std::max(64, (order + 31) / 32 * 32));
  for (int first = 0; first < order; first += width) {
    const int columns = std::min(width, order - first), others = order - columns;
    const int rest = order - first - columns;
    JAXMG_RETURN_IF_ERROR(device_.LaunchShared(Kernel::factor_stacked_panel, kLetter, stream, count,
                                               threads, static_cast<int>(bytes(width)), order,
                                               first, columns, a, pivots,
                                               static_cast<int32_t*>(moves)));
    JAXMG_RETURN_IF_ERROR(device_.LaunchBlocks(
        Kernel::move_stacked_rows, kLetter, stream,
        count * ((others + kStackMoveThreads - 1) / kStackMoveThreads), kStackMoveThreads, order,
        first, columns, a, static_cast<const int32_t*>(moves)));
    if (rest == 0) break;
    T* const right = a + first * n + first + columns;
    T* const below = a + (first + columns) * n + first;
    JAXMG_RETURN_IF_ERROR(blas_.GemmBatched(stream, Op::kNone, Op::kNone, rest, rest, columns, -1,
                                            right, n, n * n, below, n, n * n, 1, below + columns, n,
                                            n * n, count));
  }
  return Status::Ok();
}

namespace {

// The shared memory of a warp with a small matrix, and the number of such warps in a block.
template <typename T>
constexpr int kWarpBytes = kMostSmall * (kMostSmall + 1) * static_cast<int>(sizeof(T));
template <typename T>
int WarpsIn(int shared_bytes) {
  return std::max(1, std::min(kSmallThreads / 32, shared_bytes / kWarpBytes<T>));
}

// The order of a diagonal block in shared memory, and its bytes with this number of rows next to
// it.
constexpr int OrderOf(int width) {
  return (width + kStackTriangle - 1) / kStackTriangle * kStackTriangle;
}
template <typename T>
constexpr int BytesOf(int width, int rows) {
  const int order = OrderOf(width), bytes = static_cast<int>(sizeof(T));
  return order * (order * bytes + 16) + rows * (order | 1) * bytes;
}

}  // namespace

template <typename T>
Status CudaStacks<T>::InvertSmall(Stream stream, int64_t count, int64_t n, const T* a, T* inverse) {
  int most = 0;
  JAXMG_RETURN_IF_ERROR(SharedBytes(&most));
  const int warps = WarpsIn<T>(most);
  return device_.LaunchShared(Kernel::invert_small, CudaType<T>::kLetter, stream,
                              (count + warps - 1) / warps, warps * 32, warps * kWarpBytes<T>, count,
                              static_cast<int>(n), a, inverse);
}

template <typename T>
Status CudaStacks<T>::SolveSmall(Stream stream, int64_t count, int64_t n, int64_t nrhs, const T* a,
                                 const T* b, T* x) {
  int most = 0;
  JAXMG_RETURN_IF_ERROR(SharedBytes(&most));
  const int warps = WarpsIn<T>(most);
  return device_.LaunchShared(Kernel::solve_small, CudaType<T>::kLetter, stream,
                              (count + warps - 1) / warps, warps * 32, warps * kWarpBytes<T>, count,
                              static_cast<int>(n), static_cast<int>(nrhs), a, b, x);
}

template <typename T>
Status CudaStacks<T>::FactorCholesky(Stream stream, bool upper, int64_t count, int64_t n, T* a) {
  constexpr char kLetter = CudaType<T>::kLetter;
  const auto order = static_cast<int>(n);
  int most = 0;
  JAXMG_RETURN_IF_ERROR(SharedBytes(&most));
  for (int first = 0; first < order; first += kStackDiagonal<sizeof(T)>) {
    const int width = std::min(kStackDiagonal<sizeof(T)>, order - first);
    const int rest = order - first - width;
    // The columns of the block minus the product with earlier columns. To cuBLAS a stored upper
    // triangle is a lower one.
    T* const corner = a + first * (n + 1);
    const T* const known = upper ? a + first : a + first * n;
    if (first > 0 && upper) {
      JAXMG_RETURN_IF_ERROR(blas_.GemmBatched(stream, Op::kNone, Op::kConjTrans, order - first,
                                              width, first, -1, known, n, n * n, known, n, n * n, 1,
                                              corner, n, n * n, count));
    } else if (first > 0) {
      JAXMG_RETURN_IF_ERROR(blas_.GemmBatched(stream, Op::kConjTrans, Op::kNone, width,
                                              order - first, first, -1, known, n, n * n, known, n,
                                              n * n, 1, corner, n, n * n, count));
    }
    const int threads = width > kStackTriangle ? kStackDiagonalThreads : kStackTriangle;
    JAXMG_RETURN_IF_ERROR(device_.LaunchShared(Kernel::factor_stacked_diagonal, kLetter, stream,
                                               count, threads, BytesOf<T>(width, 0), order, first,
                                               width, static_cast<int>(upper), a));
    if (rest == 0) break;
    int rows = std::min(kStackRows, (rest + 31) / 32 * 32);
    while (rows > 32 && BytesOf<T>(width, rows) > most) rows -= 32;
    JAXMG_RETURN_IF_ERROR(device_.LaunchShared(
        Kernel::solve_stacked_rows, kLetter, stream, count * ((rest + rows - 1) / rows), rows,
        BytesOf<T>(width, rows), order, first, width, static_cast<int>(upper), a));
  }
  return Status::Ok();
}

// [A 0; B C]^-1 = [A^-1 0; -C^-1 B A^-1, C^-1], first for diagonal blocks, then for pairs of them,
// then for pairs of pairs. As with substitution, errors are bounded by the condition number times
// rounding: J. J. Du Croz and N. J. Higham, IMA J. Numer. Anal. 12, 1992.
template <typename T>
Status CudaStacks<T>::InvertTriangle(Stream stream, bool upper, int64_t count, int64_t n, T* a) {
  if (count == 0 || n == 0) return Status::Ok();
  int most = 0, block = kStackDiagonal<sizeof(T)>;
  JAXMG_RETURN_IF_ERROR(SharedBytes(&most));
  if (BytesOf<T>(block, block) > most) block = kStackTriangle;
  const auto order = static_cast<int>(n);
  const int width = std::min(order, block);
  JAXMG_RETURN_IF_ERROR(device_.LaunchShared(Kernel::invert_stacked_diagonal, CudaType<T>::kLetter,
                                             stream, count * ((order + width - 1) / width),
                                             OrderOf(width), BytesOf<T>(width, OrderOf(width)),
                                             order, width, static_cast<int>(upper), a));
  int64_t largest = block;
  while (2 * largest < n) largest *= 2;
  if (largest >= n) return Status::Ok();
  void* space = nullptr;
  const int64_t size = std::max(largest * std::min(largest, n - largest),
                                largest > block ? largest * largest / 4 : 0);
  JAXMG_RETURN_IF_ERROR(device_.Scratch(stream, count * size * sizeof(T), &space));
  T* const product = static_cast<T*>(space);
  for (int64_t half = block; half < n; half *= 2) {
    for (int64_t first = 0; first + half < n; first += 2 * half) {
      const int64_t second = first + half, rest = std::min(half, n - second);
      const T *const x = a + first * (n + 1), *const z = a + second * (n + 1);
      // To cuBLAS a stored upper triangle is a lower one, and a lower one is an upper one.
      T* const y = upper ? a + first * n + second : a + second * n + first;
      const T *const left = upper ? z : x, *const right = upper ? x : z;
      const int64_t m = upper ? rest : half, columns = upper ? half : rest;
      JAXMG_RETURN_IF_ERROR(blas_.GemmBatched(stream, Op::kNone, Op::kNone, m, columns, columns, 1,
                                              y, n, n * n, right, n, n * n, 0, product, m, size,
                                              count));
      JAXMG_RETURN_IF_ERROR(blas_.GemmBatched(stream, Op::kNone, Op::kNone, m, columns, m, -1, left,
                                              n, n * n, product, m, size, 0, y, n, n * n, count));
    }
  }
  return Status::Ok();
}

template <typename T>
Status CudaStacks<T>::SolveTriangle(Stream stream, StackedTriangle triangle, int64_t count,
                                    int64_t n, int64_t nrhs, const T* a, T* b) {
  if (n > kMostStackSubstitution) {
    return Error(Code::kInvalidArgument, "triangles of a stack: order ", n, " is more than ",
                 kMostStackSubstitution);
  }
  const auto order = static_cast<int>(n);
  const int threads = std::min(kStackSubstitutionThreads, OrderOf(order));
  return device_.LaunchShared(Kernel::solve_stacked_triangle, CudaType<T>::kLetter, stream,
                              count * nrhs, threads, order * static_cast<int>(sizeof(T)), order,
                              static_cast<int>(nrhs), static_cast<int>(triangle.upper),
                              static_cast<int>(triangle.adjoint), static_cast<int>(triangle.unit),
                              a, b);
}

template <typename T>
Status CudaStacks<T>::MultiplyTriangle(Stream stream, int64_t count, int64_t n, const T* x,
                                       T* product) {
  // To cuBLAS x is the lower triangle L = x^T, and the product's transpose L^H L is upper. Fewer
  // columns at a time need fewer products with zeros, but more time for each.
  const int64_t most = n > 512 ? 256 : n > 256 ? 128 : 64;
  for (int64_t first = 0; first < n; first += most) {
    const int64_t columns = std::min(most, n - first);
    JAXMG_RETURN_IF_ERROR(blas_.GemmBatched(
        stream, Op::kConjTrans, Op::kNone, first + columns, columns, n - first, 1, x + first, n,
        n * n, x + first * (n + 1), n, n * n, 0, product + first * n, n, n * n, count));
  }
  return Status::Ok();
}

template <typename T>
Status CudaStacks<T>::MultiplyRows(Stream stream, int64_t count, int64_t m, int64_t n, int64_t k,
                                   R alpha, const StackedFactor<T>& x, const StackedFactor<T>& y,
                                   R beta, T* product, int64_t ld, int64_t size) {
  // To cuBLAS a row-major matrix is its transpose: C^T = op(Y)^T op(X)^T, with the same op.
  return blas_.GemmBatched(stream, y.op, x.op, n, m, k, alpha, y.data, y.ld, y.size, x.data, x.ld,
                           x.size, beta, product, ld, size, count);
}

template <typename T>
Status CudaStacks<T>::Multiply(Stream stream, Op op_x, Op op_y, int64_t count, int64_t m, int64_t n,
                               int64_t k, const T* x, const T* y, T* product) {
  return MultiplyRows(stream, count, m, n, k, 1, {x, op_x == Op::kNone ? k : m, m * k, op_x},
                      {y, op_y == Op::kNone ? n : k, n * k, op_y}, 0, product, n, m * n);
}

template <typename T>
Status CudaStacks<T>::FactorQr(Stream stream, int64_t count, int64_t m, int64_t n, T* a, T* q) {
  if (count == 0 || m == 0 || n == 0) return Status::Ok();
  const StackedQr<T> program(count, m, n);
  void* space = nullptr;
  JAXMG_RETURN_IF_ERROR(device_.Scratch(stream, program.Space() * sizeof(T), &space));
  int most = 0;
  JAXMG_RETURN_IF_ERROR(device_.resources().SharedBytes(&most));
  auto factor = [&](int64_t first, int64_t width, T* v, T* t) {
    const int64_t rows = m - first;
    const auto warps = static_cast<int>(std::min<int64_t>(kStackQrWarps, (rows + 3) / 4));
    const int threads = 32 * (warps + 1), own = program.SharedBytes(threads);
    const int64_t whole = own + rows * kStackQrColumns * static_cast<int64_t>(sizeof(T));
    const int in_shared = whole <= most;
    return device_.LaunchShared(Kernel::factor_stacked_qr_panel, CudaType<T>::kLetter, stream,
                                count, threads, in_shared ? static_cast<int>(whole) : own,
                                static_cast<int>(m), static_cast<int>(n), static_cast<int>(first),
                                static_cast<int>(width), in_shared, a, v, t, q);
  };
  auto multiply = [&](int64_t rows, int64_t columns, int64_t k, R alpha, const StackedFactor<T>& x,
                      const StackedFactor<T>& y, R beta, T* c, int64_t ld, int64_t size) {
    return MultiplyRows(stream, count, rows, columns, k, alpha, x, y, beta, c, ld, size);
  };
  return program.Run(factor, multiply, static_cast<T*>(space), a, q);
}

template <typename T>
template <typename Element>
Status CudaStacks<T>::Copy(Stream stream, const Element* source, Element* target, int64_t count) {
  return device_.Copy(stream, Block(target, count, count, 1), Block(source, count, count, 1));
}

template <typename T>
Status CudaStacks<T>::MapSingularValues(Stream stream, int64_t count, int64_t m, int64_t n,
                                        Polynomials polynomials, T* x) {
  void* space = nullptr;
  JAXMG_RETURN_IF_ERROR(device_.Scratch(stream, PolynomialsSpace(count, m, n) * sizeof(T), &space));
  auto multiply = [&](Op op_a, Op op_b, int64_t rows, int64_t columns, int64_t k, double alpha,
                      const T* a, const T* b, double beta, T* c) {
    return blas_.GemmBatched(stream, op_a, op_b, rows, columns, k, static_cast<R>(alpha), a,
                             op_a == Op::kNone ? rows : k, rows * k, b,
                             op_b == Op::kNone ? k : columns, k * columns, static_cast<R>(beta), c,
                             rows, rows * columns, count);
  };
  auto copy = [&](const T* from, T* to, int64_t size) { return Copy(stream, from, to, size); };
  return MapSingularValuesBy(multiply, copy, count, m, n, polynomials, x, static_cast<T*>(space));
}

template <typename T>
Status CudaStacks<T>::MapSingularValues(Stream stream, PartFormat format, int64_t count, int64_t m,
                                        int64_t n, Polynomials polynomials, Part* x) {
  void* space = nullptr;
  JAXMG_RETURN_IF_ERROR(
      device_.Scratch(stream, PolynomialsSpace(count, m, n) * sizeof(Part), &space));
  const cudaDataType type = format == PartFormat::kFloat16 ? CUDA_R_16F : CUDA_R_16BF;
  cublasHandle_t handle;
  JAXMG_RETURN_IF_ERROR(device_.resources().BlasHandle(stream, Precision::kHighest, &handle));
  auto multiply = [&](Op op_a, Op op_b, int64_t rows, int64_t columns, int64_t k, double scale,
                      const Part* a, const Part* b, double weight, Part* c) -> Status {
    const bool plain_a = op_a == Op::kNone, plain_b = op_b == Op::kNone;
    const auto alpha = static_cast<float>(scale), beta = static_cast<float>(weight);
    JAXMG_CHECK_CUDA(
        Get<Cublas>().cublasGemmStridedBatchedEx_64(
            handle, plain_a ? CUBLAS_OP_N : CUBLAS_OP_T, plain_b ? CUBLAS_OP_N : CUBLAS_OP_T, rows,
            columns, k, &alpha, a, type, plain_a ? rows : k, rows * k, b, type,
            plain_b ? k : columns, k * columns, &beta, c, type, rows, rows * columns, count,
            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "products of 16 bits on GPU ", device_.ordinal(), ", ", rows, " x ", columns);
    return Status::Ok();
  };
  auto copy = [&](const Part* from, Part* to, int64_t size) {
    return Copy(stream, from, to, size);
  };
  return MapSingularValuesBy(multiply, copy, count, m, n, polynomials, x,
                             static_cast<Part*>(space));
}

#define JAXMG_INSTANTIATE(T) template class CudaStacks<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
