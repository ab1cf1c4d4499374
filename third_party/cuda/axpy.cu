// Checks the kernel compiler: a vendor's header, a template, a plain kernel.
#include <cuComplex.h>

template <typename T>
__device__ T Shift(T value, int k) {
  return value + T(k);
}

extern "C" __global__ void axpy_z(cuDoubleComplex a, const cuDoubleComplex* x, cuDoubleComplex* y,
                                  long n) {
  long i = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = cuCadd(y[i], cuCmul(a, x[i]));
}

extern "C" __global__ void shift_f(float* x, int n, int k) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    x[i] = Shift(x[i], k);
  }
}
