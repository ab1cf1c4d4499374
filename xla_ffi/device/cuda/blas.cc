#include "xla_ffi/device/cuda/blas.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/device/cuda/device.h"
#include "xla_ffi/device/products/products_by_parts.h"

namespace jaxmg {
namespace {

// NVIDIA's complex numbers have the memory layout of std::complex.
inline float* Vendor(float* data) { return data; }
inline double* Vendor(double* data) { return data; }
inline cuComplex* Vendor(std::complex<float>* data) { return reinterpret_cast<cuComplex*>(data); }
inline cuDoubleComplex* Vendor(std::complex<double>* data) {
  return reinterpret_cast<cuDoubleComplex*>(data);
}
template <typename T>
inline auto Vendor(const T* data) {
  return Vendor(const_cast<T*>(data));
}

// The routines of cuBLAS by dtype: Routines<T>::gemm points to a member of the table.
template <typename T>
struct Routines;
#define JAXMG_ROUTINES(T, letter, herk_name)                                             \
  template <>                                                                            \
  struct Routines<T> {                                                                   \
    static constexpr auto gemm = &Cublas::cublas##letter##gemm_64;                       \
    static constexpr auto gemm_batched = &Cublas::cublas##letter##gemmStridedBatched_64; \
    static constexpr auto gemv = &Cublas::cublas##letter##gemv_64;                       \
    static constexpr auto herk = &Cublas::cublas##herk_name##_64;                        \
    static constexpr auto trsm = &Cublas::cublas##letter##trsm_64;                       \
    static constexpr auto trsv = &Cublas::cublas##letter##trsv_64;                       \
    static constexpr auto trmm = &Cublas::cublas##letter##trmm_64;                       \
  };
JAXMG_ROUTINES(float, S, Ssyrk)
JAXMG_ROUTINES(double, D, Dsyrk)
JAXMG_ROUTINES(std::complex<float>, C, Cherk)
JAXMG_ROUTINES(std::complex<double>, Z, Zherk)
#undef JAXMG_ROUTINES

cublasOperation_t Letter(Op op) {
  switch (op) {
    case Op::kNone:
      return CUBLAS_OP_N;
    case Op::kTrans:
      return CUBLAS_OP_T;
    case Op::kConjTrans:
      return CUBLAS_OP_C;
  }
  return CUBLAS_OP_N;
}

cublasSideMode_t Letter(Side side) {
  return side == Side::kLeft ? CUBLAS_SIDE_LEFT : CUBLAS_SIDE_RIGHT;
}

cublasFillMode_t Letter(Uplo uplo) {
  return uplo == Uplo::kLower ? CUBLAS_FILL_MODE_LOWER : CUBLAS_FILL_MODE_UPPER;
}

cublasDiagType_t Letter(Diag diag) {
  return diag == Diag::kNonUnit ? CUBLAS_DIAG_NON_UNIT : CUBLAS_DIAG_UNIT;
}

// cuBLAS reads host scalars with instructions that need the alignment of NVIDIA's complex numbers,
// which is twice that of std::complex.
constexpr size_t kScalarAlignment = alignof(cuDoubleComplex);

// Size of a word that blocks send to each other (signals.cuh).
constexpr int64_t kWordBytes = 16;

// Below this number of rows or columns of C, splitting the factors takes longer than it saves.
constexpr int64_t kLeastByParts = 512;

// Substitution with a unit lower triangle by products is faster than cuBLAS's from this number of
// columns on, up to this order of the triangle. With fewer columns, its launches take longer.
constexpr int64_t kLeastSolvedByProducts = 4096;
constexpr int64_t kMostSolvedByProducts = 2048;

// The maximum number of rows of a factor in the kernels of products of parts.
constexpr int64_t kMostProductRows = INT32_MAX - 2 * kProductTileN;

// The arguments of these kernels (part_products.cuh).
struct PartFactors {
  CUtensorMap a, b;
};
struct PartProductScales {
  const float *left, *right;
  int shift;
};

// Describes a matrix of parts, rows x depth. The description begins at a multiple of 16 bytes,
// which may be a few rows before the matrix.
Status Describe(bool halves, int64_t rows, int64_t depth, const Part* parts, int64_t ld,
                CUtensorMap* map, int* first) {
  const auto address = reinterpret_cast<uintptr_t>(parts), before = address % 16;
  *first = static_cast<int>(before / sizeof(Part));
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(rows + *first),
                              static_cast<cuuint64_t>(depth)};
  const cuuint64_t pitch[] = {static_cast<cuuint64_t>(ld) * sizeof(Part)};
  const cuuint32_t box[] = {kProductBox, kChunkDepth}, strides[] = {1, 1};
  JAXMG_CHECK_CUDA(
      Get<CudaDriver>().cuTensorMapEncodeTiled(
          map, halves ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
          reinterpret_cast<void*>(address - before), sizes, pitch, box, strides,
          CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
      "parts of ", rows, " x ", depth);
  return Status::Ok();
}

// Calls a routine of cuBLAS with the stream's handle.
#define JAXMG_CUBLAS(routine, stream, ...)                                              \
  do {                                                                                  \
    cublasHandle_t handle;                                                              \
    JAXMG_RETURN_IF_ERROR(device_.resources().BlasHandle(stream, precision_, &handle)); \
    JAXMG_CHECK_CUDA((Get<Cublas>().*Routines<T>::routine)(handle, __VA_ARGS__),        \
                     #routine " on GPU ", device_.ordinal(), ", ", m, " x ", n);        \
  } while (false)

}  // namespace

template <typename T>
Status CudaBlas<T>::Gemm(Stream stream, Op op_a, Op op_b, int64_t m, int64_t n, int64_t k, R alpha,
                         const T* a, int64_t lda, const T* b, int64_t ldb, R beta, T* c,
                         int64_t ldc) {
  if (m == 0 || n == 0) return Status::Ok();
  if (parts().depth > 0 && IsByParts<T>(op_a, op_b, m, n, k, kLeastByParts)) {
    auto scratch = [&](int64_t count, Part** parts) {
      return ScratchForParts(stream, count, parts);
    };
    return GemmByParts(*this, scratch, stream, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c,
                       ldc);
  }
  alignas(kScalarAlignment) const T t_alpha = alpha, t_beta = beta;
  // A single row times a matrix: GEMV reads the matrix at memory bandwidth.
  if (m == 1 && op_a == Op::kNone && k > 0 && (op_b == Op::kNone || !kIsComplex<T>)) {
    const bool plain = op_b == Op::kNone;
    JAXMG_CUBLAS(gemv, stream, plain ? CUBLAS_OP_T : CUBLAS_OP_N, plain ? k : n, plain ? n : k,
                 Vendor(&t_alpha), Vendor(b), ldb, Vendor(a), lda, Vendor(&t_beta), Vendor(c), ldc);
    return Status::Ok();
  }
  JAXMG_CUBLAS(gemm, stream, Letter(op_a), Letter(op_b), m, n, k, Vendor(&t_alpha), Vendor(a), lda,
               Vendor(b), ldb, Vendor(&t_beta), Vendor(c), ldc);
  return Status::Ok();
}

template <typename T>
Status CudaBlas<T>::ScratchForParts(Stream stream, int64_t count, Part** parts) {
  void* data = nullptr;
  JAXMG_RETURN_IF_ERROR(device_.Scratch(stream, count * sizeof(Part), &data));
  *parts = static_cast<Part*>(data);
  return Status::Ok();
}

template <typename T>
Status CudaBlas<T>::PartScales(Stream stream, bool turned, int64_t m, int64_t n, const T* a,
                               int64_t lda, R* scales) {
  if constexpr (!std::is_same_v<R, float>) {
    return Blas<T>::PartScales(stream, turned, m, n, a, lda, scales);
  } else {
    return device_.LaunchTiles(Kernel::part_scales, CudaType<T>::kLetter, stream, turned ? n : m, 1,
                               static_cast<int>(turned), m, n, a, lda, scales);
  }
}

template <typename T>
Status CudaBlas<T>::DoSplit(Stream stream, Side side, bool turned, int64_t m, int64_t n, const T* a,
                            int64_t lda, const R* scales, Part* parts, int64_t ld) {
  const PartsShape shape = this->parts();
  const int left = side == Side::kLeft, products = static_cast<int>(shape.products);
  const int halves = shape.format == PartFormat::kFloat16;
  return device_.LaunchTiles(Kernel::split, CudaType<T>::kLetter, stream, m, n, left,
                             static_cast<int>(turned), halves, products, m, n, a, lda, scales,
                             parts, ld);
}

template <typename T>
Status CudaBlas<T>::DoGemmOfParts(Stream stream, int64_t m, int64_t n, int64_t depth, R alpha,
                                  const Part* a, int64_t lda, const Part* b, int64_t ldb,
                                  const ProductScales<R>& scales, R beta, T* c, int64_t ldc) {
  if (m == 0 || n == 0) return Status::Ok();
  if constexpr (!std::is_same_v<R, float>) {
    return Blas<T>::DoGemmOfParts(stream, m, n, depth, alpha, a, lda, b, ldb, scales, beta, c, ldc);
  } else {
    const PartsShape shape = parts();
    const int64_t rows = shape.rows * m, c_rows = shape.rows * ldc;
    const float scaled = alpha / shape.scale();
    float* const target = reinterpret_cast<float*>(c);
    if (device_.resources().multiplies_parts()) {
      return MultiplyParts(stream, rows, n, depth, scaled, a, lda, b, ldb, scales, beta, target,
                           c_rows);
    }
    if (scales.left != nullptr) {
      return Error(Code::kInternal, "this GPU can't multiply factors that have scales");
    }
    return MultiplyPartsInPieces(stream, rows, n, depth, scaled, a, lda, b, ldb, beta, target,
                                 c_rows);
  }
}

// Uses our own kernel, on GPUs of compute capability 9.0.
template <typename T>
Status CudaBlas<T>::MultiplyParts(Stream stream, int64_t m, int64_t n, int64_t depth, float alpha,
                                  const Part* a, int64_t lda, const Part* b, int64_t ldb,
                                  const ProductScales<float>& scales, float beta, float* c,
                                  int64_t ldc) {
  const bool halves = parts().format == PartFormat::kFloat16, scaled = scales.left != nullptr;
  const Kernel kernel = scaled   ? Kernel::multiply_scaled_halves
                        : halves ? Kernel::multiply_halves
                                 : Kernel::multiply_bfloats;
  const PartProductScales of_rows = {scales.left, scales.right, kIsComplex<T> ? 1 : 0};
  PartFactors factors;
  int first_a = 0, first_b = 0;
  JAXMG_RETURN_IF_ERROR(Describe(halves, m, depth, a, lda, &factors.a, &first_a));
  JAXMG_RETURN_IF_ERROR(Describe(halves, n, depth, b, ldb, &factors.b, &first_b));
  if (std::max(m, n) > kMostProductRows) {
    return Error(Code::kInvalidArgument, "a matrix of ", m, " x ", n, " is too large for a GPU");
  }
  int multiprocessors = 0;
  JAXMG_RETURN_IF_ERROR(device_.resources().Multiprocessors(&multiprocessors));
  const int64_t tiles = (first_a + m + kProductTileM - 1) / kProductTileM *
                        ((first_b + n + kProductTileN - 1) / kProductTileN);
  return device_.LaunchShared(
      kernel, 's', stream, std::min<int64_t>(tiles, multiprocessors), kProductThreads,
      kProductShared, factors, of_rows, first_a, first_b, static_cast<int>(m), static_cast<int>(n),
      static_cast<int>(depth / kChunkDepth), alpha * kSumFactor, beta, c, ldc);
}

// Uses cuBLAS. Tensor cores truncate sums, and more so for products of float16 numbers, which have
// 22 bits, than for products of bfloat16 numbers, which have 16. On an H200 a sum of k real
// products is too small by `truncation` k relative on average if signs are random. If all signs are
// equal, it is too small by twice that, or five times with float16 (docs/laboratory.md). To
// compensate, the sum is multiplied by 1 + truncation k, and several sums are added in float32.
template <typename T>
Status CudaBlas<T>::MultiplyPartsInPieces(Stream stream, int64_t m, int64_t n, int64_t depth,
                                          float alpha, const Part* a, int64_t lda, const Part* b,
                                          int64_t ldb, float beta, float* c, int64_t ldc) {
  const bool halves = parts().format == PartFormat::kFloat16;
  const double truncation = halves ? 1.07e-9 : 8.4e-10;
  const int64_t products = parts().products, most = products * (halves ? 512 : 1024);
  const cudaDataType type = halves ? CUDA_R_16F : CUDA_R_16BF;
  cublasHandle_t handle;
  JAXMG_RETURN_IF_ERROR(device_.resources().BlasHandle(stream, precision_, &handle));
  for (int64_t begin = 0; begin < depth; begin += most) {
    const int64_t piece = std::min(most, depth - begin);
    const float scaled = static_cast<float>(alpha * (1 + truncation * (piece / products)));
    const float sum = begin == 0 ? beta : 1;
    JAXMG_CHECK_CUDA(
        Get<Cublas>().cublasGemmEx_64(handle, CUBLAS_OP_N, CUBLAS_OP_T, m, n, piece, &scaled,
                                      a + begin * lda, type, lda, b + begin * ldb, type, ldb, &sum,
                                      c, CUDA_R_32F, ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "gemm of parts on GPU ", device_.ordinal(), ", ", m, " x ", n);
  }
  return Status::Ok();
}

template <typename T>
Status CudaBlas<T>::Scale(Stream stream, bool lower, bool divide, int64_t m, int64_t n,
                          const R* left, const R* right, T* a, int64_t lda) {
  if constexpr (!std::is_same_v<R, float>) {
    return Blas<T>::Scale(stream, lower, divide, m, n, left, right, a, lda);
  } else {
    return device_.LaunchTiles(Kernel::scale, CudaType<T>::kLetter, stream, m, n,
                               static_cast<int>(lower), static_cast<int>(divide), m, n, left, right,
                               a, lda);
  }
}

template <typename T>
Status CudaBlas<T>::RowLargest(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda,
                               R* largest) {
  if constexpr (!std::is_same_v<R, float>) {
    return Blas<T>::RowLargest(stream, m, n, a, lda, largest);
  } else {
    return device_.LaunchElements(Kernel::row_largest, CudaType<T>::kLetter, stream,
                                  m * ((n + kLargestColumns - 1) / kLargestColumns), m, n, a, lda,
                                  largest);
  }
}

template <typename T>
Status CudaBlas<T>::PowersOfTwo(Stream stream, bool root, int64_t n, R* x) {
  if constexpr (!std::is_same_v<R, float>) {
    return Blas<T>::PowersOfTwo(stream, root, n, x);
  } else {
    return device_.LaunchElements(Kernel::powers_of_two, 's', stream, n, static_cast<int>(root), n,
                                  x);
  }
}

template <typename T>
Status CudaBlas<T>::GemmBatched(Stream stream, Op op_a, Op op_b, int64_t m, int64_t n, int64_t k,
                                R alpha, const T* a, int64_t lda, int64_t a_stride, const T* b,
                                int64_t ldb, int64_t b_stride, R beta, T* c, int64_t ldc,
                                int64_t c_stride, int64_t count) {
  if (m == 0 || n == 0 || count == 0) return Status::Ok();
  if (parts().depth > 0 && IsByParts<T>(op_a, op_b, m, n, k, kLeastByParts)) {
    return Blas<T>::GemmBatched(stream, op_a, op_b, m, n, k, alpha, a, lda, a_stride, b, ldb,
                                b_stride, beta, c, ldc, c_stride, count);
  }
  alignas(kScalarAlignment) const T t_alpha = alpha, t_beta = beta;
  JAXMG_CUBLAS(gemm_batched, stream, Letter(op_a), Letter(op_b), m, n, k, Vendor(&t_alpha),
               Vendor(a), lda, a_stride, Vendor(b), ldb, b_stride, Vendor(&t_beta), Vendor(c), ldc,
               c_stride, count);
  return Status::Ok();
}

template <typename T>
Status CudaBlas<T>::Herk(Stream stream, int64_t n, int64_t k, R alpha, const T* a, int64_t lda,
                         R beta, T* c, int64_t ldc) {
  if (n == 0) return Status::Ok();
  if (parts().depth > 0 && n >= kLeastByParts && k > 0) {
    return Gemm(stream, Op::kNone, Op::kConjTrans, n, n, k, alpha, a, lda, a, lda, beta, c, ldc);
  }
  const int64_t m = n;
  JAXMG_CUBLAS(herk, stream, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, n, k, &alpha, Vendor(a), lda,
               &beta, Vendor(c), ldc);
  return Status::Ok();
}

template <typename T>
Status CudaBlas<T>::SolveRight(Stream stream, Op op, int64_t m, int64_t n, const T* l, int64_t ldl,
                               const T* b, int64_t ldb, T* x, int64_t ldx) {
  if (m == 0 || n == 0) return Status::Ok();
  if (m > 1) {
    if (n > kSolveColumns) {
      return Error(Code::kInternal, "SolveRight: n must be at most ", kSolveColumns, "; got ", n);
    }
    const int backward = op == Op::kNone;
    const bool teams = sizeof(T) == 16 && m <= kMostTeams;
    const int rows = teams ? kTeamRows / 2 : kSolveRows;
    return device_.LaunchRows(teams ? Kernel::solve_rows_in_teams : Kernel::solve_rows,
                              CudaType<T>::kLetter, stream, m, rows, teams ? kTeam : 1, m, n,
                              backward, l, ldl, b, ldb, x, ldx);
  }
  if (SolvesByKernel(m)) {
    const TriangularSystem system(Side::kRight, op, {}, m, n, ldl, ldb);
    return SolveTriangle(stream, system, l, b,
                         TriangularSystem(Side::kRight, op, {}, m, n, ldl, ldx).b, x);
  }
  // For a single row, x L = b becomes L^T x^T = b^T, and x L^H = b becomes L conj(x)^T = conj(b)^T.
  JAXMG_RETURN_IF_ERROR(device_.Copy(stream, Block(x, ldx, 1, n), Block(b, ldb, 1, n)));
  if (op == Op::kConjTrans) JAXMG_RETURN_IF_ERROR(Conjugate(stream, 1, n, x, ldx));
  JAXMG_CUBLAS(trsv, stream, CUBLAS_FILL_MODE_LOWER, op == Op::kNone ? CUBLAS_OP_T : CUBLAS_OP_N,
               CUBLAS_DIAG_NON_UNIT, n, Vendor(l), ldl, Vendor(x), ldx);
  return op == Op::kConjTrans ? Conjugate(stream, 1, n, x, ldx) : Status::Ok();
}

template <typename T>
bool CudaBlas<T>::SolvesByKernel(int64_t nrhs) const {
  return nrhs <= device_.tuning().few_right_hand_sides;
}

template <typename T>
Status CudaBlas<T>::ReserveWords(Stream stream, int64_t count) {
  constexpr int64_t kLeast = 2048;
  TriangleExchange& exchange = exchanges_[static_cast<int>(stream)];
  if (count <= exchange.count) return Status::Ok();
  exchange.count = std::max(count, kLeast);
  exchange.ticket = 0;
  const int64_t bytes = (exchange.count + 1) * kWordBytes;
  JAXMG_RETURN_IF_ERROR(device_.AllocateForThisRank(bytes, &exchange.words));
  return device_.FillInt32(stream, static_cast<int32_t*>(exchange.words->data()),
                           bytes / sizeof(int32_t), 0);
}

template <typename T>
Status CudaBlas<T>::SolveTriangle(Stream stream, const TriangularSystem& of, const T* a, const T* b,
                                  const TriangularSystem::Strides& to, T* x) {
  JAXMG_RETURN_IF_ERROR(ReserveWords(stream, kTriangleWords<sizeof(T)> * of.order * of.nrhs));
  TriangleExchange& exchange = exchanges_[static_cast<int>(stream)];
  constexpr int64_t kRows = kTriangleEdge * kTriangleSquares<sizeof(T)>;
  const int64_t columns = of.nrhs == 1 ? 1 : kTriangleColumns;
  const int64_t blocks = (of.order + kRows - 1) / kRows * ((of.nrhs + columns - 1) / columns);
  const uint32_t tag = exchange.tag++, ticket = exchange.ticket;
  exchange.ticket += static_cast<uint32_t>(blocks);
  char* words = static_cast<char*>(exchange.words->data());
  return device_.LaunchBlocks(of.nrhs == 1 ? Kernel::solve_triangle_1 : Kernel::solve_triangle_4,
                              CudaType<T>::kLetter, stream, blocks, kTriangleEdge * kTriangleEdge,
                              of.order, static_cast<int>(of.nrhs), static_cast<int>(of.conjugated),
                              static_cast<int>(of.unit), a + of.a.begin, of.a.row, of.a.column,
                              b + of.b.begin, of.b.row, of.b.column, x + to.begin, to.row,
                              to.column, words + kWordBytes, tag, words, ticket);
}

template <typename T>
Status CudaBlas<T>::SolveUnitLower(Stream stream, int64_t m, int64_t n, const T* l, int64_t ldl,
                                   T* b, int64_t ldb) {
  constexpr int64_t kOrder = kColumnSolverOrder<sizeof(T)>;
  if (m <= kOrder) {
    return device_.LaunchBlocks(Kernel::solve_columns, CudaType<T>::kLetter, stream,
                                (n + kColumnSolverThreads - 1) / kColumnSolverThreads,
                                kColumnSolverThreads, static_cast<int>(m), n, l, ldl, b, ldb);
  }
  const int64_t half = (m + 2 * kOrder - 1) / (2 * kOrder) * kOrder;
  JAXMG_RETURN_IF_ERROR(SolveUnitLower(stream, half, n, l, ldl, b, ldb));
  JAXMG_RETURN_IF_ERROR(Gemm(stream, Op::kNone, Op::kNone, m - half, n, half, -1, l + half, ldl, b,
                             ldb, 1, b + half, ldb));
  return SolveUnitLower(stream, m - half, n, l + half * (ldl + 1), ldl, b + half, ldb);
}

template <typename T>
Status CudaBlas<T>::DoTrsm(Stream stream, Side side, Op op, Triangle triangle, int64_t m, int64_t n,
                           const T* a, int64_t lda, T* b, int64_t ldb) {
  if (m == 0 || n == 0) return Status::Ok();
  if (SolvesByKernel(side == Side::kLeft ? n : m)) {
    const TriangularSystem system(side, op, triangle, m, n, lda, ldb);
    return SolveTriangle(stream, system, a, b, system.b, b);
  }
  const bool unit_lower = triangle.uplo == Uplo::kLower && triangle.diag == Diag::kUnit;
  const bool by_products = n >= kLeastSolvedByProducts && m <= kMostSolvedByProducts;
  if (side == Side::kLeft && op == Op::kNone && unit_lower && by_products) {
    return SolveUnitLower(stream, m, n, a, lda, b, ldb);
  }
  alignas(kScalarAlignment) const T one = 1;
  JAXMG_CUBLAS(trsm, stream, Letter(side), Letter(triangle.uplo), Letter(op), Letter(triangle.diag),
               m, n, Vendor(&one), Vendor(a), lda, Vendor(b), ldb);
  return Status::Ok();
}

template <typename T>
Status CudaBlas<T>::DoTrmm(Stream stream, Side side, Op op, Triangle triangle, int64_t m, int64_t n,
                           const T* a, int64_t lda, T* b, int64_t ldb) {
  if (m == 0 || n == 0) return Status::Ok();
  alignas(kScalarAlignment) const T one = 1;
  JAXMG_CUBLAS(trmm, stream, Letter(side), Letter(triangle.uplo), Letter(op), Letter(triangle.diag),
               m, n, Vendor(&one), Vendor(a), lda, Vendor(b), ldb, Vendor(b), ldb);
  return Status::Ok();
}

template <typename T>
Status CudaBlas<T>::SpaceForPotrf(Stream stream, int64_t n, T* a, int64_t lda, SolverSpace* space) {
  constexpr cudaDataType kType = CudaType<T>::kValue;
  JAXMG_RETURN_IF_ERROR(space->Open(device_, stream));
  auto query = [&]() -> Status {
    JAXMG_CHECK_CUDA(Get<Cusolver>().cusolverDnXpotrf_bufferSize(
                         space->handle, space->params, CUBLAS_FILL_MODE_LOWER, n, kType, a, lda,
                         kType, &space->device_bytes, &space->host_bytes),
                     "potrf: tile of order ", n);
    return Status::Ok();
  };
  JAXMG_RETURN_IF_ERROR(space->Size(device_, {kType, 'p', n, lda}, query));
  return space->Allocate(device_, stream);
}

template <typename T>
Status CudaBlas<T>::ReservePotrf(Stream stream, int64_t n, T* a, int64_t lda) {
  SolverSpace space;
  return n == 0 ? Status::Ok() : SpaceForPotrf(stream, n, a, lda, &space);
}

template <typename T>
Status CudaBlas<T>::Factor(Stream stream, int64_t n, T* a, int64_t lda, int64_t offset,
                           int32_t** failed, int32_t* info, R* sum) {
  constexpr cudaDataType kType = CudaType<T>::kValue;
  SolverSpace space;
  JAXMG_RETURN_IF_ERROR(SpaceForPotrf(stream, n, a, lda, &space));
  *failed = space.info + 1;
  JAXMG_CHECK_CUDA(Get<Cusolver>().cusolverDnXpotrf(
                       space.handle, space.params, CUBLAS_FILL_MODE_LOWER, n, kType, a, lda, kType,
                       space.device, space.device_bytes, space.host, space.host_bytes, space.info),
                   "potrf: tile of order ", n);
  return device_.cuda_status().CheckFactor(stream, n, a, lda, offset, space.info, *failed, info,
                                           sum);
}

template <typename T>
Status CudaBlas<T>::Potrf(Stream stream, int64_t n, T* a, int64_t lda, int64_t offset,
                          int32_t* info) {
  if (n == 0) return Status::Ok();
  int32_t* failed = nullptr;
  JAXMG_RETURN_IF_ERROR(Factor(stream, n, a, lda, offset, &failed, info, nullptr));
  return device_.cuda_status().PoisonIf(stream, failed, n, n, a, lda);
}

template <typename T>
Status CudaBlas<T>::PotrfOfWhole(Stream stream, int64_t n, T* a, int64_t lda, int32_t* info,
                                 R* sum) {
  int32_t* failed = nullptr;
  return n == 0 ? Status::Ok() : Factor(stream, n, a, lda, 0, &failed, info, sum);
}

template <typename T>
Status CudaBlas<T>::DoTrtri(Stream stream, Triangle triangle, int64_t n, const T* a, int64_t lda,
                            T* inverse, int64_t ld) {
  JAXMG_RETURN_IF_ERROR(SetIdentity(stream, n, inverse, ld));
  return this->Trsm(stream, Side::kRight, Op::kNone, n, n, a, lda, inverse, ld, triangle);
}

template <typename T>
Status CudaBlas<T>::ConjTranspose(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda,
                                  T* b, int64_t ldb) {
  return device_.LaunchTiles(Kernel::conj_transpose, CudaType<T>::kLetter, stream, m, n, m, n, a,
                             lda, b, ldb);
}

template <typename T>
Status CudaBlas<T>::MirrorLower(Stream stream, int64_t n, T* a, int64_t lda) {
  return device_.LaunchTiles(Kernel::mirror_lower, CudaType<T>::kLetter, stream, n, n, n, a, lda);
}

template <typename T>
Status CudaBlas<T>::Conjugate(Stream stream, int64_t m, int64_t n, T* a, int64_t lda) {
  if constexpr (!kIsComplex<T>) return Status::Ok();
  return device_.LaunchElements(Kernel::conjugate, CudaType<T>::kLetter, stream, m * n, m, n, a,
                                lda);
}

template <typename T>
Status CudaBlas<T>::Add(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda, T* b,
                        int64_t ldb) {
  return device_.LaunchElements(Kernel::add, CudaType<T>::kLetter, stream, m * n, m, n, a, lda, b,
                                ldb);
}

template <typename T>
Status CudaBlas<T>::SetIdentity(Stream stream, int64_t n, T* a, int64_t lda) {
  return device_.LaunchElements(Kernel::identity, CudaType<T>::kLetter, stream, n * n, n, a, lda);
}

template <typename T>
Status CudaBlas<T>::SetZero(Stream stream, int64_t m, int64_t n, T* a, int64_t lda) {
  if (m == 0 || n == 0) return Status::Ok();
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaMemset2DAsync(a, lda * sizeof(T), 0, m * sizeof(T), n,
                                                        device_.stream(stream)),
                   "zeros on GPU ", device_.ordinal(), ", ", m, " x ", n);
  return Status::Ok();
}

template <typename T>
Status CudaBlas<T>::StoreInverse(Stream stream, int64_t n, const T* inverse, int64_t ld, T* a,
                                 int64_t lda) {
  return device_.LaunchTiles(Kernel::store_inverse, CudaType<T>::kLetter, stream, n, n, n, inverse,
                             ld, a, lda);
}

template <typename T>
Status CudaBlas<T>::LoadInverse(Stream stream, int64_t n, bool transposed, const T* a, int64_t lda,
                                T* l, T* inverse) {
  return device_.LaunchTiles(Kernel::load_inverse, CudaType<T>::kLetter, stream, n, n, n,
                             static_cast<int>(transposed), a, lda, l, inverse);
}

template <typename T>
Status CudaBlas<T>::AddLogDet(Stream stream, int64_t n, const T* l, int64_t ldl, R* sum) {
  if (n == 0) return Status::Ok();
  return device_.LaunchOne(Kernel::add_log_det, CudaType<T>::kLetter, stream, n, l, ldl, sum);
}

#define JAXMG_INSTANTIATE(T) template class CudaBlas<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
