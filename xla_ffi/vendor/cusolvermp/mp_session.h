// cuSOLVERMp's handle, its grid and the NCCL communicator below: made by all ranks of a mesh
// together, which takes seconds, and kept for their next call.
#ifndef JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_SESSION_H_
#define JAXMG_XLA_FFI_VENDOR_CUSOLVERMP_MP_SESSION_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "xla_ffi/device/cuda/device.h"
#include "xla_ffi/device/cuda/library.h"
#include "xla_ffi/vendor/cusolvermp/mp_layout.h"

namespace jaxmg::mp {

// A matrix in tiles, of which this rank has some.
class Descriptor {
 public:
  ~Descriptor();
  Status Set(cusolverMpGrid_t grid, const Dealt& dealt, int rank, cudaDataType type);
  cusolverMpMatrixDescriptor_t get() const { return descriptor_; }

 private:
  cusolverMpMatrixDescriptor_t descriptor_ = nullptr;
};

// The library on some GPUs, one of each process; one call's own while this lives.
class Session {
 public:
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Every rank calls it; all get the same Status.
  static Status Start(const RankContext& context, const Grid& grid,
                      std::unique_ptr<Session>* session);

  // Does `call`, which is the library's and may wait for other ranks, on the session's stream, and
  // waits for what it has enqueued. All work that it needs must be done. Where another rank gives
  // up, or its process is lost, what waits on the GPU comes to its end, to no good, and the call's
  // result is of no use; the session isn't kept then. Every rank calls it; all get the same Status.
  Status Run(const std::function<Status()>& call);

  // Waits for what has been enqueued; within `call`.
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
