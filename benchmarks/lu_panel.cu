// How long a panel of an LU factorization takes on one GPU, by the engine's kernels
// (xla_ffi/device/cuda/lu/lu_panel.cuh, lu.cuh) and by cuSOLVER, and whether it is right.
//
//   nvcc -std=c++17 -O3 -arch=sm_90a -I. -o lu_panel benchmarks/lu_panel.cu -lcublas -lcusolver
//   ./lu_panel            or: ./lu_panel apart (no clusters), ./lu_panel few (a few panels alone,
//                         for compute-sanitizer)
//
// First compares panels of all dtypes with what a plain program computes on the host: heights on
// both sides of the places where the kernels change, rows that are alike, zeros, NaN. Then prints a
// row for each number of rows: microseconds a column of one leaf, by one kernel; of a panel of 1024
// columns by halves; of its three parts; and of the same panel by cuSOLVER's getrf; and whether
// the pivots are the same, and the largest difference of the factors.
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cusolverDn.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "xla_ffi/device/cuda/lu/lu.cuh"
#include "xla_ffi/device/cuda/lu/lu_panel.cuh"

namespace jaxmg::kernels {

template <typename T, int kColumns>
__global__ __launch_bounds__(kLuThreads, 1) void Leaf(Index m, int n, T* a, Index lda, Index offset,
                                                      int* pivots, int* info, TaggedWord* slots,
                                                      unsigned first_tag, int* moves) {
  LuPanel<T, kColumns>(m, n, a, lda, offset, pivots, info, slots, first_tag, moves).Run();
}
template <typename T>
__global__ __launch_bounds__(kThreads) void Step(int n, T* a, Index lda, int width, int first,
                                                 int last, int column, int right,
                                                 const int* moves) {
  LuStep<T>(n, a, lda, width, first, last, column, right, moves).Run();
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

bool use_clusters = true, few = false;

void Check(bool ok, const char* what) {
  if (ok) return;
  std::printf("%s failed: %s\n", what, cudaGetErrorString(cudaGetLastError()));
  std::exit(1);
}

#define BLAS(T, Value, letter)                                                                    \
  cublasStatus_t Trsm(cublasHandle_t h, int m, int n, const T* a, int lda, T* b) {                \
    const Value one{1};                                                                           \
    return cublas##letter##trsm(h, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N,         \
                                CUBLAS_DIAG_UNIT, m, n, reinterpret_cast<const T*>(&one), a, lda, \
                                b, lda);                                                          \
  }                                                                                               \
  cublasStatus_t Gemm(cublasHandle_t h, int m, int n, int k, const T* a, const T* b, T* c,        \
                      int ld) {                                                                   \
    const Value minus{-1}, one{1};                                                                \
    return cublas##letter##gemm(h, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k,                             \
                                reinterpret_cast<const T*>(&minus), a, ld, b, ld,                 \
                                reinterpret_cast<const T*>(&one), c, ld);                         \
  }
BLAS(float, float, S)
BLAS(double, double, D)
BLAS(cuComplex, std::complex<float>, C)
BLAS(cuDoubleComplex, std::complex<double>, Z)
#undef BLAS

enum Part { kLeaves = 1, kSteps = 2, kProducts = 4, kAll = 7 };

// As CudaLu (xla_ffi/device/cuda/lu/lu.cc).
template <typename T>
class Panels {
 public:
  Panels(int most_rows) {
    cudaGetDeviceProperties(&device_, 0);
    Check(cublasCreate(&blas_) == CUBLAS_STATUS_SUCCESS, "cublasCreate");
    const size_t bytes = 2 * jaxmg::kLuSlotWords * jaxmg::kLuBlocks * 16;
    Check(cudaMalloc(&slots_, bytes) == cudaSuccess, "cudaMalloc");
    cudaMemset(slots_, 0, bytes);
    Check(cudaMalloc(&moves_, sizeof(int) * (4 * most_rows + 128)) == cudaSuccess, "cudaMalloc");
    Check(cudaMalloc(&pivots_, sizeof(int) * most_rows) == cudaSuccess, "cudaMalloc");
    Check(cudaMalloc(&info_, sizeof(int)) == cudaSuccess, "cudaMalloc");
  }
  ~Panels() {
    cublasDestroy(blas_);
    for (void* memory : {static_cast<void*>(slots_), static_cast<void*>(moves_),
                         static_cast<void*>(pivots_), static_cast<void*>(info_)}) {
      cudaFree(memory);
    }
  }

