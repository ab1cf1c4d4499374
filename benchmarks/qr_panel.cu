// How long the QR of a panel takes on one GPU, by the engine's kernels (panel.cuh and
// register_panel.cuh of xla_ffi/device/cuda) and by cuSOLVER, and how accurate it is.
//
//   nvcc -std=c++17 -O3 -arch=sm_90a -I. -o qr_panel benchmarks/qr_panel.cu -lcusolver
//   ./qr_panel
//
// Prints microseconds a column by the number of rows: with rows in memory, with rows in registers,
// of which each block has so many, and by cuSOLVER's geqrf. Then |A - Q R| / |A| and |Q^H Q - I| in
// units of rounding, of panels that are random, graded, nearly dependent, or have columns of zeros.
#include <cuda_runtime.h>
#include <cusolverDn.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "xla_ffi/device/cuda/qr/panel.cuh"
#include "xla_ffi/device/cuda/qr/register_panel.cuh"

namespace jaxmg::kernels {

template <typename T>
__global__ __launch_bounds__(kPanelThreads, 1) void InMemory(Index m, int n, T* a, Index lda, T* t,
                                                             Index ldt, unsigned* met, T* sums,
                                                             typename RealOf<T>::type* largest) {
  PanelFactor<T, 32>(m, n, a, lda, t, ldt, met, sums, largest).Run();
}
template <typename T>
__global__ __launch_bounds__(kPanelThreads, 1) void InRegisters(Index m, int n, T* a, Index lda,
                                                                T* t, Index ldt, T* numbers) {
  RegisterPanel<T>(m, n, a, lda, t, ldt, numbers).Run();
}

}  // namespace jaxmg::kernels

namespace {

using jaxmg::kernels::Index;

void Check(bool ok, const char* what) {
  if (ok) return;
  std::printf("%s failed: %s\n", what, cudaGetErrorString(cudaGetLastError()));
  std::exit(1);
}

template <typename T>
struct CudaOf;
template <>
struct CudaOf<float> {
  using Type = float;
  static constexpr cudaDataType kValue = CUDA_R_32F;
};
template <>
struct CudaOf<double> {
  using Type = double;
  static constexpr cudaDataType kValue = CUDA_R_64F;
};
template <>
struct CudaOf<std::complex<float>> {
  using Type = cuComplex;
  static constexpr cudaDataType kValue = CUDA_C_32F;
};
template <>
struct CudaOf<std::complex<double>> {
  using Type = cuDoubleComplex;
  static constexpr cudaDataType kValue = CUDA_C_64F;
};
template <typename T>
using Real = decltype(std::real(T()));
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, Real<T>>, double, std::complex<double>>;
double Conj(double x) { return x; }
std::complex<double> Conj(std::complex<double> x) { return std::conj(x); }

enum class Kind { kRandom, kGraded, kNearlyDependent, kZeroColumns, kNan };

template <typename T>
std::vector<T> Numbers(int m, int n, Kind kind) {
  std::mt19937_64 random(m + n);
  std::normal_distribution<double> normal;
  std::vector<T> a(static_cast<size_t>(m) * n);
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < m; ++i) {
      double parts[2] = {normal(random), normal(random)};
      T& x = a[i + static_cast<size_t>(j) * m];
      std::copy_n(parts, sizeof(T) / sizeof(Real<T>), reinterpret_cast<Real<T>*>(&x));
      if (kind == Kind::kGraded) x *= static_cast<Real<T>>(std::pow(10.0, -0.5 * j));
      if (kind == Kind::kZeroColumns && j % 3 == 1) x = 0;
      if (kind == Kind::kNearlyDependent && j > 0) {
        x = a[i] + x * (8 * std::numeric_limits<Real<T>>::epsilon());
      }
    }
  }
  if (kind == Kind::kNan) a[m / 2] = std::numeric_limits<Real<T>>::quiet_NaN();
  return a;
}

template <typename T>
class Panel {
  using C = typename CudaOf<T>::Type;

 public:
  Panel(int m, int n, Kind kind) : m_(m), n_(n), numbers_(Numbers<T>(m, n, kind)) {
    cudaGetDeviceProperties(&device_, 0);
    const size_t bytes = numbers_.size() * sizeof(T);
    for (C** matrix : {&original_, &a_}) {
      Check(cudaMalloc(matrix, bytes) == cudaSuccess, "cudaMalloc");
    }
    Check(cudaMalloc(&t_, n * n * sizeof(T)) == cudaSuccess, "cudaMalloc");
    Check(cudaMalloc(&scratch_, 64 << 20) == cudaSuccess, "cudaMalloc");
    cudaMemcpy(original_, numbers_.data(), bytes, cudaMemcpyHostToDevice);
  }
  ~Panel() {
    for (void* memory : {static_cast<void*>(original_), static_cast<void*>(a_),
                         static_cast<void*>(t_), static_cast<void*>(scratch_)}) {
      cudaFree(memory);
    }
  }

