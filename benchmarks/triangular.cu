// How long substitution with a triangle takes on one GPU for few right-hand sides, by the engine's
// kernel (xla_ffi/device/cuda/cholesky/triangular.cuh) and by cuBLAS's TRSM, and whether it is
// right.
//
//   nvcc -std=c++17 -O3 -arch=sm_90a -I. -o triangular benchmarks/triangular.cu -lcublas
//   ./triangular          or: ./triangular few (small orders alone, for compute-sanitizer)
//
// First compares both for all sides, operations and triangles, of all dtypes. Then prints for each
// order and number of right-hand sides the microseconds of X R = B, R upper as LU leaves it, and of
// its transpose.
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "xla_ffi/device/cuda/cholesky/triangular.cuh"

namespace jaxmg::kernels {

template <typename T, int kColumns>
__global__ __launch_bounds__(kTriangleEdge* kTriangleEdge) void Solve(Triangular<T> system,
                                                                      TaggedWord* words,
                                                                      unsigned tag,
                                                                      unsigned* ticket,
                                                                      unsigned first_ticket) {
  TriangleSolver<T, kColumns>(system, words, tag, ticket, first_ticket).Run();
}

// Numbers between -1 and 1 by a hash; in a matrix, divided by the root of its order, with a
// diagonal of about 3.
template <typename T>
__global__ void Fill(Index rows, Index columns, T* a, bool triangle) {
  using R = typename RealOf<T>::type;
  for (Index i = blockIdx.x * Index(blockDim.x) + threadIdx.x; i < rows * columns;
       i += Index(gridDim.x) * blockDim.x) {
    auto number = [&](unsigned long long x) {
      x = (x + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
      x = (x ^ (x >> 29)) * 0x94d049bb133111eb;
      return R(static_cast<double>(x >> 11) * 0x1p-52 - 1);
    };
    const T x = FromParts<T>(number(2 * i), number(2 * i + 1));
    const R scale = triangle ? 1 / sqrt(R(rows)) : R(1);
    a[i] = Plus(Scale(x, scale), FromReal<T>(triangle && i / rows == i % rows ? 3 : 0));
  }
}

// *largest := the largest |x_i - y_i|, as bits that are in the order of the numbers.
template <typename T>
__global__ void Difference(Index count, const T* x, const T* y, unsigned* largest) {
  for (Index i = blockIdx.x * Index(blockDim.x) + threadIdx.x; i < count;
       i += Index(gridDim.x) * blockDim.x) {
    const T difference = Plus(x[i], Scale(y[i], -1));
    float size = static_cast<float>(fabs(RealPart(difference)) + fabs(ImaginaryPart(difference)));
    if (!(size == size)) size = __int_as_float(0x7f800000);
    atomicMax(largest, __float_as_uint(size));
  }
}

}  // namespace jaxmg::kernels

namespace {

using jaxmg::kernels::Index;

void Check(bool ok, const char* what) {
  if (ok) return;
  std::printf("%s failed: %s\n", what, cudaGetErrorString(cudaGetLastError()));
  std::exit(1);
}

#define TRSM(T, letter)                                                                        \
  cublasStatus_t Trsm(cublasHandle_t h, cublasSideMode_t side, cublasFillMode_t uplo,          \
                      cublasOperation_t op, cublasDiagType_t diag, int m, int n, const T* one, \
                      const T* a, int lda, T* b, int ldb) {                                    \
    return cublas##letter##trsm(h, side, uplo, op, diag, m, n, one, a, lda, b, ldb);           \
  }
TRSM(float, S)
TRSM(double, D)
TRSM(cuComplex, C)
TRSM(cuDoubleComplex, Z)
#undef TRSM

struct Kind {
  cublasSideMode_t side;
  cublasOperation_t op;
  cublasFillMode_t uplo;
  cublasDiagType_t diag;
};

template <typename T>
class Bench {
 public:
  Bench(int most_order, int most_nrhs) : elements_(size_t(most_order) * most_nrhs) {
    Check(cublasCreate(&blas_) == CUBLAS_STATUS_SUCCESS, "cublasCreate");
    const size_t bytes = 16 * (1 + elements_ * jaxmg::kTriangleWords<sizeof(T)>);
    Check(cudaMalloc(&words_, bytes) == cudaSuccess, "cudaMalloc");
    cudaMemset(words_, 0, bytes);
    Check(cudaMalloc(&a_, sizeof(T) * most_order * size_t(most_order)) == cudaSuccess,
          "cudaMalloc");
    for (T** memory : {&b_, &x_, &y_}) {
      Check(cudaMalloc(memory, sizeof(T) * elements_) == cudaSuccess, "cudaMalloc");
    }
    Check(cudaMalloc(&largest_, sizeof(unsigned)) == cudaSuccess, "cudaMalloc");
    jaxmg::kernels::Fill<<<1024, 256>>>(Index(1), Index(elements_), b_, false);
  }
  ~Bench() {
    cublasDestroy(blas_);
    for (void* memory :
         {static_cast<void*>(words_), static_cast<void*>(a_), static_cast<void*>(b_),
          static_cast<void*>(x_), static_cast<void*>(y_), static_cast<void*>(largest_)}) {
      cudaFree(memory);
    }
  }

