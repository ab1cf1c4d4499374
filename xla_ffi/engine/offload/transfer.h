// Copies between a matrix in host memory and a rank's device.
#ifndef JAXMG_XLA_FFI_ENGINE_OFFLOAD_TRANSFER_H_
#define JAXMG_XLA_FFI_ENGINE_OFFLOAD_TRANSFER_H_

#include <cstdint>
#include <memory>
#include <sstream>
#include <string>

#include "xla_ffi/engine/core/flow.h"
#include "xla_ffi/engine/core/host_copy.h"
#include "xla_ffi/engine/offload/host_matrix.h"
#include "xla_ffi/engine/offload/host_ring.h"

namespace jaxmg {

// Rows [row, row + rows) of columns [column, column + columns) of a block column, counted from its
// diagonal, or from its first row if it is whole.
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

// A step that copies pageable memory through a ring, unless that is null or has no memory. A store
// is then complete after HostRing::Drain.
template <typename T>
class RingStep : public Step<T> {
 public:
  RingStep(HostRing* ring, Flow& flow, Stream stream, const char* name, int64_t index)
      : Step<T>(flow, stream, name, index), ring_(ring) {}

  void Load(const HostBlock& from, const HostPart& part, T* target, int64_t ld) {
    if (!Takes(from)) return jaxmg::Load(*this, from, part, target, ld);
    this->Do([&] {
      return ring_->Load(this->stream(), Block(target, ld, part.rows, part.columns),
                         InHostMemory<T>(from, part));
    });
  }

  void Store(const HostBlock& to, const HostPart& part, const T* source, int64_t ld) {
    if (!Takes(to)) return StoreToHost(*this, to, part, source, ld);
    this->Do([&] {
      return ring_->Store(this->stream(), InHostMemory<T>(to, part),
                          Block(source, ld, part.rows, part.columns));
    });
  }

 private:
  bool Takes(const HostBlock& block) const {
    return ring_ != nullptr && ring_->works() && block.pageable;
  }

  HostRing* const ring_;
};

// Reads an operand `call` from device memory, and waits for it.
template <typename Call>
Status ReadOperand(Device& device, const int32_t* source, Call* call) {
  std::unique_ptr<Buffer> memory;
  JAXMG_RETURN_IF_ERROR(device.AllocateOnHost(sizeof(Call), &memory));
  constexpr int64_t kWords = sizeof(Call) / sizeof(int32_t);
  JAXMG_RETURN_IF_ERROR(CopyToHost(device, Block(memory->as<int32_t>(), kWords, kWords, 1),
                                   Block(source, kWords, kWords, 1)));
  *call = *memory->as<Call>();
  return Status::Ok();
}

// Prepares a call: reads the operand `call`, waits for it, and finds its matrix.
inline Status ReadHostCall(Device& device, const int32_t* source, const FindHostMatrix& find,
                           HostCall* call, std::shared_ptr<const HostMatrix>* matrix) {
  JAXMG_RETURN_IF_ERROR(ReadOperand(device, source, call));
  JAXMG_RETURN_IF_ERROR(device.ReserveTransfers());
  JAXMG_RETURN_IF_ERROR(find(call->id, matrix));
  if (call->block < 0 || call->block >= (*matrix)->shape.blocks()) {
    return Error(Code::kInvalidArgument, "a matrix in host memory has ", (*matrix)->shape.blocks(),
                 " block columns, but the call is on ", call->block);
  }
  return Status::Ok();
}

// Describes a matrix in host memory for an error.
inline std::string DescribeHostMatrix(const std::string& dtype, const HostShape& shape) {
  std::ostringstream text;
  text << dtype << ", order " << shape.n << ", " << shape.nrhs << " right-hand sides, "
       << (shape.whole ? "whole " : "") << "block columns of " << shape.width << ", tiles of "
       << shape.tile << ", " << shape.ranks << " ranks" << (shape.spread ? " of processes" : "");
  return text.str();
}

// Returns an error unless a matrix has the sizes and the dtype of a call.
inline Status CheckHostMatrix(const char* name, const HostMatrix& host, const HostShape& shape,
                              const char* dtype, bool with_right_hand_sides) {
  const HostShape& own = host.shape;
  if (host.dtype == dtype && own.n == shape.n && own.width == shape.width &&
      own.tile == shape.tile && own.ranks == shape.ranks && own.whole == shape.whole &&
      own.spread == shape.spread && (own.nrhs == shape.nrhs || !with_right_hand_sides)) {
    return Status::Ok();
  }
  return Error(Code::kInvalidArgument, name, ": the matrix that was opened (",
               DescribeHostMatrix(host.dtype, own), ") isn't that of the call (",
               DescribeHostMatrix(dtype, shape), ")");
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_OFFLOAD_TRANSFER_H_
