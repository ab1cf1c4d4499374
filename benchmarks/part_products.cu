// Products of float32 matrices that are made of three products of float16 parts, by the kernel of
// xla_ffi/device/cuda/products/part_products.cuh and by cuBLAS: errors and times.
//
//   nvcc -O2 -std=c++17 -I. -gencode arch=compute_90a,code=sm_90a -o part_products \
//     benchmarks/part_products.cu -lcublas -lcuda && ./part_products
//
// Errors are in units u = 2^-24 of the product's size, against double precision: the error, the
// part of it that is a multiple of the product (`bias`), and the rest.
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "xla_ffi/device/cuda/products/part_products.cuh"

using namespace jaxmg;
using namespace jaxmg::kernels;
using Part = unsigned short;

__device__ double Uniform(size_t i, int seed) {
  unsigned long long h = i * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
  h ^= h >> 31, h *= 0xBF58476D1CE4E5B9ull;
  h ^= h >> 29, h *= 0x94D049BB133111EBull;
  return ((h ^ h >> 32) >> 11) * 0x1p-53;
}

__global__ void Fill(float* a, double* wide, size_t count, int seed, int kind) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count;
       i += size_t(gridDim.x) * blockDim.x) {
    const double u = Uniform(2 * i, seed), v = Uniform(2 * i + 1, seed);
    a[i] = kind == 0   ? sqrt(-2 * log(u + 1e-300)) * cos(6.283185307179586 * v)
           : kind == 1 ? u
                       : 0.7 + 0.01 * u;
    if (wide != nullptr) wide[i] = a[i];
  }
}

// 16 columns at a time, h1 h0, h0 h1, h0 h0; or, for cuBLAS in pieces, `group` columns at a time.
__global__ void Split(const float* a, size_t rows, size_t depth, Part* parts, size_t ld, bool left,
                      size_t group) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < rows * depth;
       i += size_t(gridDim.x) * blockDim.x) {
    const size_t row = i % rows, column = i / rows;
    const float x = a[i] * kHalfScale;
    const __half first = __float2half_rn(x);
    const __half second = __float2half_rn((x - __half2float(first)) * kHalfShift);
    const __half less = __float2half_rn(__half2float(first) / kHalfShift);
    const size_t d = column / group * 3 * group + column % group;
    parts[d * ld + row] = __half_as_ushort(left ? second : less);
    parts[(d + group) * ld + row] = __half_as_ushort(left ? less : second);
    parts[(d + 2 * group) * ld + row] = __half_as_ushort(first);
  }
}

__global__ void AddErrors(const float* c, size_t ldc, const double* exact, size_t m, size_t n,
                          double* sums) {
  double squares = 0, along = 0, size = 0;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < m * n;
       i += size_t(gridDim.x) * blockDim.x) {
    const double error = c[i / m * ldc + i % m] - exact[i];
    squares += error * error, along += error * exact[i], size += exact[i] * exact[i];
  }
  atomicAdd(sums, squares), atomicAdd(sums + 1, along), atomicAdd(sums + 2, size);
}

extern "C" __global__ void __launch_bounds__(kProductThreads, 1)
    Product(const __grid_constant__ PartFactors factors, int first_a, int first_b, int m, int n,
            int chunks, float alpha, float beta, float* c, Index ldc) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  PartProduct<true>(factors, first_a, first_b, m, n, chunks, alpha, beta, c, ldc).Run();
#endif
}

#define CHECK(call)                                                                    \
  do {                                                                                 \
    const int code = static_cast<int>(call);                                           \
    if (code != 0) std::printf("error %d in line %d\n", code, __LINE__), std::exit(1); \
  } while (false)

