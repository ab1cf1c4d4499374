// Pseudorandom numbers that perturb a matrix, shared by the host and kernels. NVRTC compiles this
// header without the standard library.
#ifndef JAXMG_XLA_FFI_DEVICE_PRODUCTS_NOISE_H_
#define JAXMG_XLA_FFI_DEVICE_PRODUCTS_NOISE_H_

#ifdef __CUDACC__
#define JAXMG_NOISE_DEVICE __device__ inline
#else
#define JAXMG_NOISE_DEVICE inline
#endif

namespace jaxmg {

// Returns a number between -1 and 1: a hash of row and column.
JAXMG_NOISE_DEVICE double NoiseAt(long long row, long long column) {
  unsigned word =
      static_cast<unsigned>(row) * 0x9E3779B1u + static_cast<unsigned>(column) * 0x85EBCA77u + 1u;
  word = (word ^ (word >> 16)) * 0x7FEB352Du;
  word = (word ^ (word >> 15)) * 0x846CA68Bu;
  word ^= word >> 16;
  return word / 2147483648.0 - 1;
}

}  // namespace jaxmg

#undef JAXMG_NOISE_DEVICE

#endif  // JAXMG_XLA_FFI_DEVICE_PRODUCTS_NOISE_H_
