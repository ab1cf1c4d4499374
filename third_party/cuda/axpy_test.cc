// The kernels are in the binary as a fatbin, and the vendor's headers of that CUDA compile.
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "cublas_v2.h"
#include "cuda_runtime_api.h"
#include "cusolverMg.h"
#include "nccl.h"

extern "C" const unsigned char FATBIN[];

int main() {
  uint32_t magic;
  std::memcpy(&magic, FATBIN, sizeof(magic));
  std::printf("CUDA %d, fatbin %x\n", CUDART_VERSION, magic);
  return magic == 0xba55ed50 && CUDART_VERSION / 1000 == JAXMG_CUDA ? 0 : 1;
}
