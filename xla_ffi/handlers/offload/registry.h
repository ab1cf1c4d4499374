// The matrices in host memory that this process's calls may work on, by id. Python opens a matrix
// before its first call and closes it after the last one.
#ifndef JAXMG_XLA_FFI_HANDLERS_OFFLOAD_REGISTRY_H_
#define JAXMG_XLA_FFI_HANDLERS_OFFLOAD_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "xla_ffi/base/status.h"
#include "xla_ffi/engine/offload/host_matrix.h"

namespace jaxmg {

// Returns an error if the sizes don't fit each other.
Status CheckHostShape(const char* name, const HostShape& shape);

// Open checks the matrix and sets *id to a number that is never used again. Close waits for calls
// that have found the matrix (open_objects.h).
Status OpenHostMatrix(HostMatrix matrix, int32_t* id);
Status CloseHostMatrix(int32_t id);
Status FindOpenHostMatrix(int32_t id, std::shared_ptr<const HostMatrix>* matrix);

struct HostPlanQuery {
  std::string dtype;  // NumPy's name
  int64_t n, nrhs;
  int ranks;
  std::string platform;  // as PlanQuery
  int64_t budget;        // bytes of device memory on each rank
  int64_t width;         // of block columns; 0: the widest
  int64_t products;      // Precision
  bool whole = false;    // whether for LU
};
struct HostPlanAnswer {
  HostShape shape;
  int64_t chunk;
  int64_t bytes;  // on each rank
  int64_t cache;  // elements of the factor that fit beside these (host_cache.h)
};
Status AnswerHostPlan(const HostPlanQuery& query, HostPlanAnswer* answer);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_OFFLOAD_REGISTRY_H_
