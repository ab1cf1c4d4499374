#include "xla_ffi/vendor/cusolvermp/mp.h"

#include <algorithm>
#include <complex>
#include <memory>
#include <optional>
#include <vector>

#include "xla_ffi/vendor/cusolvermp/mp_session.h"

namespace jaxmg::mp {
namespace {

// The default tile widths.
constexpr int64_t kFactorWidth = 1024, kEigenWidth = 512;

// Narrows tiles so that every rank has one, if there are at least as many rows as ranks.
int64_t WidthOf(int64_t n, int64_t requested, int64_t usual, const Grid& grid) {
  const int64_t most = std::max(grid.rows, grid.columns);
  return std::max<int64_t>(std::min(requested > 0 ? requested : usual, (n + most - 1) / most), 1);
}

// One rank's part of a call; common to all routines.
template <typename T>
class Solver {
 public:
  static constexpr cudaDataType kType = CudaType<T>::kValue;

  Solver(const RankContext& context, const Operand<T>& operand, int64_t usual_width)
      : context_(context),
        device_(static_cast<CudaDevice&>(context.device)),
        operand_(operand),
        grid_(GridOf(context.comm.size(), operand.grid_rows)),
        layout_{operand.n, operand.n, WidthOf(operand.n, operand.tile, usual_width, grid_), grid_} {
  }

  CudaDevice& device() { return device_; }
  const GridLayout& layout() const { return layout_; }
  int rank() const { return context_.comm.rank(); }
  int64_t n() const { return operand_.n; }
  T* a() const { return a_; }
  T* staging() const { return staging_; }
  int32_t* info() const { return info_; }
  const Outcome<T>& outcome() const { return *outcome_; }
  Session& session() { return *session_; }
  cusolverMpHandle_t handle() const { return session_->handle(); }
  cusolverMpMatrixDescriptor_t descriptor() const { return descriptor_.get(); }
  const T* source() const { return operand_.source != nullptr ? operand_.source : operand_.a; }

  // Allocates memory, calls `allocate` for further memory, and initializes the library and the
  // matrix's descriptor.
  Status Prepare(const std::function<Status()>& allocate) {
    JAXMG_RETURN_IF_ERROR(RunCollectively(context_.comm, [&]() -> Status {
      char* records = nullptr;
      JAXMG_RETURN_IF_ERROR(Allocate(Outcome<T>::Bytes(context_.comm.size()), &records));
      outcome_.emplace(context_, /*gathers=*/false, records, operand_.status);
      JAXMG_RETURN_IF_ERROR(Allocate(3, &info_));
      const int64_t height = std::max(2 * n(), operand_.block);
      JAXMG_RETURN_IF_ERROR(Allocate(height * layout_.width, &staging_));
      JAXMG_RETURN_IF_ERROR(AllocateOwn(layout_.Elements(rank()), &a_));
      JAXMG_RETURN_IF_ERROR(allocate());
      JAXMG_RETURN_IF_ERROR(device_.FillInt32(Stream::kMain, info_, 3, 0));
      return outcome_->Init();
    }));
    JAXMG_RETURN_IF_ERROR(Session::Start(context_, grid_, &session_));
    return RunCollectively(
        context_.comm, [&] { return descriptor_.Set(session_->grid(), layout_, rank(), kType); });
  }

  // Allocates the library's workspace. `size` queries the library for the sizes.
  Status AllocateWork(const std::function<Status(size_t* device, size_t* host)>& size) {
    JAXMG_RETURN_IF_ERROR(session_->Run([&] { return size(&work_bytes_, &host_bytes_); }));
    return RunCollectively(context_.comm, [&]() -> Status {
      host_work_.resize(host_bytes_);
      return AllocateOwn(static_cast<int64_t>(work_bytes_), &work_);
    });
  }
  void* work() const { return work_; }
  size_t work_bytes() const { return work_bytes_; }
  void* host_work() { return host_work_.data(); }
  size_t host_bytes() const { return host_bytes_; }

