#include "xla_ffi/cusolver/mg.h"

#include <algorithm>
#include <complex>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "xla_ffi/cusolver/mg_layout.h"
#include "xla_ffi/cusolver/mg_library.h"
#include "xla_ffi/device/cuda.h"
#include "xla_ffi/engine/potri.h"

namespace jaxmg::mg {
namespace {

// Tile widths that serve the library: wider panels starve the other GPUs, and syevd refuses more.
constexpr int64_t kFactorWidth = 1024, kSyevdWidth = 256, kMostSyevdWidth = 1024;
// The library takes no more right-hand sides at once.
constexpr int64_t kMostRightHandSides = 256;

// Every rank does `step` and returns what all agree on.
Status Together(Communicator& comm, const std::function<Status()>& step) {
  const Status status = step();
  if (!status.ok()) comm.Abort(status);
  return comm.Agree(status);
}

// One rank's side of a call of the library.
template <typename T>
class Solver {
 public:
  static constexpr cudaDataType kType = CudaType<T>::kValue;
  using Pointers = std::vector<void*>;

  Solver(const RankContext& context, const Operand<T>& operand, int64_t width, bool always_copy)
      : context_(context),
        device_(static_cast<CudaDevice&>(context.device)),
        comm_(context.comm),
        operand_(operand),
        ranks_(comm_.size()),
        in_place_(!always_copy && (ranks_ == 1 || DividingWidth(operand.block, width) > 0)),
        tiles_{operand.n, ranks_,
               in_place_ && ranks_ > 1 ? DividingWidth(operand.block, width)
                                       : std::min(width, operand.n)} {}

  const TileColumns& tiles() const { return tiles_; }
  CudaDevice& device() { return device_; }
  Communicator& comm() { return comm_; }
  int rank() const { return comm_.rank(); }
  int64_t n() const { return operand_.n; }
  T* tile(int64_t j) const {
    return tiled_ + tiles_.slot(j) * tiles_.width * n() + tiles_.begin(j);
  }
  T* staging() const { return staging_; }

  // Memory, the library and what it needs to know: the same outcome on every rank. `extra` elements
  // more are this rank's part of the library's second operand.
  Status Prepare(int64_t extra) {
    JAXMG_RETURN_IF_ERROR(comm_.Agree(Open<CusolverMg>()));
    JAXMG_RETURN_IF_ERROR(Together(comm_, [&] { return Allocate(extra); }));
    JAXMG_RETURN_IF_ERROR(comm_.Share(device_.ordinal(), &ordinals_));
    JAXMG_RETURN_IF_ERROR(SharePointer(tiled_, &a_));
    JAXMG_RETURN_IF_ERROR(SharePointer(extra_, &extras_));
    return OnRoot([&]() -> Status {
      if (n() > std::numeric_limits<int>::max()) {
        return Error(Code::kInvalidArgument, "cuSOLVERMg takes no order above 2^31 - 1");
      }
      JAXMG_RETURN_IF_ERROR(Session::Start(ordinals_, &session_));
      return descriptor_.Set(session_->grid(), n(), n(), tiles_.width, kType);
    });
  }

  // `size` asks the library, on rank 0, for the elements of workspace.
  Status PrepareWorkspace(const std::function<Status(int64_t*)>& size) {
    int64_t elements = 0;
    JAXMG_RETURN_IF_ERROR(OnRoot([&] { return size(&elements); }));
    std::vector<int64_t> all;
    JAXMG_RETURN_IF_ERROR(comm_.Share(elements, &all));
    elements_ = all[0];
    std::unique_ptr<Buffer> buffer;
    JAXMG_RETURN_IF_ERROR(
        Together(comm_, [&] { return device_.Allocate(elements_ * sizeof(T), &buffer); }));
    return SharePointer(buffer->data(), &work_);
  }

  Status ToTiles() {
    return Together(comm_, [&]() -> Status {
      if (!in_place_) {
        JAXMG_RETURN_IF_ERROR(CopyPieces(context_, tiles_, operand_.block, operand_.a, tiled_,
                                         /*to_tiles=*/true));
      } else {
        JAXMG_RETURN_IF_ERROR(ToBlockCyclic(context_, matrix(), Region::kLower, staging_));
      }
      return device_.Synchronize();
    });
  }

