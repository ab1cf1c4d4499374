#include "xla_ffi/vendor/cusolvermg/mg_library.h"

#include <map>
#include <mutex>
#include <utility>

namespace jaxmg::mg {
namespace {

struct Made {
  cusolverMgHandle_t handle;
  cudaLibMgGrid_t grid;
};

// The handles that no call uses.
struct Pool {
  std::mutex mutex;
  std::map<std::vector<int>, std::vector<Made>> idle;
  size_t made = 0;
};

Pool& ThePool() {
  static Pool* pool = new Pool;
  return *pool;
}

}  // namespace

Descriptor::~Descriptor() {
  if (descriptor_ != nullptr) Get<CusolverMg>().cusolverMgDestroyMatrixDesc(descriptor_);
}

Status Descriptor::Set(cudaLibMgGrid_t grid, int64_t rows, int64_t columns, int64_t width,
                       cudaDataType type) {
  JAXMG_CHECK_CUDA(Get<CusolverMg>().cusolverMgCreateMatrixDesc(&descriptor_, rows, columns, rows,
                                                                width, type, grid),
                   "cuSOLVERMg: a matrix of ", rows, " x ", columns, " in tiles of ", width,
                   " columns");
  return Status::Ok();
}

Status Session::Start(const std::vector<int>& ordinals, std::unique_ptr<Session>* session) {
  auto started = std::make_unique<Session>();
  started->ordinals_ = ordinals;
  {
    Pool& pool = ThePool();
    std::lock_guard<std::mutex> lock(pool.mutex);
    std::vector<Made>& idle = pool.idle[started->ordinals_];
    if (!idle.empty()) {
      started->handle_ = idle.back().handle;
      started->grid_ = idle.back().grid;
      idle.pop_back();
      *session = std::move(started);
      return Status::Ok();
    }
  }
  const CusolverMg& library = Get<CusolverMg>();
  const int count = static_cast<int>(ordinals.size());
  JAXMG_CHECK_CUDA(library.cusolverMgCreate(&started->handle_), "cuSOLVERMg");
  JAXMG_CHECK_CUDA(
      library.cusolverMgDeviceSelect(started->handle_, count, started->ordinals_.data()),
      "cuSOLVERMg on ", count, " GPUs");
  JAXMG_CHECK_CUDA(
      library.cusolverMgCreateDeviceGrid(&started->grid_, 1, count, started->ordinals_.data(),
                                         CUDALIBMG_GRID_MAPPING_COL_MAJOR),
      "cuSOLVERMg on ", count, " GPUs");
  {
    Pool& pool = ThePool();
    std::lock_guard<std::mutex> lock(pool.mutex);
    pool.idle[started->ordinals_].reserve(++pool.made);  // so that returning it can't fail
  }
  *session = std::move(started);
  return Status::Ok();
}

Session::~Session() {
  if (grid_ == nullptr) return;  // never started
  Pool& pool = ThePool();
  std::lock_guard<std::mutex> lock(pool.mutex);
  pool.idle[ordinals_].push_back({handle_, grid_});
}

}  // namespace jaxmg::mg