  void Factor(int m, int n, T* a, int lda, int width, int parts = kAll) {
    m_ = m, k_ = std::min(m, n), a_ = a, lda_ = lda, width_ = width, parts_ = parts;
    cudaMemsetAsync(info_, 0x7f, sizeof(int));
    if (n <= width) return FactorLeaf(0, n);
    const int leaves = (k_ + width - 1) / width;
    FactorLeaves(0, leaves);
    Step(0, leaves, n - k_);
    if (n > k_ && k_ > jaxmg::kLuDepth) {
      Check(Trsm(blas_, k_, n - k_, a, lda, At(0, k_)) == CUBLAS_STATUS_SUCCESS, "trsm");
    }
  }

  void UseClusters(bool use) { clusters_ = use; }
  int* pivots() const { return pivots_; }
  int info() const {
    int value = 0;
    cudaMemcpy(&value, info_, sizeof(int), cudaMemcpyDeviceToHost);
    return value == 0x7f7f7f7f ? jaxmg::kNoInfo : value;
  }
  int MostColumns(int m) const {
    for (int width : {32, 16, 8}) {
      if (m <= Rows(width) * std::min(device_.multiProcessorCount, jaxmg::kLuBlocks)) return width;
    }
    return 4;
  }

 private:
  // Of a block.
  static int Rows(int width) {
    return jaxmg::kLuThreads * static_cast<int>(512 / sizeof(T)) / width;
  }
  T* At(int i, int j) const { return a_ + i + static_cast<size_t>(j) * lda_; }

  void FactorLeaf(int begin, int n) {
    if (!(parts_ & kLeaves)) return;
    jaxmg::kernels::Index m = m_ - begin, lda = lda_, offset = begin;
    T* a = At(begin, begin);
    int *pivots = pivots_ + begin, *moves = moves_ + 4 * begin;
    using namespace jaxmg::kernels;
    const void* kernel = width_ == 32   ? reinterpret_cast<const void*>(&Leaf<T, 32>)
                         : width_ == 16 ? reinterpret_cast<const void*>(&Leaf<T, 16>)
                         : width_ == 8  ? reinterpret_cast<const void*>(&Leaf<T, 8>)
                                        : reinterpret_cast<const void*>(&Leaf<T, 4>);
    const int rows = Rows(width_);
    int blocks = static_cast<int>((m + rows - 1) / rows);
    TaggedWord* slots = slots_;
    if (clusters_ && use_clusters && blocks > 1 && blocks <= jaxmg::kLuCluster) {
      blocks = blocks <= 2 ? 2 : blocks <= 4 ? 4 : blocks <= 8 ? 8 : 16;
      slots = nullptr;
    }
    void* arguments[] = {&m, &n, &a, &lda, &offset, &pivots, &info_, &slots, &tag_, &moves};
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = jaxmg::kLuThreads;
    config.attrs = &attribute;
    config.numAttrs = 1;
    if (slots == nullptr) {
      Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) ==
                cudaSuccess,
            "cluster");
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim.x = blocks;
      attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    } else {
      attribute.id = cudaLaunchAttributeCooperative;
      attribute.val.cooperative = blocks > 1;
    }
    Check(cudaLaunchKernelExC(&config, kernel, arguments) == cudaSuccess, "launch");
    tag_ += n;
  }

  void FactorLeaves(int first, int last) {
    const int begin = first * width_, end = std::min(last * width_, k_);
    if (last - first == 1) return FactorLeaf(begin, end - begin);
    const int middle = first + (last - first + 1) / 2, row = middle * width_;
    FactorLeaves(first, middle);
    Step(first, middle, end - row);
    if (row - begin > jaxmg::kLuDepth && parts_ & kSteps) {
      Check(Trsm(blas_, row - begin, end - row, At(begin, begin), lda_, At(begin, row)) ==
                CUBLAS_STATUS_SUCCESS,
            "trsm");
    }
    if (m_ > row && parts_ & kProducts) {
      Check(Gemm(blas_, m_ - row, end - row, row - begin, At(row, begin), At(begin, row),
                 At(row, row), lda_) == CUBLAS_STATUS_SUCCESS,
            "gemm");
    }
    FactorLeaves(middle, last);
  }

  void Step(int first, int last, int right) {
    if (!(parts_ & kSteps)) return;
    auto blocks = [](int columns) {
      return (columns + jaxmg::kLuStepColumns - 1) / jaxmg::kLuStepColumns;
    };
    const int begin = first * width_, end = std::min(last * width_, k_);
    if (last - first > 1) {
      jaxmg::kernels::Step<T><<<blocks(end - begin), jaxmg::kThreads>>>(k_, a_, lda_, width_, first,
                                                                        last, begin, 0, moves_);
    }
    if (right > 0) {
      jaxmg::kernels::Step<T><<<blocks(right), jaxmg::kThreads>>>(k_, a_, lda_, width_, first, last,
                                                                  end, right, moves_);
    }
    Check(cudaGetLastError() == cudaSuccess, "step");
  }

  cudaDeviceProp device_;
  cublasHandle_t blas_;
  jaxmg::kernels::TaggedWord* slots_;
  int *moves_, *pivots_, *info_;
  unsigned tag_ = 1;
  bool clusters_ = true;
  int m_ = 0, k_ = 0, lda_ = 0, width_ = 0, parts_ = kAll;
  T* a_ = nullptr;
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