  // The lower triangle.
  Status ToBlocks() {
    if (in_place_) return ToContiguous(context_, matrix(), Region::kLower, staging_);
    return CopyPieces(context_, tiles_, operand_.block, operand_.a, tiled_, /*to_tiles=*/false);
  }

  // Contiguous blocks, for what the engine does with those.
  Matrix<T> matrix() const {
    return {Tiles(n(), operand_.block, ranks_, tiles_.width), rank(), n(), operand_.a, nullptr};
  }

  // Calls the library on rank 0 while the others wait. All devices are idle before and after. *info
  // is LAPACK's on every rank.
  Status Call(const std::function<cusolverStatus_t(int*)>& call, const char* routine, int* info) {
    *info = 0;
    JAXMG_RETURN_IF_ERROR(Together(comm_, [&] { return device_.Synchronize(); }));
    JAXMG_RETURN_IF_ERROR(OnRoot([&]() -> Status {
      CurrentDevice current;  // which the library may change
      JAXMG_RETURN_IF_ERROR(current.Set(device_.ordinal()));
      const cusolverStatus_t result = call(info);
      // A matrix that is not positive definite is CUSOLVER_STATUS_INTERNAL_ERROR at times.
      if (*info > 0) return Status::Ok();
      JAXMG_CHECK_CUDA(result, routine, " of order ", n(), " in tiles of ", tiles_.width,
                       " columns on ", ranks_, " GPUs, info ", *info);
      return Status::Ok();
    }));
    std::vector<int64_t> infos;
    JAXMG_RETURN_IF_ERROR(comm_.Share(*info, &infos));
    *info = static_cast<int>(infos[0]);
    return Together(comm_, [&]() -> Status {
      JAXMG_CHECK_CUDA(Get<CudaRuntime>().cudaDeviceSynchronize(), routine);
      return Status::Ok();
    });
  }

  Status Factor(int* info) {
    JAXMG_RETURN_IF_ERROR(Call(
        [&](int* i) {
          return library().cusolverMgPotrf(handle(), CUBLAS_FILL_MODE_LOWER, order(), a(), 1, 1,
                                           descriptor(), kType, work(), lwork(), i);
        },
        "cusolverMgPotrf", info));
    return Together(comm_, [&] { return SetStatus(*info); });
  }

  // *status from the library's info, or from diagonals that it has left NaN.
  Status SetStatus(int info) {
    JAXMG_RETURN_IF_ERROR(device_.FillInt32(Stream::kMain, infos_, 1, info > 0 ? info : kNoInfo));
    JAXMG_RETURN_IF_ERROR(device_.FillInt32(Stream::kMain, infos_ + 1, 2, 0));
    CudaBlas<T>& blas = device_.cuda_blas<T>();
    for (int64_t j = rank(); info == 0 && j < tiles_.count(); j += ranks_) {
      JAXMG_RETURN_IF_ERROR(blas.CheckFactor(Stream::kMain, tiles_.columns(j), tile(j), n(),
                                             tiles_.begin(j), infos_ + 1, infos_ + 2, infos_));
    }
    return GatherStatus();
  }

  // *status := the smallest of the ranks' infos.
  Status GatherStatus() {
    JAXMG_RETURN_IF_ERROR(AllGather(comm_, device_, Stream::kMain, infos_, infos_ + kFirstGathered,
                                    sizeof(int32_t)));
    JAXMG_RETURN_IF_ERROR(WaitAllSent(comm_, Stream::kMain));
    return device_.ReduceInfo(Stream::kMain, infos_ + kFirstGathered, ranks_, operand_.status);
  }

  int32_t* info() const { return infos_; }

  Status LogDet(Real<T>* log_det) {
    CudaBlas<T>& blas = device_.cuda_blas<T>();
    JAXMG_RETURN_IF_ERROR(device_.blas<Real<T>>().SetZero(Stream::kMain, 1, 1, log_dets_, 1));
    for (int64_t j = rank(); j < tiles_.count(); j += ranks_) {
      JAXMG_RETURN_IF_ERROR(
          blas.AddLogDet(Stream::kMain, tiles_.columns(j), tile(j), n(), log_dets_));
    }
    JAXMG_RETURN_IF_ERROR(AllGather(comm_, device_, Stream::kMain, log_dets_, log_dets_ + 1,
                                    sizeof(Real<T>)));
    JAXMG_RETURN_IF_ERROR(WaitAllSent(comm_, Stream::kMain));
    return device_.SumReals(Stream::kMain, log_dets_ + 1, ranks_, log_det);
  }