  // Runs `step` on every rank, and waits until its device is idle, because the library uses another
  // stream.
  Status Step(const std::function<Status()>& step) {
    return RunCollectively(context_.comm, [&]() -> Status {
      JAXMG_RETURN_IF_ERROR(step());
      return device_.Synchronize();
    });
  }

  // Calls the library, and copies its info on this rank to *info.
  Status Call(const char* routine, const std::function<cusolverStatus_t()>& call,
              int32_t* info = nullptr) {
    return session_->Run([&]() -> Status {
      const Range range(device_, Stream::kMain, routine, 0);
      const cusolverStatus_t result = call();
      int32_t found = 0;
      if (info != nullptr && (IsSuccess(result) || result == CUSOLVER_STATUS_INTERNAL_ERROR)) {
        JAXMG_RETURN_IF_ERROR(session_->Synchronize());
        JAXMG_RETURN_IF_ERROR(device_.CopyToHost(Stream::kMain, &found, info_, sizeof(found)));
        JAXMG_RETURN_IF_ERROR(device_.Synchronize());
        *info = found;
      }
      // INTERNAL_ERROR with info > 0 means that the matrix is not positive definite.
      if (found > 0) return Status::Ok();
      JAXMG_CHECK_CUDA(result, routine, " of order ", n(), " in tiles of ", layout_.width, " on ",
                       grid_.rows, " x ", grid_.columns, " GPUs, info ", found);
      return Status::Ok();
    });
  }

  // Calls f(tile, offset, order) for the diagonal tiles of this rank.
  template <typename F>
  Status ForDiagonal(const F& f) {
    for (int64_t k = 0; k < layout_.tiles_down(); ++k) {
      if (layout_.owner(k, k) != rank()) continue;
      JAXMG_RETURN_IF_ERROR(f(k, a_ + layout_.offset(k, k), layout_.height(k)));
    }
    return Status::Ok();
  }

  // Reduces the ranks' infos to the status, and copies it to the host.
  Status SetStatus(int32_t* status) {
    JAXMG_RETURN_IF_ERROR(outcome_->Set());
    return device_.CopyToHost(Stream::kMain, status, operand_.status, sizeof(*status));
  }

  // Copies all of M to tiles. Sets the status to kNotFinite if an element isn't finite.
  Status TakeAll(int32_t* status) {
    return Step([&]() -> Status {
      JAXMG_RETURN_IF_ERROR(
          ToGrid(context_, layout_, operand_.block, source(), a_, staging_, Part::kAll));
      JAXMG_RETURN_IF_ERROR(device_.cuda_status().CheckAllFinite(
          Stream::kMain, layout_.LocalRows(grid_.row(rank())),
          layout_.LocalColumns(grid_.column(rank())), static_cast<const T*>(a_), layout_.ld(rank()),
          outcome_->info()));
      return SetStatus(status);
    });
  }

  // Sets the status to `found`, the library's info, if that is positive.
  Status TakeInfo(int32_t found, int32_t* status) {
    if (found > 0) {
      JAXMG_RETURN_IF_ERROR(device_.FillInt32(Stream::kMain, outcome_->info(), 1, found));
    }
    return SetStatus(status);
  }

  template <typename U>
  Status Allocate(int64_t count, U** data) {
    std::unique_ptr<Buffer> buffer;
    JAXMG_RETURN_IF_ERROR(device_.Allocate(count * sizeof(U), &buffer));
    *data = buffer->template as<U>();
    return Status::Ok();
  }
  template <typename U>
  Status AllocateOwn(int64_t count, U** data) {
    std::unique_ptr<Buffer> buffer;
    JAXMG_RETURN_IF_ERROR(device_.AllocateForThisRank(count * sizeof(U), &buffer));
    *data = buffer->template as<U>();
    return Status::Ok();
  }

