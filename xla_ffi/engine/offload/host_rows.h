// host_rows: R and Q^H b of a chunk of a tall matrix's rows, while the next chunk is loaded from
// host memory.
//
// A matrix with far more rows than columns passes through the devices once, each chunk stacked
// below the R of those before it; the caller does that. A device works by itself.
#ifndef JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_ROWS_H_
#define JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_ROWS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "xla_ffi/engine/core/frame.h"
#include "xla_ffi/engine/qr/tall/tall_qr.h"

namespace jaxmg {

// The buffers of a chunk: of A's rows, and of the right-hand sides'.
inline constexpr int kHostRowBuffers = 2;

// A block of bytes in host memory, and its place in a buffer.
struct HostPiece {
  int buffer;
  size_t offset, pitch;  // in the buffer
  Bytes2D source;
};

// The chunks of a matrix, and the bytes of their buffers. Every piece is within these.
struct HostChunks {
  std::array<size_t, kHostRowBuffers> bytes;
  std::vector<std::vector<HostPiece>> chunks;
};

// The elements of the operand `call`. `next`: the chunk to load; negative: none. `empty`: whether
// all rows of the operand are zeros, so that nothing is computed and the results are zeros.
struct HostRowsCall {
  int32_t id, next, empty, reserved;
};

using FindHostChunks = std::function<Status(int32_t id, std::shared_ptr<const HostChunks>* chunks)>;

template <typename T>
struct HostRowsOperand {
  TallQrProblem<T> problem;
  const int32_t* call;  // HostRowsCall, in device memory
  // The buffers to load to, their elements, and what is copied to them first.
  std::array<T*, kHostRowBuffers> next;
  std::array<int64_t, kHostRowBuffers> elements;
  std::array<const T*, kHostRowBuffers> source;
  FindHostChunks find;
};

// A routine (routines.h) of one rank. Rows of a buffer that no piece covers keep their content.
template <typename T>
Status HostRowsRoutine(const RankContext& context, const HostRowsOperand<T>& operand);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_OFFLOAD_HOST_ROWS_H_