// The largest difference of two matrices, as bits of a double that is not negative.
template <typename T>
__global__ void Difference(size_t count, const T* a, const T* b, unsigned long long* largest) {
  double mine = 0;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count;
       i += size_t(gridDim.x) * blockDim.x) {
    const double difference = fabs(double(a[i]) - double(b[i]));
    mine = difference <= mine ? mine : difference;
  }
  atomicMax(largest, static_cast<unsigned long long>(__double_as_longlong(mine)));
}

template <typename T>
void Run(const char* dtype, cudaDataType type) {
  for (int m : {1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072}) {
    const int n = 1024;
    const size_t count = static_cast<size_t>(m) * n;
    T *original = nullptr, *a = nullptr, *ours = nullptr;
    for (T** memory : {&original, &a, &ours}) {
      Check(cudaMalloc(memory, count * sizeof(T)) == cudaSuccess, "cudaMalloc");
    }
    jaxmg::kernels::Fill<<<4096, 256>>>(static_cast<Index>(count), original);
    Panels<T> panels(m);
    const std::function<void()> prepare = [&] {
      cudaMemcpyAsync(a, original, count * sizeof(T), cudaMemcpyDeviceToDevice);
    };
    const int columns = panels.MostColumns(m);
    auto time = [&](int width, int parts) {
      return Microseconds<std::function<void()>>(
          prepare, [&] { panels.Factor(m, width, a, m, columns, parts); });
    };
    panels.UseClusters(false);
    const double apart = time(columns, kAll);
    panels.UseClusters(true);
    const double leaf = time(columns, kAll), leaves = time(n, kLeaves), steps = time(n, kSteps),
                 products = time(n, kProducts), wide = time(n, kAll);
    std::vector<int> pivots(n);
    cudaMemcpy(pivots.data(), panels.pivots(), n * sizeof(int), cudaMemcpyDeviceToHost);
    cudaMemcpy(ours, a, count * sizeof(T), cudaMemcpyDeviceToDevice);

    cusolverDnHandle_t solver;
    cusolverDnParams_t params;
    cusolverDnCreate(&solver);
    cusolverDnCreateParams(&params);
    size_t device_bytes = 0, host_bytes = 0;
    cusolverDnXgetrf_bufferSize(solver, params, m, n, type, a, m, type, &device_bytes, &host_bytes);
    void* workspace = nullptr;
    int64_t* their_pivots = nullptr;
    unsigned long long* largest = nullptr;
    int* info = nullptr;
    Check(cudaMalloc(&workspace, device_bytes + 1) == cudaSuccess, "cudaMalloc");
    cudaMalloc(&their_pivots, n * sizeof(int64_t));
    cudaMalloc(&info, sizeof(int));
    cudaMalloc(&largest, sizeof(*largest));
    cudaMemset(largest, 0, sizeof(*largest));
    std::vector<char> host_workspace(host_bytes + 1);
    const double theirs = Microseconds<std::function<void()>>(prepare, [&] {
      cusolverDnXgetrf(solver, params, m, n, type, a, m, their_pivots, type, workspace,
                       device_bytes, host_workspace.data(), host_bytes, info);
    });
    std::vector<int64_t> expected(n);
    cudaMemcpy(expected.data(), their_pivots, n * sizeof(int64_t), cudaMemcpyDeviceToHost);
    int same = 0;
    for (int i = 0; i < n; ++i) same += pivots[i] + 1 == expected[i];
    Difference<<<1024, 256>>>(count, a, ours, largest);
    double difference = 0;
    cudaMemcpy(&difference, largest, sizeof(difference), cudaMemcpyDeviceToHost);
    std::printf(
        "%s %7d rows: %2d columns %5.2f (without clusters %5.2f), 1024 columns %5.2f (leaves "
        "%5.2f, steps %5.2f, products "
        "%5.2f), cuSOLVER %5.2f us a column; %d of 1024 pivots the same, difference %.1e\n",
        dtype, m, columns, leaf / columns, apart / columns, wide / n, leaves / n, steps / n,
        products / n, theirs / n, same, difference);
    std::fflush(stdout);
    cusolverDnDestroyParams(params);
    cusolverDnDestroy(solver);
    for (void* memory : {static_cast<void*>(original), static_cast<void*>(a),
                         static_cast<void*>(ours), workspace, static_cast<void*>(their_pivots),
                         static_cast<void*>(largest), static_cast<void*>(info)}) {
      cudaFree(memory);
    }
  }
}