 private:
  const RankContext& context_;
  CudaDevice& device_;
  const Operand<T>& operand_;
  const Grid grid_;
  const GridLayout layout_;
  std::optional<Outcome<T>> outcome_;
  int32_t* info_ = nullptr;  // the library's info, kNoInfo, and the info of a tile
  T* staging_ = nullptr;
  T* a_ = nullptr;
  char* work_ = nullptr;
  size_t work_bytes_ = 0, host_bytes_ = 0;
  std::vector<char> host_work_;
  std::unique_ptr<Session> session_;
  Descriptor descriptor_;
};

// The library's options for a routine, with their default values.
template <typename Handle, auto kCreate, auto kDestroy>
class Options {
 public:
  Options() = default;
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;
  ~Options() {
    if (handle_ != nullptr) (Get<CusolverMp>().*kDestroy)(handle_);
  }
  Status Create() {
    JAXMG_CHECK_CUDA((Get<CusolverMp>().*kCreate)(&handle_), "cuSOLVERMp: options");
    return Status::Ok();
  }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};
using GesvdOptions =
    Options<cusolverMpGesvdDescriptor_t, &CusolverMp::cusolverMpGesvdDescriptorCreate,
            &CusolverMp::cusolverMpGesvdDescriptorDestroy>;
using PolarOptions =
    Options<cusolverMpPolarDescriptor_t, &CusolverMp::cusolverMpPolarDescriptorCreate,
            &CusolverMp::cusolverMpPolarDescriptorDestroy>;

}  // namespace

template <typename T>
Status Potrs(const RankContext& context, const Operand<T>& operand, const Solution<T>& solution) {
  constexpr cudaDataType kType = Solver<T>::kType;
  const int64_t n = operand.n, nrhs = solution.nrhs;
  Solver<T> solver(context, operand, kFactorWidth);
  CudaDevice& device = solver.device();
  Blas<T>& blas = device.template blas<T>();
  const int rank = solver.rank();
  const GridLayout b = {n, nrhs, solver.layout().width, solver.layout().grid};
  T *whole = nullptr, *local = nullptr, *received = nullptr;  // conj(B)
  JAXMG_RETURN_IF_ERROR(solver.Prepare([&]() -> Status {
    int64_t most = 0;
    for (int r = 0; r < context.comm.size(); ++r) most = std::max(most, b.Elements(r));
    JAXMG_RETURN_IF_ERROR(solver.Allocate(b.Elements(rank), &local));
    JAXMG_RETURN_IF_ERROR(solver.AllocateOwn(most, &received));
    return solver.AllocateOwn(n * nrhs, &whole);
  }));
  Descriptor descriptor;
  if (nrhs > 0) {
    JAXMG_RETURN_IF_ERROR(RunCollectively(
        context.comm, [&] { return descriptor.Set(solver.session().grid(), b, rank, kType); }));
  }
  const CusolverMp& library = Get<CusolverMp>();
  JAXMG_RETURN_IF_ERROR(solver.AllocateWork([&](size_t* on_device, size_t* on_host) -> Status {
    JAXMG_CHECK_CUDA(
        library.cusolverMpPotrf_bufferSize(solver.handle(), CUBLAS_FILL_MODE_LOWER, n, solver.a(),
                                           1, 1, solver.descriptor(), kType, on_device, on_host),
        "cuSOLVERMp: potrf of order ", n);
    if (nrhs == 0) return Status::Ok();
    size_t solve = 0, solve_on_host = 0;
    JAXMG_CHECK_CUDA(
        library.cusolverMpPotrs_bufferSize(solver.handle(), CUBLAS_FILL_MODE_LOWER, n, nrhs,
                                           solver.a(), 1, 1, solver.descriptor(), local, 1, 1,
                                           descriptor.get(), kType, &solve, &solve_on_host),
        "cuSOLVERMp: potrs of order ", n, " for ", nrhs, " right-hand sides");
    *on_device = std::max(*on_device, solve);
    *on_host = std::max(*on_host, solve_on_host);
    return Status::Ok();
  }));
  JAXMG_RETURN_IF_ERROR(solver.Step([&]() -> Status {
    JAXMG_RETURN_IF_ERROR(CopyIfApart(device, solution.b, solution.x, nrhs * n));
    if (solution.check_b) {
      JAXMG_RETURN_IF_ERROR(device.status().Digest(Stream::kMain, solution.x,
                                                   nrhs * n * sizeof(T) / sizeof(int32_t),
                                                   solver.outcome().digest()));
    }
    return ToGrid(context, solver.layout(), operand.block, solver.source(), solver.a(),
                  solver.staging());
  }));
  int32_t status = 0, found = 0;
  auto factor = [&] {
    return library.cusolverMpPotrf(solver.handle(), CUBLAS_FILL_MODE_LOWER, n, solver.a(), 1, 1,
                                   solver.descriptor(), kType, solver.work(), solver.work_bytes(),
                                   solver.host_work(), solver.host_bytes(), solver.info());
  };
  JAXMG_RETURN_IF_ERROR(solver.Call("cusolverMpPotrf", factor, &found));
  JAXMG_RETURN_IF_ERROR(solver.Step([&]() -> Status {
    if (found > 0) {
      JAXMG_RETURN_IF_ERROR(device.FillInt32(Stream::kMain, solver.outcome().info(), 1, found));
    }
    // The library ignores NaN.
    JAXMG_RETURN_IF_ERROR(solver.ForDiagonal([&](int64_t k, T* tile, int64_t order) {
      return device.cuda_status().CheckFactor(Stream::kMain, order, tile, solver.layout().ld(rank),
                                              k * solver.layout().width, solver.info() + 1,
                                              solver.info() + 2, solver.outcome().info());
    }));
    JAXMG_RETURN_IF_ERROR(solver.SetStatus(&status));
    if (status != 0 || nrhs == 0) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(blas.ConjTranspose(Stream::kMain, nrhs, n, solution.x, nrhs, whole, n));
    return CopyTiles(context, b, rank, whole, local, /*to_tiles=*/true);
  }));
  if (status == 0 && nrhs > 0) {
    JAXMG_RETURN_IF_ERROR(solver.Call("cusolverMpPotrs", [&] {
      return library.cusolverMpPotrs(solver.handle(), CUBLAS_FILL_MODE_LOWER, n, nrhs, solver.a(),
                                     1, 1, solver.descriptor(), local, 1, 1, descriptor.get(),
                                     kType, solver.work(), solver.work_bytes(), solver.host_work(),
                                     solver.host_bytes(), solver.info());
    }));
  }
  return solver.Step([&]() -> Status {
    if (status == 0 && nrhs > 0) {
      JAXMG_RETURN_IF_ERROR(ToWhole(context, b, local, received, whole));
      JAXMG_RETURN_IF_ERROR(blas.ConjTranspose(Stream::kMain, n, nrhs, whole, n, solution.x, nrhs));
    }
    JAXMG_RETURN_IF_ERROR(solver.ForDiagonal([&](int64_t, T* tile, int64_t order) {
      return blas.AddLogDet(Stream::kMain, order, tile, solver.layout().ld(rank),
                            solver.outcome().log_det());
    }));
    JAXMG_RETURN_IF_ERROR(solver.outcome().Set());
    JAXMG_RETURN_IF_ERROR(solver.outcome().SetLogDet(solution.log_det));
    return solver.outcome().PoisonIfFailed(nrhs, n, solution.x);
  });
}

// The library can't solve with a transposed matrix, and the ranks have columns of M = A^T. So M is
// copied to tiles on the transposed grid. Each rank then transposes and conjugates its tiles of M,
// which gives its tiles of M^H = conj(A). The system solved is conj(A) conj(x) = conj(b).
template <typename T>
Status Gesv(const RankContext& context, const Operand<T>& operand,
            const GeneralSolution<T>& solution) {
  constexpr cudaDataType kType = Solver<T>::kType;
  const int64_t n = operand.n, nrhs = solution.nrhs;
  Solver<T> solver(context, operand, kFactorWidth);
  CudaDevice& device = solver.device();
  Blas<T>& blas = device.template blas<T>();
  const int rank = solver.rank();
  const GridLayout& layout = solver.layout();
  const GridLayout b = {n, nrhs, layout.width, layout.grid};
  const GridLayout m_layout = {n, n, layout.width, layout.grid.Transposed()};
  const int64_t rows = layout.LocalRows(layout.grid.row(rank));
  const int64_t columns = layout.LocalColumns(layout.grid.column(rank));
  T *whole = nullptr, *local = nullptr, *received = nullptr;  // conj(B)
  T* m = nullptr;
  // Ranks in the first row of the grid have the pivots of their columns, counted from 1; the pivots
  // of other ranks are undefined.
  int64_t* pivots = nullptr;
  int32_t* unused = nullptr;  // the converted pivots that CheckLuFactor writes
  JAXMG_RETURN_IF_ERROR(solver.Prepare([&]() -> Status {
    int64_t most = 0;
    for (int r = 0; r < context.comm.size(); ++r) most = std::max(most, b.Elements(r));
    JAXMG_RETURN_IF_ERROR(solver.Allocate(b.Elements(rank), &local));
    JAXMG_RETURN_IF_ERROR(solver.Allocate(std::max(rows, columns) + layout.width, &pivots));
    JAXMG_RETURN_IF_ERROR(solver.Allocate(layout.width, &unused));
    JAXMG_RETURN_IF_ERROR(solver.AllocateOwn(most, &received));
    JAXMG_RETURN_IF_ERROR(solver.AllocateOwn(n * nrhs, &whole));
    return solver.AllocateOwn(m_layout.Elements(rank), &m);
  }));
  Descriptor descriptor;
  if (nrhs > 0) {
    JAXMG_RETURN_IF_ERROR(RunCollectively(
        context.comm, [&] { return descriptor.Set(solver.session().grid(), b, rank, kType); }));
  }
  const CusolverMp& library = Get<CusolverMp>();
  JAXMG_RETURN_IF_ERROR(solver.AllocateWork([&](size_t* on_device, size_t* on_host) -> Status {
    JAXMG_CHECK_CUDA(
        library.cusolverMpGetrf_bufferSize(solver.handle(), n, n, solver.a(), 1, 1,
                                           solver.descriptor(), pivots, kType, on_device, on_host),
        "cuSOLVERMp: getrf of order ", n);
    if (nrhs == 0) return Status::Ok();
    size_t solve = 0, solve_on_host = 0;
    JAXMG_CHECK_CUDA(
        library.cusolverMpGetrs_bufferSize(solver.handle(), CUBLAS_OP_N, n, nrhs, solver.a(), 1, 1,
                                           solver.descriptor(), pivots, local, 1, 1,
                                           descriptor.get(), kType, &solve, &solve_on_host),
        "cuSOLVERMp: getrs of order ", n, " for ", nrhs, " right-hand sides");
    *on_device = std::max(*on_device, solve);
    *on_host = std::max(*on_host, solve_on_host);
    return Status::Ok();
  }));
  int32_t status = 0;
  JAXMG_RETURN_IF_ERROR(solver.Step([&]() -> Status {
    JAXMG_RETURN_IF_ERROR(CopyIfApart(device, solution.b, solution.x, nrhs * n));
    if (solution.check_b) {
      JAXMG_RETURN_IF_ERROR(device.status().Digest(Stream::kMain, solution.x,
                                                   nrhs * n * sizeof(T) / sizeof(int32_t),
                                                   solver.outcome().digest()));
    }
    JAXMG_RETURN_IF_ERROR(
        ToGrid(context, m_layout, operand.block, solver.source(), m, solver.staging(), Part::kAll));
    JAXMG_RETURN_IF_ERROR(
        device.cuda_status().CheckAllFinite(Stream::kMain, columns, rows, static_cast<const T*>(m),
                                            m_layout.ld(rank), solver.outcome().info()));
    JAXMG_RETURN_IF_ERROR(blas.ConjTranspose(Stream::kMain, columns, rows, m, m_layout.ld(rank),
                                             solver.a(), layout.ld(rank)));
    return solver.SetStatus(&status);
  }));
  if (status == 0) {
    int32_t found = 0;
    JAXMG_RETURN_IF_ERROR(solver.Call(
        "cusolverMpGetrf",
        [&] {
          return library.cusolverMpGetrf(solver.handle(), n, n, solver.a(), 1, 1,
                                         solver.descriptor(), pivots, kType, solver.work(),
                                         solver.work_bytes(), solver.host_work(),
                                         solver.host_bytes(), solver.info());
        },
        &found));
    JAXMG_RETURN_IF_ERROR(solver.Step([&]() -> Status {
      // The library's info counts from the beginning of a tile, so the diagonal is checked instead.
      JAXMG_RETURN_IF_ERROR(solver.ForDiagonal([&](int64_t k, T* tile, int64_t order) {
        return device.cuda_status().CheckLuFactor(
            Stream::kMain, order, static_cast<const T*>(tile), layout.ld(rank), k * layout.width,
            static_cast<const int64_t*>(pivots), unused, solver.outcome().info());
      }));
      JAXMG_RETURN_IF_ERROR(solver.SetStatus(&status));
      if (status != 0 || nrhs == 0) return Status::Ok();
      JAXMG_RETURN_IF_ERROR(blas.ConjTranspose(Stream::kMain, nrhs, n, solution.x, nrhs, whole, n));
      return CopyTiles(context, b, rank, whole, local, /*to_tiles=*/true);
    }));
  }
  if (status == 0 && nrhs > 0) {
    JAXMG_RETURN_IF_ERROR(solver.Call("cusolverMpGetrs", [&] {
      return library.cusolverMpGetrs(solver.handle(), CUBLAS_OP_N, n, nrhs, solver.a(), 1, 1,
                                     solver.descriptor(), pivots, local, 1, 1, descriptor.get(),
                                     kType, solver.work(), solver.work_bytes(), solver.host_work(),
                                     solver.host_bytes(), solver.info());
    }));
  }
  return solver.Step([&]() -> Status {
    if (status == 0 && nrhs > 0) {
      JAXMG_RETURN_IF_ERROR(ToWhole(context, b, local, received, whole));
      JAXMG_RETURN_IF_ERROR(blas.ConjTranspose(Stream::kMain, n, nrhs, whole, n, solution.x, nrhs));
    }
    JAXMG_RETURN_IF_ERROR(solver.outcome().Set());
    // All bits set: NaN.
    constexpr int64_t kWord = sizeof(int32_t);
    JAXMG_RETURN_IF_ERROR(device.FillInt32(
        Stream::kMain, reinterpret_cast<int32_t*>(solution.log_abs), sizeof(Real<T>) / kWord, -1));
    JAXMG_RETURN_IF_ERROR(device.FillInt32(Stream::kMain, reinterpret_cast<int32_t*>(solution.sign),
                                           sizeof(T) / kWord, -1));
    return solver.outcome().PoisonIfFailed(nrhs, n, solution.x);
  });
}

template <typename T>
Status Syevd(const RankContext& context, const Operand<T>& operand, bool vectors, Real<T>* w) {
  constexpr cudaDataType kType = Solver<T>::kType;
  const int64_t n = operand.n;
  Solver<T> solver(context, operand, kEigenWidth);
  CudaDevice& device = solver.device();
  const int rank = solver.rank();
  T* u = nullptr;
  JAXMG_RETURN_IF_ERROR(solver.Prepare(
      [&] { return solver.AllocateOwn(vectors ? solver.layout().Elements(rank) : 0, &u); }));
  const CusolverMp& library = Get<CusolverMp>();
  char job = vectors ? 'V' : 'N';
  JAXMG_RETURN_IF_ERROR(solver.AllocateWork([&](size_t* on_device, size_t* on_host) -> Status {
    JAXMG_CHECK_CUDA(
        library.cusolverMpSyevd_bufferSize(solver.handle(), &job, CUBLAS_FILL_MODE_LOWER, n,
                                           solver.a(), 1, 1, solver.descriptor(), w, u, 1, 1,
                                           solver.descriptor(), kType, on_device, on_host),
        "cuSOLVERMp: syevd of order ", n);
    return Status::Ok();
  }));
  // The library may not terminate if elements are not finite.
  int32_t status = 0;
  JAXMG_RETURN_IF_ERROR(solver.Step([&]() -> Status {
    for (int64_t number = 0; number < Rounds(solver.layout(), operand.block); ++number) {
      const Cut cut = CutOf(solver.layout(), operand.block, rank, number);
      if (cut.columns == 0) continue;
      const T* diagonal = solver.source() + (cut.first - rank * operand.block) * n + cut.first;
      JAXMG_RETURN_IF_ERROR(device.cuda_status().CheckFinite(Stream::kMain, n - cut.first,
                                                             cut.columns, diagonal, n, cut.first,
                                                             solver.outcome().info()));
    }
    JAXMG_RETURN_IF_ERROR(solver.SetStatus(&status));
    if (status != 0) return Status::Ok();
    return ToGrid(context, solver.layout(), operand.block, solver.source(), solver.a(),
                  solver.staging());
  }));
  if (status == 0) {
    int32_t found = 0;
    auto solve = [&] {
      return library.cusolverMpSyevd(solver.handle(), &job, CUBLAS_FILL_MODE_LOWER, n, solver.a(),
                                     1, 1, solver.descriptor(), w, u, 1, 1, solver.descriptor(),
                                     kType, solver.work(), solver.work_bytes(), solver.host_work(),
                                     solver.host_bytes(), solver.info());
    };
    JAXMG_RETURN_IF_ERROR(solver.Call("cusolverMpSyevd", solve, &found));
    JAXMG_RETURN_IF_ERROR(solver.Step([&]() -> Status {
      JAXMG_RETURN_IF_ERROR(solver.TakeInfo(found, &status));
      return vectors
                 ? ToRows(context, solver.layout(), operand.block, u, operand.a, solver.staging())
                 : Status::Ok();
    }));
  }
  return solver.Step([&]() -> Status {
    JAXMG_RETURN_IF_ERROR(solver.outcome().PoisonIfFailed(n, 1, w));
    return vectors ? solver.outcome().PoisonIfFailed(n, operand.block, operand.a) : Status::Ok();
  });
}

// The ranks have columns of M = A^T, which the library decomposes as M = U S V^H. So A = conj(V) S
// U^T. A rank's rows of conj(V), A's left vectors, are columns of V^H. Its rows of A's right
// vectors are columns of U.
template <typename T>
Status Gesvd(const RankContext& context, const Operand<T>& operand, bool vectors, T* vh,
             Real<T>* s) {
  constexpr cudaDataType kType = Solver<T>::kType;
  const int64_t n = operand.n;
  Solver<T> solver(context, operand, kEigenWidth);
  const int rank = solver.rank();
  T *left = nullptr, *right = nullptr;  // tiles of U and of V^H
  JAXMG_RETURN_IF_ERROR(solver.Prepare([&]() -> Status {
    const int64_t count = vectors ? solver.layout().Elements(rank) : 0;
    JAXMG_RETURN_IF_ERROR(solver.AllocateOwn(count, &left));
    return solver.AllocateOwn(count, &right);
  }));
  const CusolverMp& library = Get<CusolverMp>();
  const cusolverEigMode_t job = vectors ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
  const cusolverMpMatrixDescriptor_t of_vectors = vectors ? solver.descriptor() : nullptr;
  GesvdOptions options;
  JAXMG_RETURN_IF_ERROR(RunCollectively(context.comm, [&] { return options.Create(); }));
  JAXMG_RETURN_IF_ERROR(solver.AllocateWork([&](size_t* on_device, size_t* on_host) -> Status {
    JAXMG_CHECK_CUDA(library.cusolverMpGesvd_bufferSize(solver.handle(), options.get(), job, job, n,
                                                        n, solver.a(), 1, 1, solver.descriptor(), s,
                                                        left, 1, 1, of_vectors, right, 1, 1,
                                                        of_vectors, kType, on_device, on_host),
                     "cuSOLVERMp: gesvd of order ", n);
    return Status::Ok();
  }));
  int32_t status = 0;
  JAXMG_RETURN_IF_ERROR(solver.TakeAll(&status));
  if (status == 0) {
    int32_t found = 0;
    auto solve = [&] {
      return library.cusolverMpGesvd(solver.handle(), options.get(), job, job, n, n, solver.a(), 1,
                                     1, solver.descriptor(), s, left, 1, 1, of_vectors, right, 1, 1,
                                     of_vectors, kType, solver.work(), solver.work_bytes(),
                                     solver.host_work(), solver.host_bytes(), solver.info());
    };
    JAXMG_RETURN_IF_ERROR(solver.Call("cusolverMpGesvd", solve, &found));
    JAXMG_RETURN_IF_ERROR(solver.Step([&]() -> Status {
      JAXMG_RETURN_IF_ERROR(solver.TakeInfo(found, &status));
      if (!vectors) return Status::Ok();
      JAXMG_RETURN_IF_ERROR(
          FromGrid(context, solver.layout(), operand.block, right, operand.a, solver.staging()));
      return FromGrid(context, solver.layout(), operand.block, left, vh, solver.staging());
    }));
  }
  return solver.Step([&]() -> Status {
    JAXMG_RETURN_IF_ERROR(solver.outcome().PoisonIfFailed(n, 1, s));
    if (!vectors) return Status::Ok();
    JAXMG_RETURN_IF_ERROR(solver.outcome().PoisonIfFailed(n, operand.block, operand.a));
    return solver.outcome().PoisonIfFailed(n, operand.block, vh);
  });
}

// If U is the unitary factor of M, U^T is the unitary factor of A = M^T. So a rank's rows of the
// result are columns of U.
template <typename T>
Status Polar(const RankContext& context, const Operand<T>& operand) {
  constexpr cudaDataType kType = Solver<T>::kType;
  const int64_t n = operand.n;
  Solver<T> solver(context, operand, kFactorWidth);
  JAXMG_RETURN_IF_ERROR(solver.Prepare([] { return Status::Ok(); }));
  const CusolverMp& library = Get<CusolverMp>();
  PolarOptions options;
  JAXMG_RETURN_IF_ERROR(RunCollectively(context.comm, [&] { return options.Create(); }));
  // Null pointers: the Hermitian factor is not requested.
  JAXMG_RETURN_IF_ERROR(solver.AllocateWork([&](size_t* on_device, size_t* on_host) -> Status {
    JAXMG_CHECK_CUDA(library.cusolverMpPolar_bufferSize(
                         solver.handle(), options.get(), CUBLAS_FILL_MODE_FULL, n, n, solver.a(), 1,
                         1, solver.descriptor(), nullptr, 1, 1, nullptr, kType, on_device, on_host),
                     "cuSOLVERMp: polar of order ", n);
    return Status::Ok();
  }));
  int32_t status = 0;
  JAXMG_RETURN_IF_ERROR(solver.TakeAll(&status));
  if (status == 0) {
    int32_t found = 0;
    auto solve = [&] {
      return library.cusolverMpPolar(solver.handle(), options.get(), CUBLAS_FILL_MODE_FULL, n, n,
                                     solver.a(), 1, 1, solver.descriptor(), nullptr, 1, 1, nullptr,
                                     kType, solver.work(), solver.work_bytes(), solver.host_work(),
                                     solver.host_bytes(), solver.info());
    };
    JAXMG_RETURN_IF_ERROR(solver.Call("cusolverMpPolar", solve, &found));
    JAXMG_RETURN_IF_ERROR(solver.Step([&]() -> Status {
      JAXMG_RETURN_IF_ERROR(solver.TakeInfo(found, &status));
      return FromGrid(context, solver.layout(), operand.block, solver.a(), operand.a,
                      solver.staging());
    }));
  }
  return solver.Step([&] { return solver.outcome().PoisonIfFailed(n, operand.block, operand.a); });
}

#define JAXMG_INSTANTIATE(T)                                                              \
  template Status Potrs(const RankContext&, const Operand<T>&, const Solution<T>&);       \
  template Status Gesv(const RankContext&, const Operand<T>&, const GeneralSolution<T>&); \
  template Status Syevd(const RankContext&, const Operand<T>&, bool, Real<T>*);           \
  template Status Gesvd(const RankContext&, const Operand<T>&, bool, T*, Real<T>*);       \
  template Status Polar(const RankContext&, const Operand<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg::mp
