// How long a panel of an LU factorization takes on one GPU, by the engine's kernels
// (xla_ffi/device/cuda/lu.cuh) and by cuSOLVER.
//
//   nvcc -std=c++17 -O3 -arch=sm_90a -I. -o lu_panel benchmarks/lu_panel.cu -lcublas -lcusolver
//   ./lu_panel
//
// Prints a row for each number of rows: microseconds a column of a panel of 32 columns by one
// kernel, of one of 1024 columns by halves with cuBLAS's products, and of the same by cuSOLVER's
// getrf; and whether the pivots are the same.
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cusolverDn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "xla_ffi/device/cuda/lu.cuh"

namespace jaxmg::kernels {

template <typename T>
__global__ __launch_bounds__(kLuThreads,
                             1) void Panel(Index m, int n, T* a, Index lda, Index offset,
                                           int* pivots, int* info, unsigned* met, T* rows,
                                           typename RealOf<T>::type* sizes, int* places) {
  LuPanel<T>(m, n, a, lda, offset, pivots, info, met, rows, sizes, places).Run();
}
__global__ void Plan(int count, Index offset, const int* pivots, int* from, int* to) {
  PlanSwaps(0, count, offset, pivots, from, to);
}
template <typename T>
__global__ void Move(Index n, int count, const int* from, const int* to, T* a, Index lda) {
  MoveRows(n, count, from, to, a, 1, lda);
}

// Normally distributed numbers.
template <typename T>
__global__ void Fill(Index count, T* a) {
  auto uniform = [](unsigned long long i) {
    unsigned long long h = i * 0x9E3779B97F4A7C15ull + 0xD1B54A32D192ED03ull;
    h ^= h >> 31, h *= 0xBF58476D1CE4E5B9ull;
    h ^= h >> 29, h *= 0x94D049BB133111EBull;
    return ((h ^ h >> 32) >> 11) * 0x1p-53;
  };
  for (Index i = blockIdx.x * Index(blockDim.x) + threadIdx.x; i < count;
       i += gridDim.x * Index(blockDim.x)) {
    a[i] = static_cast<T>(sqrt(-2 * log(uniform(2 * i) + 1e-300)) *
                          cos(6.283185307179586 * uniform(2 * i + 1)));
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

cublasStatus_t Trsm(cublasHandle_t h, int m, int n, const double* a, int lda, double* b, int ldb) {
  const double one = 1;
  return cublasDtrsm(h, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, CUBLAS_DIAG_UNIT, m,
                     n, &one, a, lda, b, ldb);
}
cublasStatus_t Trsm(cublasHandle_t h, int m, int n, const float* a, int lda, float* b, int ldb) {
  const float one = 1;
  return cublasStrsm(h, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, CUBLAS_DIAG_UNIT, m,
                     n, &one, a, lda, b, ldb);
}
cublasStatus_t Gemm(cublasHandle_t h, int m, int n, int k, const double* a, const double* b,
                    double* c, int ld) {
  const double minus = -1, one = 1;
  return cublasDgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &minus, a, ld, b, ld, &one, c, ld);
}
cublasStatus_t Gemm(cublasHandle_t h, int m, int n, int k, const float* a, const float* b, float* c,
                    int ld) {
  const float minus = -1, one = 1;
  return cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &minus, a, ld, b, ld, &one, c, ld);
}

template <typename T>
class Panels {
 public:
  Panels(int most_rows) {
    cudaGetDeviceProperties(&device_, 0);
    Check(cublasCreate(&blas_) == CUBLAS_STATUS_SUCCESS, "cublasCreate");
    Check(cudaMalloc(&scratch_, 64 << 20) == cudaSuccess, "cudaMalloc");
    Check(cudaMalloc(&pivots_, sizeof(int) * most_rows) == cudaSuccess, "cudaMalloc");
    Check(cudaMalloc(&info_, sizeof(int)) == cudaSuccess, "cudaMalloc");
  }