  void Restore() {
    cudaMemcpyAsync(a_, original_, numbers_.size() * sizeof(T), cudaMemcpyDeviceToDevice);
    cudaMemsetAsync(t_, 0xff, n_ * n_ * sizeof(T));
  }

  void InMemory() {
    const int owners = std::clamp(m_ / jaxmg::kPanelRows, 1, device_.multiProcessorCount - 1);
    const int blocks = owners == 1 ? 1 : owners + 1;
    auto* met = reinterpret_cast<unsigned*>(scratch_);
    auto* sums = reinterpret_cast<C*>(scratch_ + 16);
    auto* largest = reinterpret_cast<Real<T>*>(sums + 2 * n_ * (1 + owners));
    cudaMemsetAsync(met, 0, sizeof(unsigned));
    Index m = m_, n = n_;
    void* arguments[] = {&m, &n_, &a_, &m, &t_, &n, &met, &sums, &largest};
    Launch(reinterpret_cast<const void*>(&jaxmg::kernels::InMemory<C>), blocks,
           jaxmg::kPanelThreads, arguments);
  }

  // The most rows that blocks can have in all.
  int MostRows() const {
    return 32 * jaxmg::kLaneRows<sizeof(T)> * (device_.multiProcessorCount - 1);
  }
  int Owners(int rows) const {
    return std::clamp((m_ + rows - 1) / rows, 1, device_.multiProcessorCount - 1);
  }
  void InRegisters(int rows) {
    const int owners = Owners(rows), blocks = owners + 1;
    auto* numbers = reinterpret_cast<C*>(scratch_);
    cudaMemsetAsync(numbers, 0xff, sizeof(C) * std::min(m_, n_) * (n_ + 1) * (owners + 1));
    Index m = m_, n = n_;
    void* arguments[] = {&m, &n_, &a_, &m, &t_, &n, &numbers};
    const int warps = (n_ + jaxmg::kWarpColumns - 1) / jaxmg::kWarpColumns;
    Launch(reinterpret_cast<const void*>(&jaxmg::kernels::InRegisters<C>), blocks, 32 * warps,
           arguments);
  }

  // |A - Q R| by columns and |Q^H Q - I| of the first columns, both in units of rounding.
  void Errors(double* backward, double* orthogonal) {
    using W = Wide<T>;
    const int m = m_, n = n_;
    std::vector<T> a(numbers_.size()), t(n * n);
    cudaMemcpy(a.data(), a_, a.size() * sizeof(T), cudaMemcpyDeviceToHost);
    cudaMemcpy(t.data(), t_, t.size() * sizeof(T), cudaMemcpyDeviceToHost);
    auto v = [&](int i, int j) {
      return i == j ? W(1) : i < j ? W(0) : W(a[i + static_cast<size_t>(j) * m]);
    };
    // Q x, x zero from row n on.
    auto times_q = [&](const std::vector<W>& x) {
      std::vector<W> w(n), u(n), y(x);
      for (int l = 0; l < n; ++l) {
        for (int i = l; i < n; ++i) w[l] += Conj(v(i, l)) * x[i];
      }
      for (int l = 0; l < n; ++l) {
        for (int i = 0; i <= l; ++i) u[i] += W(t[i + l * n]) * w[l];
      }
      y.resize(m);
      for (int l = 0; l < n; ++l) {
        for (int i = l; i < m; ++i) y[i] -= v(i, l) * u[l];
      }
      return y;
    };
    const double eps = std::numeric_limits<Real<T>>::epsilon();
    *backward = *orthogonal = 0;
    std::vector<std::vector<W>> q;
    for (int j = 0; j < n; ++j) {
      std::vector<W> r(n), e(n);
      double norm = 0, difference = 0;
      for (int i = 0; i <= j; ++i) r[i] = W(a[i + static_cast<size_t>(j) * m]);
      const std::vector<W> product = times_q(r);
      for (int i = 0; i < m; ++i) {
        const W x = W(numbers_[i + static_cast<size_t>(j) * m]);
        norm += std::norm(x);
        difference += std::norm(product[i] - x);
      }
      const double error = std::sqrt(difference) / (std::sqrt(norm) + 1e-300) / eps;
      if (!(error <= *backward)) *backward = error;
      e[j] = 1;
      q.push_back(times_q(e));
      for (int l = 0; l <= j; ++l) {
        W sum = l == j ? -1 : 0;
        for (int i = 0; i < m; ++i) sum += Conj(q[l][i]) * q[j][i];
        if (!(std::abs(sum) / eps <= *orthogonal)) *orthogonal = std::abs(sum) / eps;
      }
    }
  }