// What numbers of the GPU are on the host.
template <typename T>
struct HostOf {
  using type = T;
};
template <>
struct HostOf<cuComplex> {
  using type = std::complex<float>;
};
template <>
struct HostOf<cuDoubleComplex> {
  using type = std::complex<double>;
};

template <typename H>
struct Factored {
  std::vector<H> a;
  std::vector<int> pivots;
  int info = jaxmg::kNoInfo;
};

template <typename H>
double Size(H x) {
  const double size = std::abs(std::real(x)) + std::abs(std::imag(x));
  return size == size ? size : std::numeric_limits<double>::infinity();
}

// LAPACK's getf2, plainly.
template <typename H>
Factored<H> ByHost(int m, int n, std::vector<H> a) {
  Factored<H> result;
  for (int j = 0; j < std::min(m, n); ++j) {
    int pivot = j;
    for (int i = j + 1; i < m; ++i) {
      if (Size(a[i + size_t(j) * m]) > Size(a[pivot + size_t(j) * m])) pivot = i;
    }
    result.pivots.push_back(pivot);
    for (int c = 0; c < n; ++c) std::swap(a[j + size_t(c) * m], a[pivot + size_t(c) * m]);
    const H p = a[j + size_t(j) * m];
    if (p == H(0)) {
      result.info = std::min(result.info, j + 1);
      continue;
    }
    if (!std::isfinite(std::real(p)) || !std::isfinite(std::imag(p))) {
      result.info = std::min(result.info, jaxmg::kNotFinite);
    }
    for (int i = j + 1; i < m; ++i) a[i + size_t(j) * m] /= p;
    for (int c = j + 1; c < n; ++c) {
      const H u = a[j + size_t(c) * m];
      for (int i = j + 1; i < m; ++i) a[i + size_t(c) * m] -= a[i + size_t(j) * m] * u;
    }
  }
  result.a = std::move(a);
  return result;
}

// Returns the number of faults.
template <typename T>
int CheckPanel(const char* dtype, const char* kind, int m, int n, int width, bool clusters,
               const std::vector<typename HostOf<T>::type>& original) {
  using H = typename HostOf<T>::type;
  T* a = nullptr;
  const size_t bytes = original.size() * sizeof(T);
  Check(cudaMalloc(&a, bytes) == cudaSuccess, "cudaMalloc");
  cudaMemcpy(a, original.data(), bytes, cudaMemcpyHostToDevice);
  Panels<T> panels(std::max(m, n));
  panels.UseClusters(clusters);
  panels.Factor(m, n, a, m, width);
  Factored<H> ours;
  ours.a.resize(original.size());
  ours.pivots.resize(std::min(m, n));
  Check(cudaMemcpy(ours.a.data(), a, bytes, cudaMemcpyDeviceToHost) == cudaSuccess, "panel");
  cudaMemcpy(ours.pivots.data(), panels.pivots(), sizeof(int) * ours.pivots.size(),
             cudaMemcpyDeviceToHost);
  ours.info = panels.info();
  cudaFree(a);
  const Factored<H> expected = ByHost<H>(m, n, original);
  const double eps = std::numeric_limits<decltype(std::real(H()))>::epsilon();
  if (ours.info != expected.info) {
    std::printf("%s %s %d x %d, width %d: info %d, not %d\n", dtype, kind, m, n, width, ours.info,
                expected.info);
    return 1;
  }
  if (ours.info == jaxmg::kNotFinite) return 0;
  double difference = 0, largest = 1;
  for (const H& x : original) largest = std::max(largest, Size(x));
  for (size_t i = 0; i < original.size(); ++i) {
    const double here = std::abs(ours.a[i] - expected.a[i]) / largest;
    difference = here <= difference ? difference : here;
  }
  if (ours.pivots != expected.pivots || !(difference < 1e4 * std::max(8, n) * eps)) {
    int first = 0;
    while (first < std::min(m, n) && ours.pivots[first] == expected.pivots[first]) ++first;
    std::printf("%s %s %d x %d, width %d: pivots differ from %d on, difference %.1e\n", dtype, kind,
                m, n, width, first, difference);
    return 1;
  }
  return 0;
}

