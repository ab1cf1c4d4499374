// Session: cuSOLVERMp's handle, its grid and its NCCL communicator. All ranks of a mesh create a
// session collectively, which takes seconds, and reuse it in later calls.
#ifndef JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_SESSION_H_
#define JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_SESSION_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "xla_ffi/device/cuda/device.h"
#include "xla_ffi/device/cuda/runtime/library.h"
#include "xla_ffi/vendor/cusolvermp/mp_layout.h"

namespace jaxmg::mp {

// Describes this rank's tiles of a matrix to the library.
class Descriptor {
 public:
  ~Descriptor();
  Status Set(cusolverMpGrid_t grid, const GridLayout& layout, int rank, cudaDataType type);
  cusolverMpMatrixDescriptor_t get() const { return descriptor_; }

 private:
  cusolverMpMatrixDescriptor_t descriptor_ = nullptr;
};

// The library on a set of GPUs, one per process. Owned by one call during the lifetime of this
// object.
class Session {
 public:
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Collective: every rank calls it and gets the same Status.
  static Status Start(const RankContext& context, const Grid& grid,
                      std::unique_ptr<Session>* session);

  // Runs `call`, which calls the library and may wait for other ranks, on the session's stream.
  // Waits for the work that `call` has enqueued. All work that `call` depends on must be complete.
  // If another rank fails, or its process is lost, work that waits on the GPU is aborted, the
  // results are undefined, and the session is not reused. Collective: every rank calls it and gets
  // the same Status.
  Status Run(const std::function<Status()>& call);

  // Waits for the enqueued work. For use within `call`.
  Status Synchronize() const;

  cusolverMpHandle_t handle() const;
  cusolverMpGrid_t grid() const;

 private:
  struct Made;
  class Watch;
  struct Pool;

  Session(const RankContext& context, std::unique_ptr<Made> made);
  static Pool& ThePool();
  static Status Make(const RankContext& context, const Grid& grid, Made* made);

  const RankContext& context_;
  std::unique_ptr<Made> made_;
  bool sound_ = true;
};

}  // namespace jaxmg::mp

#endif  // JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_SESSION_H_
