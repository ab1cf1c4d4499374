// The tall matrices in host memory whose chunks this process's calls may load, by id.
#ifndef JAXMG_XLA_FFI_HANDLERS_OFFLOAD_CHUNKS_H_
#define JAXMG_XLA_FFI_HANDLERS_OFFLOAD_CHUNKS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "xla_ffi/base/status.h"
#include "xla_ffi/engine/offload/host_rows.h"

namespace jaxmg {

// As those of matrices (registry.h). Open checks that all pieces are within their buffers.
Status OpenHostChunks(HostChunks chunks, int32_t* id);
Status CloseHostChunks(int32_t id);
Status FindOpenHostChunks(int32_t id, std::shared_ptr<const HostChunks>* chunks);

// Sets *bytes to the workspace on a device of platform "cpu" or "gpu" for QR of `sizes`.
Status HostRowsBytes(const std::string& dtype, const TallSizes& sizes, const std::string& platform,
                     int64_t* bytes);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_OFFLOAD_CHUNKS_H_
