// Workspace: one allocation of device memory, divided into aligned pieces.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_WORKSPACE_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_WORKSPACE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "xla_ffi/base/status.h"
#include "xla_ffi/device/device.h"

namespace jaxmg {

// Rounds the bytes of a piece up so that the next piece is aligned.
inline size_t Aligned(size_t bytes) {
  constexpr size_t kAlignment = 256;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// A piece of workspace of `elements` elements.
template <typename T>
struct Piece {
  size_t offset = 0;
  int64_t elements = 0;
};

// The layout of one allocation, before the memory is allocated.
class Pieces {
 public:
  template <typename T>
  Piece<T> Reserve(int64_t elements) {
    const size_t offset = bytes_;
    bytes_ += Aligned(std::max<int64_t>(elements, 0) * sizeof(T));
    return {offset, elements};
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

// Memory that belongs to another object.
class BorrowedBuffer : public Buffer {
 public:
  explicit BorrowedBuffer(void* data) : Buffer(data) {}
};

// Reserve all pieces before calling Allocate.
class Workspace : public Pieces {
 public:
  Workspace() = default;
  explicit Workspace(const Pieces& pieces) : Pieces(pieces) {}

  Status Allocate(Device& device) { return device.Allocate(bytes(), &buffer_); }
  // Instead of Allocate: uses memory of at least bytes() bytes.
  void Use(void* memory) { buffer_ = std::make_unique<BorrowedBuffer>(memory); }
  template <typename T>
  T* Get(const Piece<T>& piece) const {
    return reinterpret_cast<T*>(buffer_->as<char>() + piece.offset);
  }

 private:
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_WORKSPACE_H_
