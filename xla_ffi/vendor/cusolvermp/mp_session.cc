#include "xla_ffi/vendor/cusolvermp/mp_session.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace jaxmg::mp {
namespace {

using Clock = std::chrono::steady_clock;

// Earlier versions return wrong eigenvectors without an error.
constexpr int kOldest = 901;
// The NCCL version that the library is built against. Older versions lack functions that it calls.
constexpr int kOldestNccl = 22900;
// The interval at which a rank in a call of the library checks whether another rank has failed.
constexpr std::chrono::milliseconds kLook(20);
// The time limit for creating a communicator after the ranks have agreed to do so.
constexpr std::chrono::seconds kLongestRendezvous(120);
// The bits of a token that identify a GPU of a process.
constexpr int kOrdinalBits = 8;

// Returns a token that is unique in the job: random bits of the process and the index of this GPU.
int64_t TokenOf(int ordinal) {
  static const uint64_t process = [] {
    std::random_device random;
    return (static_cast<uint64_t>(random()) << 32 | random()) >> (kOrdinalBits + 1);
  }();
  return static_cast<int64_t>(process << kOrdinalBits) | ordinal;
}

Status CheckNccl() {
  JAXMG_RETURN_IF_ERROR(Open<Nccl>());
  int version = 0;
  JAXMG_CHECK_CUDA(Get<Nccl>().ncclGetVersion(&version), "NCCL");
  if (version >= kOldestNccl) return Status::Ok();
  return Error(Code::kUnavailable,
               "backend 'cusolvermp' needs NCCL 2.29 or newer, and the process has ",
               version / 10000, ".", version / 100 % 100, ".", version % 100,
               "; JAX works with a newer nvidia-nccl package, too");
}

// A communicator that is created on its own thread. If another rank never joins, that thread is
// abandoned.
struct Rendezvous {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  ncclResult_t result = ncclSuccess;
  ncclComm_t comm = nullptr;
};

Status ConnectByNccl(const RankContext& context, int ordinal, const ncclUniqueId& id,
                     ncclComm_t* comm) {
  const int rank = context.comm.rank(), ranks = context.comm.size();
  auto rendezvous = std::make_shared<Rendezvous>();
  std::thread([=] {
    ncclResult_t result = ncclSystemError;
    ncclComm_t made = nullptr;
    if (IsSuccess(Get<CudaRuntime>().cudaSetDevice(ordinal))) {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 1;    // the library expects blocking calls
      config.splitShare = 1;  // an abort covers communicators that the library splits off
      result = Get<Nccl>().ncclCommInitRankConfig(&made, ranks, id, rank, &config);
    }
    const std::lock_guard<std::mutex> lock(rendezvous->mutex);
    rendezvous->comm = made;
    rendezvous->result = result;
    rendezvous->done = true;
    rendezvous->changed.notify_all();
  }).detach();
  std::unique_lock<std::mutex> lock(rendezvous->mutex);
  const Clock::time_point deadline = Clock::now() + kLongestRendezvous;
  while (!rendezvous->changed.wait_for(lock, kLook, [&] { return rendezvous->done; })) {
    JAXMG_RETURN_IF_ERROR(context.comm.Failure());
    if (Clock::now() > deadline) {
      return Error(Code::kDeadlineExceeded, "NCCL could not connect ", ranks, " GPUs within ",
                   kLongestRendezvous.count(), " s");
    }
  }
  JAXMG_CHECK_CUDA(rendezvous->result, "NCCL between ", ranks, " GPUs");
  *comm = rendezvous->comm;
  return Status::Ok();
}

// Broadcasts the identifier of a communicator from the first rank.
Status ShareId(const RankContext& context, ncclUniqueId* id) {
  JAXMG_RETURN_IF_ERROR(RunCollectively(context.comm, [&]() -> Status {
    if (context.comm.rank() != 0) return Status::Ok();
    JAXMG_CHECK_CUDA(Get<Nccl>().ncclGetUniqueId(id), "a name of a communicator");
    return Status::Ok();
  }));
  for (size_t at = 0; at < sizeof(*id); at += sizeof(int64_t)) {
    char* const place = reinterpret_cast<char*>(id) + at;
    int64_t word = 0;
    std::memcpy(&word, place, sizeof(word));
    std::vector<int64_t> all;
    JAXMG_RETURN_IF_ERROR(context.comm.Share(word, &all));
    std::memcpy(place, &all[0], sizeof(word));
  }
  return Status::Ok();
}

}  // namespace