  double ByCusolver() {
    cusolverDnHandle_t solver;
    cusolverDnParams_t params;
    cusolverDnCreate(&solver);
    cusolverDnCreateParams(&params);
    const cudaDataType type = CudaOf<T>::kValue;
    size_t device_bytes = 0, host_bytes = 0;
    cusolverDnXgeqrf_bufferSize(solver, params, m_, n_, type, a_, m_, type, t_, type, &device_bytes,
                                &host_bytes);
    void* workspace = nullptr;
    int* info = nullptr;
    Check(cudaMalloc(&workspace, device_bytes + 1) == cudaSuccess, "cudaMalloc");
    cudaMalloc(&info, sizeof(int));
    std::vector<char> host_workspace(host_bytes + 1);
    const double time = Microseconds([&] {
      cusolverDnXgeqrf(solver, params, m_, n_, type, a_, m_, type, t_, type, workspace,
                       device_bytes, host_workspace.data(), host_bytes, info);
    });
    cudaFree(workspace);
    cudaFree(info);
    cusolverDnDestroyParams(params);
    cusolverDnDestroy(solver);
    return time;
  }

  // A column.
  template <typename F>
  double Microseconds(const F& work) {
    std::vector<double> times;
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    for (int i = 0; i < 8; ++i) {
      Restore();
      cudaEventRecord(begin);
      work();
      cudaEventRecord(end);
      Check(cudaEventSynchronize(end) == cudaSuccess, "work");
      float milliseconds = 0;
      cudaEventElapsedTime(&milliseconds, begin, end);
      times.push_back(1e3 * milliseconds / n_);
    }
    std::sort(times.begin() + 1, times.end());  // the first one warms up
    return times[4];
  }

 private:
  static void Launch(const void* kernel, int blocks, int threads, void** arguments) {
    Check(cudaLaunchCooperativeKernel(kernel, blocks, threads, arguments, 0, 0) == cudaSuccess,
          "launch");
  }

  const int m_;
  int n_;
  const std::vector<T> numbers_;
  cudaDeviceProp device_;
  C *original_ = nullptr, *a_ = nullptr, *t_ = nullptr;
  char* scratch_ = nullptr;
};

template <typename T>
void Run(const char* dtype, int n) {
  const int most = 32 * jaxmg::kLaneRows<sizeof(T)>;
  std::printf("%s, %d columns: us a column\n%9s%9s", dtype, n, "rows", "memory");
  for (int rows = most; rows >= 64; rows /= 2) std::printf("  by %4d", rows);
  std::printf("%10s\n", "cuSOLVER");
  for (int m : {64, 256, 1024, 2048, 4096, 8192, 16384, 32704, 65472}) {
    Panel<T> panel(m, n, Kind::kRandom);
    std::printf("%9d%9.2f", m, panel.Microseconds([&] { panel.InMemory(); }));
    for (int rows = most; rows >= 64; rows /= 2) {
      if (m > panel.MostRows() || (rows < most && panel.Owners(rows) == panel.Owners(2 * rows))) {
        std::printf("%9s", "");
        continue;
      }
      std::printf("%9.2f", panel.Microseconds([&] { panel.InRegisters(rows); }));
    }
    std::printf("%10.2f\n", panel.ByCusolver());
    std::fflush(stdout);
  }
  const char* kinds[] = {"random", "graded", "nearly dependent", "zero columns", "NaN"};
  for (int kind = 0; kind < 5; ++kind) {
    for (int m : {128, 3001}) {
      Panel<T> panel(m, n, static_cast<Kind>(kind));
      std::printf("%s, %d rows, errors of A and Q in eps:", kinds[kind], m);
      double backward = 0, orthogonal = 0;
      panel.Restore();
      panel.InMemory();
      panel.Errors(&backward, &orthogonal);
      std::printf(" memory %.2f %.2f,", backward, orthogonal);
      panel.Restore();
      panel.InRegisters(m == 128 ? most : 64);
      panel.Errors(&backward, &orthogonal);
      std::printf(" registers %.2f %.2f\n", backward, orthogonal);
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main() {
  Run<double>("float64", 64);
  Run<float>("float32", 64);
  Run<std::complex<float>>("complex64", 64);
  Run<std::complex<double>>("complex128", 48);
}
