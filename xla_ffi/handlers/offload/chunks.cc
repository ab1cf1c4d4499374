#include "xla_ffi/handlers/offload/chunks.h"

#include <complex>
#include <limits>
#include <utility>

#include "xla_ffi/device/tunings.h"
#include "xla_ffi/engine/offload/open_objects.h"

namespace jaxmg {
namespace {

// Never destroyed: calls may run while the process exits.
OpenObjects<HostChunks>& Chunks() {
  static auto* chunks = new OpenObjects<HostChunks>("matrix with chunks");
  return *chunks;
}

// Whether a piece is within its buffer. The sizes are below 2^62.
bool IsInside(const HostPiece& piece, const HostChunks& chunks) {
  if (piece.buffer < 0 || piece.buffer >= kHostRowBuffers) return false;
  const size_t bytes = chunks.bytes[piece.buffer], height = piece.source.height;
  const size_t columns = piece.source.columns;
  if (columns == 0 || height == 0) return true;
  if (piece.source.data == nullptr || piece.source.pitch < height || piece.pitch < height) {
    return false;
  }
  if (piece.offset > bytes || height > bytes - piece.offset) return false;
  return columns - 1 <= (bytes - piece.offset - height) / piece.pitch;
}

template <typename T>
int64_t BytesOf(const TallSizes& sizes, const Tuning& tuning) {
  return static_cast<int64_t>(TallQrSpace<T>(sizes, Ranks{1, 0, tuning}).bytes());
}

}  // namespace

Status OpenHostChunks(HostChunks chunks, int32_t* id) {
  for (const auto& chunk : chunks.chunks) {
    for (const HostPiece& piece : chunk) {
      if (IsInside(piece, chunks)) continue;
      return Error(Code::kInvalidArgument, "host_open_chunks: a piece of ", piece.source.columns,
                   " times ", piece.source.height, " bytes at ", piece.offset,
                   " isn't inside buffer ", piece.buffer);
    }
  }
  *id = Chunks().Open(std::move(chunks));
  return Status::Ok();
}

Status CloseHostChunks(int32_t id) { return Chunks().Close(id); }

Status FindOpenHostChunks(int32_t id, std::shared_ptr<const HostChunks>* chunks) {
  return Chunks().Find(id, chunks);
}

Status HostRowsBytes(const std::string& dtype, const TallSizes& sizes, const std::string& platform,
                     int64_t* bytes) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const bool valid = sizes.n >= 1 && sizes.n <= kMost && sizes.block >= sizes.n &&
                     sizes.block <= kMost && sizes.nrhs >= 0 && sizes.nrhs <= kMost &&
                     (platform == "cpu" || platform == "gpu");
  if (!valid) {
    return Error(Code::kInvalidArgument,
                 "host_rows_bytes: invalid sizes or platform: n = ", sizes.n,
                 ", rows = ", sizes.block, ", nrhs = ", sizes.nrhs, ", '", platform, "'");
  }
  const Tuning tuning = platform == "gpu" ? CudaTuning() : HostTuning();
  if (dtype == "float32") {
    *bytes = BytesOf<float>(sizes, tuning);
  } else if (dtype == "float64") {
    *bytes = BytesOf<double>(sizes, tuning);
  } else if (dtype == "complex64") {
    *bytes = BytesOf<std::complex<float>>(sizes, tuning);
  } else if (dtype == "complex128") {
    *bytes = BytesOf<std::complex<double>>(sizes, tuning);
  } else {
    return Error(Code::kInvalidArgument, "host_rows_bytes: unsupported dtype '", dtype, "'");
  }
  return Status::Ok();
}

}  // namespace jaxmg