  void FactorColumns(int m, int n, T* a, int lda, int offset) {
    const int blocks = Blocks(m), rows = (m + blocks - 1) / blocks;
    const int shared = static_cast<int>(rows * n * sizeof(T));
    char* exchanged = scratch_ + 256;
    const size_t rows_bytes = 2 * n * (blocks + 1) * sizeof(T),
                 sizes_bytes = 2 * blocks * sizeof(T);
    auto* met = reinterpret_cast<unsigned*>(scratch_);
    auto* exchanged_rows = reinterpret_cast<T*>(exchanged);
    auto* sizes = reinterpret_cast<T*>(exchanged + rows_bytes);
    auto* places = reinterpret_cast<int*>(exchanged + rows_bytes + sizes_bytes);
    cudaMemsetAsync(met, 0, sizeof(unsigned));
    Index wide_m = m, wide_lda = lda, wide_offset = offset;
    int* pivots = pivots_ + offset;
    void* arguments[] = {&wide_m,         &n,      &a,     &wide_lda,
                         &wide_offset,    &pivots, &info_, &met,
                         &exchanged_rows, &sizes,  &places};
    const void* kernel = reinterpret_cast<const void*>(&jaxmg::kernels::Panel<T>);
    Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared) ==
              cudaSuccess,
          "shared memory");
    Check(cudaLaunchCooperativeKernel(kernel, blocks, jaxmg::kLuThreads, arguments, shared, 0) ==
              cudaSuccess,
          "launch");
  }

  void Factor(int m, int n, T* a, int lda, int offset) {
    const int most = MostColumns(m);
    if (n <= most) return FactorColumns(m, n, a, lda, offset);
    const int left = (n / 2 + most - 1) / most * most, right = n - left;
    T* a2 = a + static_cast<size_t>(left) * lda;
    Factor(m, left, a, lda, offset);
    Swap(left, right, a2, lda, offset);
    Check(Trsm(blas_, left, right, a, lda, a2, lda) == CUBLAS_STATUS_SUCCESS, "trsm");
    Check(Gemm(blas_, m - left, right, left, a + left, a2, a2 + left, lda) == CUBLAS_STATUS_SUCCESS,
          "gemm");
    Factor(m - left, right, a2 + left, lda, offset + left);
    Swap(right, left, a + left, lda, offset + left);
  }

  void Swap(int count, int n, T* a, int lda, int offset) {
    int* from = reinterpret_cast<int*>(scratch_ + (32 << 20));
    int* to = from + 2 * count;
    jaxmg::kernels::Plan<<<1, 256>>>(count, offset, pivots_ + offset, from, to);
    jaxmg::kernels::Move<T><<<std::min(n, 4096), 256>>>(n, count, from, to, a, lda);
  }

  int* pivots() const { return pivots_; }
  int MostColumns(int m) const {
    const int blocks = Blocks(m), rows = (m + blocks - 1) / blocks;
    const size_t most = device_.sharedMemPerBlockOptin - (24 << 10);
    return static_cast<int>(std::min<size_t>(most / (rows * sizeof(T)), jaxmg::kLuColumns));
  }

 private:
  int Blocks(int m) const {
    return std::clamp(m / jaxmg::kLuRows, 1,
                      std::min(device_.multiProcessorCount, jaxmg::kLuBlocks));
  }

  cudaDeviceProp device_;
  cublasHandle_t blas_;
  char* scratch_;
  int *pivots_, *info_;
};

template <typename F>
double Microseconds(const F& prepare, const F& work) {
  std::vector<double> times;
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  for (int i = 0; i < 6; ++i) {
    prepare();
    cudaEventRecord(begin);
    work();
    cudaEventRecord(end);
    Check(cudaEventSynchronize(end) == cudaSuccess, "work");
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    times.push_back(1e3 * milliseconds);
  }
  std::sort(times.begin() + 1, times.end());  // the first one warms up
  return times[3];
}

template <typename T>
void Run(const char* dtype, cudaDataType type) {
  for (int m : {1024, 4096, 8192, 16384, 32768, 65536, 131072}) {
    const int n = 1024;
    const size_t count = static_cast<size_t>(m) * n;
    T *original = nullptr, *a = nullptr;
    Check(cudaMalloc(&original, count * sizeof(T)) == cudaSuccess, "cudaMalloc");
    Check(cudaMalloc(&a, count * sizeof(T)) == cudaSuccess, "cudaMalloc");
    jaxmg::kernels::Fill<<<4096, 256>>>(static_cast<Index>(count), original);
    Panels<T> panels(m);
    const std::function<void()> prepare = [&] {
      cudaMemcpyAsync(a, original, count * sizeof(T), cudaMemcpyDeviceToDevice);
    };
    const int columns = panels.MostColumns(m);
    const double narrow = Microseconds<std::function<void()>>(
        prepare, [&] { panels.FactorColumns(m, columns, a, m, 0); });
    const double wide =
        Microseconds<std::function<void()>>(prepare, [&] { panels.Factor(m, n, a, m, 0); });
    std::vector<int> pivots(n);
    cudaMemcpy(pivots.data(), panels.pivots(), n * sizeof(int), cudaMemcpyDeviceToHost);

    cusolverDnHandle_t solver;
    cusolverDnParams_t params;
    cusolverDnCreate(&solver);
    cusolverDnCreateParams(&params);
    size_t device_bytes = 0, host_bytes = 0;
    cusolverDnXgetrf_bufferSize(solver, params, m, n, type, a, m, type, &device_bytes, &host_bytes);
    void* workspace = nullptr;
    int64_t* their_pivots = nullptr;
    int* info = nullptr;
    Check(cudaMalloc(&workspace, device_bytes + 1) == cudaSuccess, "cudaMalloc");
    cudaMalloc(&their_pivots, n * sizeof(int64_t));
    cudaMalloc(&info, sizeof(int));
    std::vector<char> host_workspace(host_bytes + 1);
    const double theirs = Microseconds<std::function<void()>>(prepare, [&] {
      cusolverDnXgetrf(solver, params, m, n, type, a, m, their_pivots, type, workspace,
                       device_bytes, host_workspace.data(), host_bytes, info);
    });
    std::vector<int64_t> expected(n);
    cudaMemcpy(expected.data(), their_pivots, n * sizeof(int64_t), cudaMemcpyDeviceToHost);
    int same = 0;
    for (int i = 0; i < n; ++i) same += pivots[i] + 1 == expected[i];
    std::printf(
        "%s %7d rows: %2d columns %6.2f, 1024 columns %6.2f, cuSOLVER %6.2f us a column; "
        "%d of 1024 pivots the same\n",
        dtype, m, columns, narrow / columns, wide / n, theirs / n, same);
    std::fflush(stdout);
    for (void* memory : {static_cast<void*>(original), static_cast<void*>(a), workspace,
                         static_cast<void*>(their_pivots), static_cast<void*>(info)}) {
      cudaFree(memory);
    }
  }
}

}  // namespace

int main() {
  Run<double>("float64", CUDA_R_64F);
  Run<float>("float32", CUDA_R_32F);
}