  void SetOrder(int order, int nrhs) {
    order_ = order, nrhs_ = nrhs;
    jaxmg::kernels::Fill<<<1024, 256>>>(Index(order), Index(order), a_, true);
  }

  // As TriangularSystem and CudaBlas::SolveTriangle have it, with leading dimensions as small as
  // they can be.
  void ByKernel(const Kind& kind, T* x) {
    const bool left = kind.side == CUBLAS_SIDE_LEFT;
    const bool as_stored = left == (kind.op == CUBLAS_OP_N);
    const bool forward = (kind.uplo == CUBLAS_FILL_MODE_LOWER) == as_stored;
    const Index way = forward ? 1 : -1, n = order_, last = forward ? 0 : n - 1;
    const Index row = left ? 1 : nrhs_, column = left ? n : 1;
    T* first = x + last * row;
    const jaxmg::kernels::Triangular<T> system = {n,
                                                  nrhs_,
                                                  kind.op == CUBLAS_OP_C,
                                                  kind.diag == CUBLAS_DIAG_UNIT,
                                                  a_ + last * (n + 1),
                                                  way * (as_stored ? 1 : n),
                                                  way * (as_stored ? n : 1),
                                                  first,
                                                  way * row,
                                                  column,
                                                  first,
                                                  way * row,
                                                  column};
    const int columns = nrhs_ == 1 ? 1 : jaxmg::kTriangleColumns;
    const int rows = jaxmg::kTriangleEdge * jaxmg::kTriangleSquares<sizeof(T)>;
    const unsigned blocks = (order_ + rows - 1) / rows * ((nrhs_ + columns - 1) / columns);
    auto* ticket = reinterpret_cast<unsigned*>(words_);
    const int threads = jaxmg::kTriangleEdge * jaxmg::kTriangleEdge;
    if (nrhs_ == 1) {
      jaxmg::kernels::Solve<T, 1><<<blocks, threads>>>(system, words_ + 1, ++tag_, ticket, ticket_);
    } else {
      jaxmg::kernels::Solve<T, jaxmg::kTriangleColumns>
          <<<blocks, threads>>>(system, words_ + 1, ++tag_, ticket, ticket_);
    }
    ticket_ += blocks;
  }
  void ByCublas(const Kind& kind, T* x) {
    const bool left = kind.side == CUBLAS_SIDE_LEFT;
    const int m = left ? order_ : nrhs_, n = left ? nrhs_ : order_;
    Check(Trsm(blas_, kind.side, kind.uplo, kind.op, kind.diag, m, n, &one_, a_, order_, x, m) ==
              CUBLAS_STATUS_SUCCESS,
          "trsm");
  }

  // The largest difference of both.
  float Compare(const Kind& kind) {
    Copy(x_);
    ByKernel(kind, x_);
    Copy(y_);
    ByCublas(kind, y_);
    cudaMemset(largest_, 0, sizeof(unsigned));
    jaxmg::kernels::Difference<<<256, 256>>>(Index(order_) * nrhs_, x_, y_, largest_);
    unsigned bits = 0;
    Check(cudaMemcpy(&bits, largest_, sizeof(bits), cudaMemcpyDeviceToHost) == cudaSuccess,
          "a solution");
    float largest = 0;
    std::memcpy(&largest, &bits, sizeof(largest));
    return largest;
  }

