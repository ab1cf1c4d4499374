// The attributes, the optional cache and the checks of calls on a block column in host memory.
#ifndef JAXMG_XLA_FFI_HANDLERS_OFFLOAD_HOST_ATTRIBUTES_H_
#define JAXMG_XLA_FFI_HANDLERS_OFFLOAD_HOST_ATTRIBUTES_H_

#include <initializer_list>

#include "xla_ffi/handlers/call.h"
#include "xla_ffi/handlers/offload/registry.h"

namespace jaxmg {

struct HostAttributes : PrecisionAttributes {
  int64_t nrhs;
  int64_t width;  // of a block column

  template <typename Attributes, typename Visitor>
  static void Visit(Attributes& attributes, Visitor& visit) {
    PrecisionAttributes::Visit(attributes, visit);
    visit("nrhs", attributes.nrhs);
    visit("width", attributes.width);
  }
};

inline HostShape ShapeOf(const HostAttributes& attributes) {
  return {attributes.n,
          attributes.nrhs,
          attributes.width,
          attributes.tile,
          static_cast<int>(attributes.ranks),
          /*whole=*/false,
          attributes.processes.count > 0};
}

inline bool Is(ffi::AnyBuffer buffer, int64_t rows, int64_t columns) {
  const auto shape = buffer.dimensions();
  return shape.size() == 2 && shape[0] == rows && shape[1] == columns;
}

// `data` is the operand with the matrix's dtype.
inline Status CheckHostCall(const char* name, ffi::Buffer<ffi::DataType::S32>& call,
                            ffi::AnyBuffer data, const HostAttributes& attributes) {
  if (attributes.ranks < 1 || attributes.ranks > 1 << 20) {
    return Error(Code::kInvalidArgument, name, ": ranks must be from 1 to 2^20; got ",
                 attributes.ranks);
  }
  JAXMG_RETURN_IF_ERROR(CheckHostShape(name, ShapeOf(attributes)));
  if (call.element_count() * sizeof(int32_t) != sizeof(HostCall)) {
    return Error(Code::kInvalidArgument, name, ": call must have 4 elements");
  }
  JAXMG_RETURN_IF_ERROR(CheckPrecision(name, data, attributes));
  size_t backend = 0;
  return FindBackend(name, kNativeAlone, attributes.backend, &backend);
}

inline Status CheckRightHandSides(const char* name, ffi::AnyBuffer x,
                                  const HostAttributes& attributes) {
  if (Is(x, attributes.n, attributes.nrhs)) return Status::Ok();
  return Error(Code::kInvalidArgument, name, ": x must be (", attributes.n, ", ", attributes.nrhs,
               ")");
}

// Checks the buffers of a block column, of which `data` has the dtype.
inline Status CheckBuffers(const char* name, std::initializer_list<ffi::AnyBuffer> buffers,
                           ffi::AnyBuffer data, const HostShape& shape) {
  for (const ffi::AnyBuffer& buffer : buffers) {
    if (!Is(buffer, shape.rank_columns(), shape.ld()) ||
        buffer.element_type() != data.element_type()) {
      return Error(Code::kInvalidArgument, name, ": buffers must be (", shape.rank_columns(), ", ",
                   shape.ld(), "), of one dtype");
    }
  }
  return Status::Ok();
}

// The last operand, or the last result.
template <typename T>
struct CacheMemory {
  T* data = nullptr;
  int64_t elements = 0;
};

template <typename T>
Status TakeCache(const char* name, ffi::AnyBuffer buffer, ffi::AnyBuffer x, CacheMemory<T>* cache) {
  if (buffer.dimensions().size() != 1 || buffer.element_type() != x.element_type()) {
    return Error(Code::kInvalidArgument, name, ": the cache must have one dimension and x's dtype");
  }
  *cache = {DataOf<T>(buffer), static_cast<int64_t>(buffer.element_count())};
  return Status::Ok();
}

template <typename T>
Status TakeOperandCache(const char* name, const ffi::RemainingArgs& more, ffi::AnyBuffer x,
                        CacheMemory<T>* cache) {
  if (more.size() == 0) return Status::Ok();
  const auto buffer = more.get<ffi::AnyBuffer>(0);
  if (more.size() > 1 || !buffer.has_value()) {
    return Error(Code::kInvalidArgument, name, ": too many operands");
  }
  return TakeCache(name, *buffer, x, cache);
}

template <typename T>
Status TakeResultCache(const char* name, const ffi::RemainingRets& more, ffi::AnyBuffer x,
                       CacheMemory<T>* cache) {
  if (more.size() == 0) return Status::Ok();
  auto buffer = more.get<ffi::AnyBuffer>(0);
  if (more.size() > 1 || !buffer.has_value()) {
    return Error(Code::kInvalidArgument, name, ": too many results");
  }
  return TakeCache(name, **buffer, x, cache);
}

// The operand and the result, which must be of one size.
template <typename T>
Status TakeCaches(const char* name, const ffi::RemainingArgs& more,
                  const ffi::RemainingRets& more_results, ffi::AnyBuffer x, CacheMemory<T>* source,
                  CacheMemory<T>* cache) {
  JAXMG_RETURN_IF_ERROR(TakeOperandCache<T>(name, more, x, source));
  JAXMG_RETURN_IF_ERROR(TakeResultCache<T>(name, more_results, x, cache));
  if (source->elements == cache->elements) return Status::Ok();
  return Error(Code::kInvalidArgument, name, ": the cache has ", source->elements,
               " elements, but its result has ", cache->elements);
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_OFFLOAD_HOST_ATTRIBUTES_H_