  template <typename U>
  Status PoisonIfFailed(int64_t m, int64_t columns, U* data) {
    return device_.blas<U>().PoisonIf(Stream::kMain, operand_.status, m, columns, data, m);
  }

  Status OnRoot(const std::function<Status()>& step) {
    return Together(comm_, [&] { return rank() == 0 ? step() : Status::Ok(); });
  }

  // What the library is called with, on rank 0.
  const CusolverMg& library() const { return Get<CusolverMg>(); }
  cusolverMgHandle_t handle() const { return session_->handle(); }
  cudaLibMgGrid_t grid() const { return session_->grid(); }
  cudaLibMgMatrixDesc_t descriptor() const { return descriptor_.get(); }
  int order() const { return static_cast<int>(n()); }
  void** a() { return a_.data(); }
  void** work() { return work_.data(); }
  int64_t lwork() const { return elements_; }
  const Pointers& extras() const { return extras_; }
  T* extra() const { return extra_; }

 private:
  static constexpr int kFirstGathered = 3;

  Status Allocate(int64_t extra) {
    auto allocate = [&](size_t bytes, auto** data) -> Status {
      std::unique_ptr<Buffer> buffer;
      JAXMG_RETURN_IF_ERROR(device_.Allocate(bytes, &buffer));
      *data = static_cast<std::remove_reference_t<decltype(**data)>*>(buffer->data());
      return Status::Ok();
    };
    JAXMG_RETURN_IF_ERROR(allocate((kFirstGathered + ranks_) * sizeof(int32_t), &infos_));
    JAXMG_RETURN_IF_ERROR(allocate((1 + ranks_) * sizeof(Real<T>), &log_dets_));
    const int64_t rows = std::max(n(), operand_.block);
    JAXMG_RETURN_IF_ERROR(allocate(rows * tiles_.width * sizeof(T), &staging_));
    JAXMG_RETURN_IF_ERROR(allocate(extra * sizeof(T), &extra_));
    tiled_ = operand_.a;
    if (in_place_) return Status::Ok();
    return allocate(n() * tiles_.slots() * tiles_.width * sizeof(T), &tiled_);
  }

  Status SharePointer(void* mine, Pointers* all) {
    std::vector<int64_t> numbers;
    JAXMG_RETURN_IF_ERROR(comm_.Share(reinterpret_cast<int64_t>(mine), &numbers));
    all->clear();
    for (int64_t number : numbers) all->push_back(reinterpret_cast<void*>(number));
    return Status::Ok();
  }