int Describe(TensorMap* map, const Part* data, long rows, long depth, long ld) {
  const auto address = reinterpret_cast<unsigned long long>(data);
  const int first = address % 16 / 2;
  const cuuint64_t sizes[] = {cuuint64_t(rows + first), cuuint64_t(depth)},
                   pitch[] = {cuuint64_t(2 * ld)};
  const cuuint32_t box[] = {64, kChunkDepth}, strides[] = {1, 1};
  CHECK(cuTensorMapEncodeTiled(reinterpret_cast<CUtensorMap*>(map), CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                               2, reinterpret_cast<void*>(address - address % 16), sizes, pitch,
                               box, strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return first;
}

void Multiply(long m, long n, long depth, float alpha, const Part* a, long lda, const Part* b,
              long ldb, float beta, float* c, long ldc) {
  PartFactors factors;
  const int first_a = Describe(&factors.a, a, m, depth, lda);
  const int first_b = Describe(&factors.b, b, n, depth, ldb);
  static bool set = false;
  if (!set) {
    CHECK(
        cudaFuncSetAttribute(Product, cudaFuncAttributeMaxDynamicSharedMemorySize, kProductShared));
    set = true;
  }
  const long tiles = (first_a + m + kProductTileM - 1) / kProductTileM *
                     ((first_b + n + kProductTileN - 1) / kProductTileN);
  Product<<<std::min(tiles, 132l), kProductThreads, kProductShared>>>(
      factors, first_a, first_b, m, n, depth / kChunkDepth, alpha * kSumFactor, beta, c, ldc);
  CHECK(cudaGetLastError());
}

template <typename T>
T* Allocate(size_t count) {
  void* data = nullptr;
  CHECK(cudaMalloc(&data, count * sizeof(T)));
  return static_cast<T*>(data);
}

template <typename F>
double Time(F f) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  f();
  std::vector<float> times(7);
  for (float& time : times) {
    cudaEventRecord(begin);
    f();
    cudaEventRecord(end);
    CHECK(cudaEventSynchronize(end));
    cudaEventElapsedTime(&time, begin, end);
  }
  std::sort(times.begin(), times.end());
  return times[3];
}

int main() {
  cublasHandle_t handle;
  cublasCreate(&handle);
  double* sums = Allocate<double>(3);
  const float one = 1, zero = 0, scale = 1 / (kHalfScale * kHalfScale);
  const double wide_one = 1, wide_zero = 0;
  // Errors. Orders that nothing divides, first elements off 16 bytes.
  for (int kind = 0; kind < 3; ++kind) {
    for (long depth : {16l, 256l, 1024l, 2048l, 4096l}) {
      const long m = 2113, n = 1801, ld = 2128, ldc = 2117, offset = 5;
      float *a = Allocate<float>(m * depth), *b = Allocate<float>(n * depth),
            *c = Allocate<float>(ldc * n + 1);
      double *wide_a = Allocate<double>(m * depth), *wide_b = Allocate<double>(n * depth),
             *exact = Allocate<double>(m * n);
      Part *parts_a = Allocate<Part>(3 * depth * ld), *parts_b = Allocate<Part>(3 * depth * ld);
      Fill<<<4096, 256>>>(a, wide_a, m * depth, 1, kind);
      Fill<<<4096, 256>>>(b, wide_b, n * depth, 2, kind);
      CHECK(cublasDgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, m, n, depth, &wide_one, wide_a, m, wide_b,
                        n, &wide_zero, exact, m));
      auto report = [&](const char* how) {
        CHECK(cudaDeviceSynchronize());
        double sum[3], u = std::ldexp(1, -24);
        cudaMemset(sums, 0, sizeof(sum));
        AddErrors<<<1024, 256>>>(c + 1, ldc, exact, m, n, sums);
        cudaMemcpy(sum, sums, sizeof(sum), cudaMemcpyDeviceToHost);
        const double bias = sum[1] / sum[2], rest = std::max(0.0, sum[0] - bias * sum[1]);
        std::printf("kind %d depth %4ld %-7s error %8.3f u, bias %8.3f u, rest %7.3f u\n", kind,
                    depth, how, std::sqrt(sum[0] / sum[2]) / u, bias / u,
                    std::sqrt(rest / sum[2]) / u);
      };
      cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, m, n, depth, &one, a, m, b, n, &zero, c + 1,
                  ldc);
      report("plain");
      Split<<<4096, 256>>>(a, m, depth, parts_a + offset, ld, true, 16);
      Split<<<4096, 256>>>(b, n, depth, parts_b + 3, ld, false, 16);
      cudaMemset(c, 0xff, (ldc * n + 1) * 4);
      Multiply(m, n, 3 * depth, scale, parts_a + offset, ld, parts_b + 3, ld, 0, c + 1, ldc);
      report("kernel");
      // Halves twice: beta C + alpha A B^T.
      Multiply(m, n, 3 * depth, -2 * scale, parts_a + offset, ld, parts_b + 3, ld, 3, c + 1, ldc);
      report("beta");
      cudaMemset(c, 0, (ldc * n + 1) * 4);
      for (long k = 0; k < depth; k += 512) {
        const long piece = std::min(512l, depth - k);
        CHECK(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_T, m, n, 3 * piece, &scale,
                           parts_a + offset + 3 * k * ld, CUDA_R_16F, ld, parts_b + 3 + 3 * k * ld,
                           CUDA_R_16F, ld, &one, c + 1, CUDA_R_32F, ldc, CUBLAS_COMPUTE_32F,
                           CUBLAS_GEMM_DEFAULT));
      }
      report("cublas");
      for (void* p : {(void*)a, (void*)b, (void*)c, (void*)wide_a, (void*)wide_b, (void*)exact,
                      (void*)parts_a, (void*)parts_b})
        cudaFree(p);
    }
  }
  // Times: the trailing matrix of a factorization of order 20000.
  const long m = 12000, n = 12000, most = 2048, ld = 12032;
  float *a = Allocate<float>(m * most), *b = Allocate<float>(n * most),
        *c = Allocate<float>(20100l * n + 64);
  Part *parts_a = Allocate<Part>(3 * most * ld), *parts_b = Allocate<Part>(3 * most * ld);
  Fill<<<4096, 256>>>(a, nullptr, m * most, 1, 0);
  Fill<<<4096, 256>>>(b, nullptr, n * most, 2, 0);
  Fill<<<4096, 256>>>(c, nullptr, 20100l * n, 3, 0);
  Split<<<4096, 256>>>(a, m, most, parts_a, ld, true, 16);
  Split<<<4096, 256>>>(b, n, most, parts_b, ld, false, 16);
  const float minus = -scale;
  for (auto [mm, nn] :
       {std::pair<long, long>{m, n}, {m, 4096}, {m, 1024}, {1024, 1024}, {4096, 1024}}) {
    for (long depth : {512l, 1024l, 2048l}) {
      for (long ldc : {20000l, 20001l, 20032l}) {
        const double ours =
            Time([&] { Multiply(mm, nn, 3 * depth, -scale, parts_a, ld, parts_b, ld, 1, c, ldc); });
        const double theirs = Time([&] {
          for (long k = 0; k < depth; k += 512) {
            cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_T, mm, nn, 3 * 512, &minus,
                         parts_a + 3 * k * ld, CUDA_R_16F, ld, parts_b + 3 * k * ld, CUDA_R_16F, ld,
                         &one, c, CUDA_R_32F, ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
          }
        });
        const double operations = 6. * mm * nn * depth / 1e9;
        std::printf(
            "%ld x %ld depth %ld ldc %ld: kernel %.3f ms %.0f TFLOP/s, cuBLAS %.3f ms %.0f\n", mm,
            nn, depth, ldc, ours, operations / ours, theirs, operations / theirs);
        std::fflush(stdout);
      }
    }
  }
}