template <typename T>
int CheckPanels(const char* dtype) {
  using H = typename HostOf<T>::type;
  using R = decltype(std::real(H()));
  std::mt19937_64 random(1);
  std::normal_distribution<R> normal;
  auto number = [&] {
    if constexpr (std::is_same_v<H, R>)
      return H(normal(random));
    else
      return H(normal(random), normal(random));
  };
  int faults = 0, checks = 0;
  auto check = [&](const char* kind, int m, int n, int width, const std::vector<H>& a) {
    for (bool clusters : {false, true}) {
      if (clusters && m <= 256) continue;
      ++checks;
      faults += CheckPanel<T>(dtype, kind, m, n, width, clusters, a);
    }
  };
  std::vector<std::pair<int, int>> shapes;
  for (int n = 1; n <= 40; ++n) shapes.push_back({n, n});
  for (int n : {1, 2, 7, 31, 32, 33, 64, 65, 100, 200}) {
    for (int m : {1, 5, 33, 100, 255, 256, 257, 511, 512, 513, 1024, 1025, 2049, 5000}) {
      shapes.push_back({m, n});
    }
  }
  shapes.insert(shapes.end(), {{40000, 32}, {3000, 600}, {1100, 1100}, {1025, 1200}});
  if (few) shapes = {{5, 9}, {40, 40}, {1100, 70}, {3000, 40}};
  for (const auto& [m, n] : shapes) {
    std::vector<H> a(size_t(m) * n);
    for (H& x : a) x = number();
    for (int width : {32, 16, 8, 4}) {
      if (n > 65 && width != 32) continue;
      if (size_t(m) > 132 * 256 * (512 / sizeof(T)) / width) continue;
      check("random", m, n, width, a);
    }
  }
  if (few) return faults;
  const R tiny = sizeof(R) == 8 ? R(1e-312) : R(1e-41), huge = sizeof(R) == 8 ? R(1e306) : R(1e36);
  for (int m : {40, 700, 3000}) {
    // Ratios are powers of two, so that what is equal stays so.
    std::vector<H> few(size_t(m) * 4);
    for (H& x : few) x = random() % 3 == 0 ? -1 : 1;
    check("equal sizes", m, 4, 32, few);
    for (H& x : few) x = number() * tiny;
    check("tiny", m, 1, 32, std::vector<H>(few.begin(), few.begin() + m));
    for (int n : {32, 50, 128}) {
      std::vector<H> a(size_t(m) * n);
      for (size_t i = 0; i < a.size(); ++i) a[i] = i % m % 2 == 1 ? a[i - 1] : number();
      if (m % 2 == 0 && m > 2 * n) check("rows twice", m, n, 32, a);
      for (H& x : a) x = number();
      for (int i = 0; i < m; ++i) a[i + size_t(5) * m] = 0;
      check("a column of zeros", m, n, 32, a);
      for (H& x : a) x = 0;
      check("zeros", m, n, 32, a);
      for (R bad : {std::numeric_limits<R>::quiet_NaN(), std::numeric_limits<R>::infinity()}) {
        for (H& x : a) x = number();
        a[random() % (size_t(m) * std::min(m, n) / 2)] = bad;
        check("not finite", m, n, 32, a);
      }
      for (H& x : a) x = number() * huge;
      check("huge", m, n, 32, a);
    }
  }
  std::printf("%s: %d faults in %d panels\n", dtype, faults, checks);
  std::fflush(stdout);
  return faults;
}

}  // namespace

int main(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    use_clusters = use_clusters && std::strcmp(arguments[i], "apart") != 0;
    few = few || std::strcmp(arguments[i], "few") == 0;
  }
  if (few) return CheckPanels<double>("float64") + CheckPanels<cuComplex>("complex64");
  const int faults = CheckPanels<float>("float32") + CheckPanels<double>("float64") +
                     CheckPanels<cuComplex>("complex64") +
                     CheckPanels<cuDoubleComplex>("complex128");
  Run<double>("float64", CUDA_R_64F);
  Run<float>("float32", CUDA_R_32F);
  return faults;
}