  const RankContext& context_;
  CudaDevice& device_;
  Communicator& comm_;
  const Operand<T>& operand_;
  const int ranks_;
  const bool in_place_;
  const TileColumns tiles_;
  int32_t* infos_ = nullptr;  // ours, zero, what failed in a tile, and everybody's
  Real<T>* log_dets_ = nullptr;
  T* staging_ = nullptr;
  T* extra_ = nullptr;
  T* tiled_ = nullptr;
  std::vector<int64_t> ordinals_;
  Pointers a_, extras_, work_;
  int64_t elements_ = 0;
  std::unique_ptr<Session> session_;
  Descriptor descriptor_;
};

template <typename T>
int64_t FactorWidth(const Operand<T>& operand, int ranks) {
  if (operand.tile > 0) return operand.tile;
  // As in the engine: enough tiles each to share the trailing matrix evenly.
  const int64_t share = ranks == 1 ? operand.block : operand.block / 8;
  return std::clamp<int64_t>(share, 32, kFactorWidth);
}

// One group of right-hand sides: columns of conj(B), `width` on each rank.
struct Group {
  int64_t first, count, width;
  int64_t begin(int rank) const { return std::min(rank * width, count); }
  int64_t columns(int rank) const { return begin(rank + 1) - begin(rank); }
};

// Solves for `group` of x, an nrhs x n column-major array.
template <typename T>
Status SolveGroup(Solver<T>& solver, const Group& group, int64_t nrhs, T* x) {
  Communicator& comm = solver.comm();
  CudaBlas<T>& blas = solver.device().template cuda_blas<T>();
  const int64_t n = solver.n();
  auto columns = [&](int rank) { return solver.extra() + group.begin(rank) * n; };
  const int rank = solver.rank();
  JAXMG_RETURN_IF_ERROR(Together(comm, [&] {
    return blas.ConjTranspose(Stream::kMain, group.columns(rank), n,
                              x + group.first + group.begin(rank), nrhs, columns(rank), n);
  }));
  int info = 0;
  auto call = [&](int* i) {
    Descriptor descriptor;
    std::vector<void*> b;
    for (int r = 0; r < comm.size(); ++r) {
      b.push_back(static_cast<T*>(solver.extras()[r]) + group.begin(r) * n);
    }
    if (!descriptor.Set(solver.grid(), n, group.count, group.width, Solver<T>::kType).ok()) {
      return CUSOLVER_STATUS_INTERNAL_ERROR;
    }
    return solver.library().cusolverMgPotrs(
        solver.handle(), CUBLAS_FILL_MODE_LOWER, solver.order(), static_cast<int>(group.count),
        solver.a(), 1, 1, solver.descriptor(), b.data(), 1, 1, descriptor.get(), Solver<T>::kType,
        solver.work(), solver.lwork(), i);
  };
  JAXMG_RETURN_IF_ERROR(solver.Call(call, "cusolverMgPotrs", &info));
  return Together(comm, [&]() -> Status {
    for (int root = 0; root < comm.size(); ++root) {
      if (group.columns(root) == 0) continue;
      JAXMG_RETURN_IF_ERROR(Broadcast(comm, Stream::kMain, root,
                                      Block(columns(root), n, n, group.columns(root))));
    }
    JAXMG_RETURN_IF_ERROR(WaitAllSent(comm, Stream::kMain));
    return blas.ConjTranspose(Stream::kMain, n, group.count, solver.extra(), n, x + group.first,
                              nrhs);
  });
}

}  // namespace

template <typename T>
Status Potrs(const RankContext& context, const Operand<T>& operand, int64_t nrhs, T* x,
             Real<T>* log_det) {
  constexpr cudaDataType kType = Solver<T>::kType;
  const int ranks = context.comm.size();
  Solver<T> solver(context, operand, FactorWidth(operand, ranks), /*always_copy=*/false);
  auto group_at = [&](int64_t first) -> Group {
    const int64_t count = std::min(kMostRightHandSides, nrhs - first);
    return {first, count, (count + ranks - 1) / ranks};
  };
  const Group largest = group_at(0);
  JAXMG_RETURN_IF_ERROR(solver.Prepare(operand.n * largest.width * ranks));
  JAXMG_RETURN_IF_ERROR(solver.PrepareWorkspace([&](int64_t* elements) -> Status {
    const CusolverMg& library = solver.library();
    int64_t factor = 0, solve = 0;
    JAXMG_CHECK_CUDA(library.cusolverMgPotrf_bufferSize(
                         solver.handle(), CUBLAS_FILL_MODE_LOWER, solver.order(), solver.a(), 1, 1,
                         solver.descriptor(), kType, &factor),
                     "cuSOLVERMg: potrf of order ", operand.n);
    if (largest.count > 0) {
      Descriptor b;
      std::vector<void*> pointers = solver.extras();
      JAXMG_RETURN_IF_ERROR(
          b.Set(solver.grid(), operand.n, largest.count, largest.width, kType));
      JAXMG_CHECK_CUDA(
          library.cusolverMgPotrs_bufferSize(
              solver.handle(), CUBLAS_FILL_MODE_LOWER, solver.order(),
              static_cast<int>(largest.count), solver.a(), 1, 1, solver.descriptor(),
              pointers.data(), 1, 1, b.get(), kType, &solve),
          "cuSOLVERMg: potrs of order ", operand.n, " for ", largest.count, " right-hand sides");
    }
    *elements = std::max(factor, solve);
    return Status::Ok();
  }));
  JAXMG_RETURN_IF_ERROR(solver.ToTiles());
  int info = 0;
  JAXMG_RETURN_IF_ERROR(solver.Factor(&info));
  for (int64_t first = 0; info == 0 && first < nrhs; first += kMostRightHandSides) {
    JAXMG_RETURN_IF_ERROR(SolveGroup(solver, group_at(first), nrhs, x));
  }
  return Together(context.comm, [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(solver.LogDet(log_det));
    JAXMG_RETURN_IF_ERROR(solver.PoisonIfFailed(1, 1, log_det));
    return solver.PoisonIfFailed(nrhs, operand.n, x);
  });
}

template <typename T>
Status Potri(const RankContext& context, const Operand<T>& operand) {
  constexpr cudaDataType kType = Solver<T>::kType;
  Solver<T> solver(context, operand, FactorWidth(operand, context.comm.size()),
                   /*always_copy=*/false);
  JAXMG_RETURN_IF_ERROR(solver.Prepare(0));
  JAXMG_RETURN_IF_ERROR(solver.PrepareWorkspace([&](int64_t* elements) -> Status {
    int64_t factor = 0, invert = 0;
    JAXMG_CHECK_CUDA(solver.library().cusolverMgPotrf_bufferSize(
                         solver.handle(), CUBLAS_FILL_MODE_LOWER, solver.order(), solver.a(), 1, 1,
                         solver.descriptor(), kType, &factor),
                     "cuSOLVERMg: potrf of order ", operand.n);
    JAXMG_CHECK_CUDA(solver.library().cusolverMgPotri_bufferSize(
                         solver.handle(), CUBLAS_FILL_MODE_LOWER, solver.order(), solver.a(), 1, 1,
                         solver.descriptor(), kType, &invert),
                     "cuSOLVERMg: potri of order ", operand.n);
    *elements = std::max(factor, invert);
    return Status::Ok();
  }));
  JAXMG_RETURN_IF_ERROR(solver.ToTiles());
  int info = 0;
  JAXMG_RETURN_IF_ERROR(solver.Factor(&info));
  if (info == 0) {
    int ignored = 0;  // a factor that is singular has failed before
    JAXMG_RETURN_IF_ERROR(solver.Call(
        [&](int* i) {
          return solver.library().cusolverMgPotri(solver.handle(), CUBLAS_FILL_MODE_LOWER,
                                                  solver.order(), solver.a(), 1, 1,
                                                  solver.descriptor(), kType, solver.work(),
                                                  solver.lwork(), i);
        },
        "cusolverMgPotri", &ignored));
  }
  return Together(context.comm, [&]() -> Status {
    if (info == 0) {
      JAXMG_RETURN_IF_ERROR(solver.ToBlocks());
      JAXMG_RETURN_IF_ERROR(Symmetrize(context, solver.matrix(), solver.staging()));
    }
    return solver.PoisonIfFailed(operand.n, operand.block, operand.a);
  });
}

namespace {

// The ranks' tiles of U to their blocks of U^H.
template <typename T>
Status DealVectors(const RankContext& context, Solver<T>& solver, const Operand<T>& operand) {
  const TileColumns& tiles = solver.tiles();
  const int64_t n = operand.n;
  const int rank = solver.rank(), ranks = context.comm.size();
  Blas<T>& blas = context.device.blas<T>();
  auto begin = [&](int r) { return std::min(r * operand.block, n); };
  const int64_t mine = begin(rank + 1) - begin(rank);
  auto rows_of = [&](int64_t j, int r) { return solver.tile(j) - tiles.begin(j) + begin(r); };
  for (int64_t j = rank; j < tiles.count(); j += ranks) {
    for (int step = 1; step < ranks; ++step) {
      const int peer = (rank + step) % ranks;
      const int64_t rows = begin(peer + 1) - begin(peer);
      if (rows == 0) continue;
      JAXMG_RETURN_IF_ERROR(context.comm.Send(
          Stream::kMain, peer, Block(rows_of(j, peer), n, rows, tiles.columns(j))));
    }
  }
  for (int64_t j = 0; j < tiles.count() && mine > 0; ++j) {
    const T* piece = rows_of(j, rank);
    int64_t ld = n;
    if (tiles.owner(j) != rank) {
      piece = solver.staging();
      ld = mine;
      JAXMG_RETURN_IF_ERROR(context.comm.Recv(Stream::kMain, tiles.owner(j),
                                              Block(piece, ld, mine, tiles.columns(j))));
    }
    JAXMG_RETURN_IF_ERROR(blas.ConjTranspose(Stream::kMain, mine, tiles.columns(j), piece, ld,
                                             operand.a + tiles.begin(j), n));
  }
  return WaitAllSent(context.comm, Stream::kMain);
}

}  // namespace

template <typename T>
Status Syevd(const RankContext& context, const Operand<T>& operand, bool vectors, Real<T>* w) {
  constexpr cudaDataType kType = Solver<T>::kType, kRealType = CudaType<Real<T>>::kValue;
  const cusolverEigMode_t job = vectors ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
  const int64_t width =
      operand.tile > 0 ? std::min(operand.tile, kMostSyevdWidth) : kSyevdWidth;
  Solver<T> solver(context, operand, width, /*always_copy=*/true);
  CudaDevice& device = solver.device();
  std::vector<Real<T>> values(solver.rank() == 0 ? operand.n : 1);  // the library's, on the host
  JAXMG_RETURN_IF_ERROR(solver.Prepare(0));
  JAXMG_RETURN_IF_ERROR(solver.PrepareWorkspace([&](int64_t* elements) -> Status {
    JAXMG_CHECK_CUDA(solver.library().cusolverMgSyevd_bufferSize(
                         solver.handle(), job, CUBLAS_FILL_MODE_LOWER, solver.order(), solver.a(),
                         1, 1, solver.descriptor(), values.data(), kRealType, kType, elements),
                     "cuSOLVERMg: syevd of order ", operand.n);
    return Status::Ok();
  }));
  JAXMG_RETURN_IF_ERROR(solver.ToTiles());
  // The library need not come to an end with what is not finite.
  int32_t status = 0;
  JAXMG_RETURN_IF_ERROR(Together(context.comm, [&]() -> Status {
    const TileColumns& tiles = solver.tiles();
    CudaBlas<T>& blas = device.template cuda_blas<T>();
    JAXMG_RETURN_IF_ERROR(device.FillInt32(Stream::kMain, solver.info(), 1, kNoInfo));
    for (int64_t j = solver.rank(); j < tiles.count(); j += tiles.ranks) {
      JAXMG_RETURN_IF_ERROR(blas.CheckFinite(Stream::kMain, operand.n - tiles.begin(j),
                                             tiles.columns(j), solver.tile(j), operand.n,
                                             tiles.begin(j), solver.info()));
    }
    JAXMG_RETURN_IF_ERROR(solver.GatherStatus());
    return device.CopyToHost(Stream::kMain, &status, operand.status, sizeof(status));
  }));
  if (status == 0) {
    int info = 0;
    JAXMG_RETURN_IF_ERROR(solver.Call(
        [&](int* i) {
          return solver.library().cusolverMgSyevd(
              solver.handle(), job, CUBLAS_FILL_MODE_LOWER, solver.order(), solver.a(), 1, 1,
              solver.descriptor(), values.data(), kRealType, kType, solver.work(), solver.lwork(),
              i);
        },
        "cusolverMgSyevd", &info));
    std::vector<int64_t> pointers;
    JAXMG_RETURN_IF_ERROR(
        context.comm.Share(reinterpret_cast<int64_t>(values.data()), &pointers));
    JAXMG_RETURN_IF_ERROR(Together(context.comm, [&]() -> Status {
      JAXMG_RETURN_IF_ERROR(device.FillInt32(Stream::kMain, operand.status, 1, info));
      JAXMG_RETURN_IF_ERROR(device.CopyFromHost(Stream::kMain, w,
                                                reinterpret_cast<void*>(pointers[0]),
                                                operand.n * sizeof(Real<T>)));
      return vectors ? DealVectors(context, solver, operand) : Status::Ok();
    }));
  }
  return Together(context.comm, [&]() -> Status {
    JAXMG_RETURN_IF_ERROR(solver.PoisonIfFailed(operand.n, 1, w));
    return vectors ? solver.PoisonIfFailed(operand.n, operand.block, operand.a) : Status::Ok();
  });
}

#define JAXMG_INSTANTIATE(T)                                                                 \
  template Status Potrs(const RankContext&, const Operand<T>&, int64_t, T*, Real<T>*);      \
  template Status Potri(const RankContext&, const Operand<T>&);                              \
  template Status Syevd(const RankContext&, const Operand<T>&, bool, Real<T>*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg::mg