  // Microseconds, the median of several runs.
  template <typename Call>
  double Time(const Call& call) {
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    std::vector<float> times;
    for (int run = 0; run < 12; ++run) {
      Copy(x_);
      cudaEventRecord(begin);
      call();
      cudaEventRecord(end);
      Check(cudaEventSynchronize(end) == cudaSuccess, "a solution");
      float milliseconds = 0;
      cudaEventElapsedTime(&milliseconds, begin, end);
      if (run > 1) times.push_back(milliseconds);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::sort(times.begin(), times.end());
    return 1000 * times[times.size() / 2];
  }
  T* x() const { return x_; }

 private:
  void Copy(T* to) {
    cudaMemcpyAsync(to, b_, sizeof(T) * order_ * nrhs_, cudaMemcpyDeviceToDevice);
  }

  const size_t elements_;
  const T one_ = jaxmg::kernels::FromReal<T>(1);
  cublasHandle_t blas_;
  jaxmg::kernels::TaggedWord* words_;
  T *a_, *b_, *x_, *y_;
  unsigned* largest_;
  unsigned tag_ = 0, ticket_ = 0;
  int order_ = 0, nrhs_ = 0;
};

template <typename T>
void Run(const char* dtype, bool few) {
  int faults = 0, cases = 0;
  const double eps = sizeof(typename jaxmg::kernels::RealOf<T>::type) == 4 ? 0x1p-23 : 0x1p-52;
  {
    Bench<T> bench(few ? 300 : 3000, 16);
    for (int order : {1, 31, 64, 65, 200, 1024, 2500}) {
      for (int nrhs : {1, 2, 4, 5, 16}) {
        if (few && order > 200) continue;
        bench.SetOrder(order, nrhs);
        for (auto side : {CUBLAS_SIDE_LEFT, CUBLAS_SIDE_RIGHT}) {
          for (auto op : {CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C}) {
            for (auto uplo : {CUBLAS_FILL_MODE_LOWER, CUBLAS_FILL_MODE_UPPER}) {
              for (auto diag : {CUBLAS_DIAG_NON_UNIT, CUBLAS_DIAG_UNIT}) {
                const Kind kind = {side, op, uplo, diag};
                // A unit triangle's solutions grow; its elements are small enough for these orders.
                const float difference = bench.Compare(kind);
                ++cases;
                if (difference < 1000 * eps * std::sqrt(order)) continue;
                ++faults;
                std::printf("%s: order %d, %d right-hand sides, %s, op %d, %s, %s: difference %g\n",
                            dtype, order, nrhs, side == CUBLAS_SIDE_LEFT ? "left" : "right",
                            static_cast<int>(op),
                            uplo == CUBLAS_FILL_MODE_LOWER ? "lower" : "upper",
                            diag == CUBLAS_DIAG_UNIT ? "unit" : "not unit", difference);
              }
            }
          }
        }
      }
    }
  }
  std::printf("%s: %d faults in %d systems\n", dtype, faults, cases);
  std::fflush(stdout);
  if (few) return;
  Bench<T> bench(12288, 16);
  const Kind plain = {CUBLAS_SIDE_RIGHT, CUBLAS_OP_N, CUBLAS_FILL_MODE_UPPER, CUBLAS_DIAG_NON_UNIT};
  const Kind turned = {CUBLAS_SIDE_RIGHT, CUBLAS_OP_T, CUBLAS_FILL_MODE_LOWER, CUBLAS_DIAG_UNIT};
  for (int order : {64, 256, 1024, 2048, 4096, 8192, 12288}) {
    for (int nrhs : {1, 4, 16}) {
      bench.SetOrder(order, nrhs);
      double times[4];
      for (int i = 0; i < 2; ++i) {
        const Kind& kind = i == 0 ? plain : turned;
        times[2 * i] = bench.Time([&] { bench.ByKernel(kind, bench.x()); });
        times[2 * i + 1] = bench.Time([&] { bench.ByCublas(kind, bench.x()); });
      }
      std::printf(
          "%s  order %5d, %2d right-hand sides: %7.1f (cuBLAS %7.1f), transposed %7.1f "
          "(cuBLAS %7.1f) us\n",
          dtype, order, nrhs, times[0], times[1], times[2], times[3]);
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  const bool few = count > 1 && std::strcmp(arguments[1], "few") == 0;
  Run<double>("float64", few);
  Run<float>("float32", few);
  Run<cuDoubleComplex>("complex128", few);
  Run<cuComplex>("complex64", few);
}