Descriptor::~Descriptor() {
  if (descriptor_ != nullptr) Get<CusolverMp>().cusolverMpDestroyMatrixDesc(descriptor_);
}

Status Descriptor::Set(cusolverMpGrid_t grid, const GridLayout& layout, int rank,
                       cudaDataType type) {
  JAXMG_CHECK_CUDA(Get<CusolverMp>().cusolverMpCreateMatrixDesc(
                       &descriptor_, grid, type, layout.rows, layout.columns, layout.width,
                       layout.width, 0, 0, layout.ld(rank)),
                   "cuSOLVERMp: a matrix of ", layout.rows, " x ", layout.columns, " in tiles of ",
                   layout.width);
  return Status::Ok();
}

struct Session::Made {
  std::vector<int64_t> members;  // the tokens of its ranks
  int grid_rows = 0;
  int64_t number = 0;  // assigned by the first rank
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  cusolverMpHandle_t handle = nullptr;
  cusolverMpGrid_t grid = nullptr;
};

// The sessions that no call uses.
struct Session::Pool {
  std::mutex mutex;
  std::vector<std::unique_ptr<Made>> idle;
  size_t made = 0;
  int64_t numbers = 0;

  // Takes the session of this number, or any if it is 0.
  std::unique_ptr<Made> Take(const std::vector<int64_t>& members, int grid_rows, int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex);
    for (auto made = idle.begin(); made != idle.end(); ++made) {
      const Made& one = **made;
      if (one.members != members || one.grid_rows != grid_rows) continue;
      if (number != 0 && one.number != number) continue;
      std::unique_ptr<Made> taken = std::move(*made);
      idle.erase(made);
      return taken;
    }
    return nullptr;
  }
};

Session::Pool& Session::ThePool() {
  static Pool* pool = new Pool;
  return *pool;
}

// Monitors a call of the library from its own thread.
class Session::Watch {
 public:
  Watch(Communicator& comm, ncclComm_t nccl) : thread_([this, &comm, nccl] { Run(comm, nccl); }) {}
  ~Watch() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  bool aborted() const { return aborted_; }

 private:
  void Run(Communicator& comm, ncclComm_t nccl) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!changed_.wait_for(lock, kLook, [&] { return over_; })) {
      if (comm.Failure().ok()) continue;
      // Kernels that spin on the GPU end as soon as NCCL has set its flag. The rest of the abort
      // may block indefinitely.
      aborted_ = true;
      (void)Guarded([&] {
        std::thread([nccl] { Get<Nccl>().ncclCommAbort(nccl); }).detach();
        return Status::Ok();
      });
      return;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::atomic<bool> aborted_{false};
  std::thread thread_;
};

Session::Session(const RankContext& context, std::unique_ptr<Made> made)
    : context_(context), made_(std::move(made)) {}

// Leaks a session that is not sound: destroying it could wait for a lost rank.
Session::~Session() {
  if (!sound_) {
    (void)made_.release();
    return;
  }
  Pool& pool = ThePool();
  const std::lock_guard<std::mutex> lock(pool.mutex);
  pool.idle.push_back(std::move(made_));
}

cusolverMpHandle_t Session::handle() const { return made_->handle; }
cusolverMpGrid_t Session::grid() const { return made_->grid; }

Status Session::Synchronize() const {
  JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaStreamSynchronize(made_->stream), "cuSOLVERMp");
  return Status::Ok();
}

Status Session::Run(const std::function<Status()>& call) {
  const Status status = RunCollectively(context_.comm, [&]() -> Status {
    const Watch watch(context_.comm, made_->comm);
    const Status done = Guarded(call);
    if (!done.ok()) context_.comm.Abort(done);  // the other ranks wait for this one
    const cudaError_t waited = Get<CudaRuntime>().cudaStreamSynchronize(made_->stream);
    if (watch.aborted()) return context_.comm.Failure();
    JAXMG_RETURN_IF_ERROR(done);
    JAXMG_CHECK_CUDA(waited, "cuSOLVERMp");
    return Status::Ok();
  });
  sound_ = sound_ && status.ok();
  return status;
}

