// What tensor cores cut off a sum of products of parts: errors of a product of float32 matrices
// that is made of six products of bfloat16 parts, or of three of float16 ones, in pieces of some
// depth, against double precision.
//
//   nvcc -O2 -arch=sm_90 -o truncation benchmarks/truncation.cu -lcublas && ./truncation
//
// In units u = 2^-24 of the product's size: the error, the part of it that is a multiple of the
// product (`bias`), and the rest. Entries are normal, or uniform in [0, 1].
#include <cublas_v2.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

using Part = unsigned short;
constexpr long kOrder = 4096, kMostDepth = 4096;

__device__ double Uniform(size_t i, int seed) {
  unsigned long long h = i * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
  h ^= h >> 31, h *= 0xBF58476D1CE4E5B9ull;
  h ^= h >> 29, h *= 0x94D049BB133111EBull;
  return ((h ^ h >> 32) >> 11) * 0x1p-53;
}

__global__ void Fill(float* a, double* wide, size_t count, int seed, bool normal) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count;
       i += size_t(gridDim.x) * blockDim.x) {
    const double u = Uniform(2 * i, seed), v = Uniform(2 * i + 1, seed);
    a[i] = normal ? sqrt(-2 * log(u + 1e-300)) * cos(6.283185307179586 * v) : u;
    wide[i] = a[i];
  }
}

// The parts of a number that are multiplied, in a left or a right factor: see
// xla_ffi/device/products/parts.h.
struct Six {
  static constexpr int kProducts = 6;
  static constexpr cudaDataType kType = CUDA_R_16BF;
  static constexpr float kScale = 1;
  __device__ static void Of(float x, bool left, Part* found) {
    const int of_left[] = {2, 1, 0, 1, 0, 0}, of_right[] = {0, 1, 2, 0, 1, 0};
    Part split[3];
    for (Part& part : split) {
      const unsigned bits = __float_as_uint(x);
      part = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
      x -= __uint_as_float(unsigned(part) << 16);
    }
    for (int b = 0; b < 6; ++b) found[b] = split[left ? of_left[b] : of_right[b]];
  }
};
struct Halves {
  static constexpr int kProducts = 3;
  static constexpr cudaDataType kType = CUDA_R_16F;
  static constexpr float kScale = 4;
  __device__ static void Of(float x, bool left, Part* found) {
    const __half first = __float2half_rn(kScale * x);
    const __half second = __float2half_rn((kScale * x - __half2float(first)) * 64);
    const __half less = __float2half_rn(__half2float(first) / 64);
    found[left ? 0 : 1] = __half_as_ushort(second);
    found[left ? 1 : 0] = __half_as_ushort(less);
    found[2] = __half_as_ushort(first);
  }
};

// Columns piece by piece, each with the parts of all products.
template <typename How>
__global__ void Split(const float* a, Part* parts, size_t rows, size_t depth, bool left,
                      size_t piece) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < rows * depth;
       i += size_t(gridDim.x) * blockDim.x) {
    const size_t row = i % rows, column = i / rows;
    Part found[How::kProducts];
    How::Of(a[i], left, found);
    for (int b = 0; b < How::kProducts; ++b) {
      const size_t target = (column / piece * How::kProducts + b) * piece + column % piece;
      parts[target * rows + row] = found[b];
    }
  }
}

__global__ void AddErrors(const float* c, const double* exact, size_t count, double* sums) {
  double squares = 0, along = 0, size = 0;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count;
       i += size_t(gridDim.x) * blockDim.x) {
    const double error = c[i] - exact[i];
    squares += error * error, along += error * exact[i], size += exact[i] * exact[i];
  }
  atomicAdd(sums, squares), atomicAdd(sums + 1, along), atomicAdd(sums + 2, size);
}

template <typename T>
T* Allocate(size_t count) {
  void* data = nullptr;
  if (cudaMalloc(&data, count * sizeof(T)) != cudaSuccess) std::puts("out of memory");
  return static_cast<T*>(data);
}

int main() {
  constexpr size_t kSize = kOrder * kMostDepth, kEntries = kOrder * kOrder;
  cublasHandle_t handle;
  cublasCreate(&handle);
  float *a = Allocate<float>(kSize), *b = Allocate<float>(kSize), *c = Allocate<float>(kEntries);
  double *wide_a = Allocate<double>(kSize), *wide_b = Allocate<double>(kSize);
  double *exact = Allocate<double>(kEntries), *sums = Allocate<double>(3);
  Part *parts_a = Allocate<Part>(6 * kSize), *parts_b = Allocate<Part>(6 * kSize);
  const float one = 1, zero = 0;
  const double wide_one = 1, wide_zero = 0;
  for (bool normal : {true, false}) {
    for (long depth : {256l, 512l, 1024l, 2048l, 4096l}) {
      Fill<<<4096, 256>>>(a, wide_a, kOrder * depth, 1, normal);
      Fill<<<4096, 256>>>(b, wide_b, kOrder * depth, 2, normal);
      cublasDgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, kOrder, kOrder, depth, &wide_one, wide_a,
                  kOrder, wide_b, kOrder, &wide_zero, exact, kOrder);
      auto report = [&](const char* how, long piece) {
        double sum[3], u = std::ldexp(1, -24);
        cudaMemset(sums, 0, sizeof(sum));
        AddErrors<<<1024, 256>>>(c, exact, kEntries, sums);
        cudaMemcpy(sum, sums, sizeof(sum), cudaMemcpyDeviceToHost);
        const double bias = sum[1] / sum[2], rest = std::max(0.0, sum[0] - bias * sum[1]);
        std::printf(
            "%s depth %4ld %-5s pieces of %4ld: error %7.2f u, bias %7.2f u, rest %6.2f u\n",
            normal ? "normal " : "uniform", depth, how, piece, std::sqrt(sum[0] / sum[2]) / u,
            bias / u, std::sqrt(rest / sum[2]) / u);
      };
      cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, kOrder, kOrder, depth, &one, a, kOrder, b,
                  kOrder, &zero, c, kOrder);
      report("plain", depth);
      for (long piece = 128; piece <= depth; piece *= 2) {
        auto multiply = [&](auto how, const char* name) {
          using How = decltype(how);
          Split<How><<<4096, 256>>>(a, parts_a, kOrder, depth, true, piece);
          Split<How><<<4096, 256>>>(b, parts_b, kOrder, depth, false, piece);
          cudaMemset(c, 0, kEntries * sizeof(float));
          const float scale = 1 / (How::kScale * How::kScale);
          for (long begin = 0; begin < depth; begin += piece) {
            const size_t offset = How::kProducts * begin * kOrder;
            cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_T, kOrder, kOrder, How::kProducts * piece,
                         &scale, parts_a + offset, How::kType, kOrder, parts_b + offset, How::kType,
                         kOrder, &one, c, CUDA_R_32F, kOrder, CUBLAS_COMPUTE_32F,
                         CUBLAS_GEMM_DEFAULT);
          }
          report(name, piece);
        };
        multiply(Six(), "six");
        multiply(Halves(), "three");
      }
    }
  }
}
