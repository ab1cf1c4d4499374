// Copies between a matrix in host memory and a rank's device.
#ifndef JAXMG_XLA_FFI_ENGINE_OFFLOAD_TRANSFER_H_
#define JAXMG_XLA_FFI_ENGINE_OFFLOAD_TRANSFER_H_

#include <cstdint>
#include <memory>

#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/host_copy.h"
#include "xla_ffi/engine/offload/host_matrix.h"

namespace jaxmg {

// Rows [row, row + rows) of columns [column, column + columns) of a block column, counted from its
// diagonal.
struct HostPart {
  int64_t row, rows, column, columns;
};

template <typename T>
Bytes2D InHostMemory(const HostBlock& block, const HostPart& part) {
  return Block(static_cast<T*>(block.data) + part.column * block.ld + part.row, block.ld, part.rows,
               part.columns);
}

template <typename T>
void Load(Step<T>& on, const HostBlock& from, const HostPart& part, T* target, int64_t ld) {
  on.Copy(Block(target, ld, part.rows, part.columns), InHostMemory<T>(from, part));
}

template <typename T>
void StoreToHost(Step<T>& on, const HostBlock& to, const HostPart& part, const T* source,
                 int64_t ld) {
  on.Copy(InHostMemory<T>(to, part), Block(source, ld, part.rows, part.columns));
}

// Prepares a call: reads the operand `call`, waits for it, and finds its matrix.
inline Status ReadHostCall(Device& device, const int32_t* source, const FindHostMatrix& find,
                           HostCall* call, std::shared_ptr<const HostMatrix>* matrix) {
  std::unique_ptr<Buffer> memory;
  JAXMG_RETURN_IF_ERROR(device.AllocateOnHost(sizeof(HostCall), &memory));
  constexpr int64_t kWords = sizeof(HostCall) / sizeof(int32_t);
  JAXMG_RETURN_IF_ERROR(CopyToHost(device, Block(memory->as<int32_t>(), kWords, kWords, 1),
                                   Block(source, kWords, kWords, 1)));
  *call = *memory->as<HostCall>();
  JAXMG_RETURN_IF_ERROR(device.ReserveTransfers());
  JAXMG_RETURN_IF_ERROR(find(call->id, matrix));
  if (call->block < 0 || call->block >= (*matrix)->shape.blocks()) {
    return Error(Code::kInvalidArgument, "a matrix in host memory has ", (*matrix)->shape.blocks(),
                 " block columns, but the call is on ", call->block);
  }
  return Status::Ok();
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_OFFLOAD_TRANSFER_H_