Status Session::Make(const RankContext& context, const Grid& grid, Made* made) {
  const int ordinal = static_cast<CudaDevice&>(context.device).ordinal();
  ncclUniqueId id = {};
  JAXMG_RETURN_IF_ERROR(ShareId(context, &id));
  JAXMG_RETURN_IF_ERROR(RunCollectively(
      context.comm, [&] { return ConnectByNccl(context, ordinal, id, &made->comm); }));
  return RunCollectively(context.comm, [&]() -> Status {
    const Watch watch(context.comm, made->comm);
    const CusolverMp& library = Get<CusolverMp>();
    JAXMG_CHECK_CUDA(
        Get<CudaRuntime>().cudaStreamCreateWithPriority(&made->stream, cudaStreamNonBlocking, 0),
        "a stream of device ", ordinal);
    JAXMG_CHECK_CUDA(library.cusolverMpCreate(&made->handle, ordinal, made->stream), "cuSOLVERMp");
    int version = 0;
    JAXMG_CHECK_CUDA(library.cusolverMpGetVersion(made->handle, &version), "cuSOLVERMp");
    if (version < kOldest) {
      return Error(Code::kUnavailable, "cuSOLVERMp ", version / 10000, ".", version / 100 % 100,
                   ".", version % 100, " is older than 0.9.1 and computes wrong eigenvectors");
    }
    JAXMG_CHECK_CUDA(
        library.cusolverMpCreateDeviceGrid(made->handle, &made->grid, made->comm, grid.rows,
                                           grid.columns, CUSOLVERMP_GRID_MAPPING_COL_MAJOR),
        "cuSOLVERMp on a grid of ", grid.rows, " x ", grid.columns, " GPUs");
    return Status::Ok();
  });
}

Status Session::Start(const RankContext& context, const Grid& grid,
                      std::unique_ptr<Session>* session) {
  Communicator& comm = context.comm;
  Pool& pool = ThePool();
  JAXMG_RETURN_IF_ERROR(RunCollectively(comm, [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(CheckNccl());
    return Open<CusolverMp>();
  }));
  std::vector<int64_t> members;
  JAXMG_RETURN_IF_ERROR(
      comm.Share(TokenOf(static_cast<CudaDevice&>(context.device).ordinal()), &members));
  std::set<int64_t> processes;
  for (int64_t member : members) processes.insert(member >> kOrdinalBits);
  if (processes.size() != members.size()) {
    return Error(Code::kInvalidArgument, "cuSOLVERMp needs one process for each GPU");
  }
  // The first rank chooses an idle session; all ranks have the same ones.
  std::unique_ptr<Made> found;
  if (comm.rank() == 0) found = pool.Take(members, grid.rows, 0);
  std::vector<int64_t> all;
  JAXMG_RETURN_IF_ERROR(comm.Share(found == nullptr ? 0 : found->number, &all));
  if (comm.rank() != 0 && all[0] != 0) found = pool.Take(members, grid.rows, all[0]);
  if (all[0] == 0) {
    found = std::make_unique<Made>();
    found->members = members;
    found->grid_rows = grid.rows;
    {
      const std::lock_guard<std::mutex> lock(pool.mutex);
      found->number = ++pool.numbers;
      pool.idle.reserve(++pool.made);  // so that returning it can't fail
    }
    JAXMG_RETURN_IF_ERROR(comm.Share(found->number, &all));
    found->number = all[0];
    const Status made = Make(context, grid, found.get());
    if (!made.ok()) {
      (void)found.release();
      return made;
    }
  }
  const bool here = found != nullptr;
  JAXMG_RETURN_IF_ERROR(RunCollectively(comm, [&]() -> Status {
    if (here) return Status::Ok();
    return Error(Code::kInternal, "cuSOLVERMp: rank ", comm.rank(), " has lost its communicator");
  }));
  session->reset(new Session(context, std::move(found)));
  return Status::Ok();
}

}  // namespace jaxmg::mp
