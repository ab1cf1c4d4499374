#include "xla_ffi/vendor/cusolvermg/mg.h"

#include <algorithm>
#include <complex>
#include <vector>

#include "xla_ffi/engine/core/symmetrize.h"
#include "xla_ffi/vendor/cusolvermg/mg_solver.h"

namespace jaxmg::mg {
namespace {

// Tile widths of syevd: the default, and the library's maximum.
constexpr int64_t kSyevdWidth = 256, kMostSyevdWidth = 1024;
// The library's maximum number of right-hand sides.
constexpr int64_t kMostRightHandSides = 256;

// Uses the engine's rule, because the same trade-off between wide and narrow tiles applies.
template <typename T>
int64_t FactorWidth(const RankContext& context, const Operand<T>& operand) {
  return operand.tile > 0
             ? operand.tile
             : DefaultTileWidth(operand.block, context.comm.size(), context.device.tuning());
}

// A group of right-hand sides: columns of conj(B), `width` on each rank.
struct Group {
  int64_t first, count, width;
  int64_t begin(int rank) const { return std::min(rank * width, count); }
  int64_t columns(int rank) const { return begin(rank + 1) - begin(rank); }
};

// Solves for the columns `group` of x, an nrhs x n column-major array.
template <typename T>
Status SolveGroup(Solver<T>& solver, const Group& group, int64_t nrhs, T* x) {
  Communicator& comm = solver.comm();
  Blas<T>& blas = solver.device().template blas<T>();
  const int64_t n = solver.n();
  auto columns = [&](int rank) { return solver.extra() + group.begin(rank) * n; };
  const int rank = solver.rank();
  JAXMG_RETURN_IF_ERROR(solver.Step([&] {
    return blas.ConjTranspose(Stream::kMain, group.columns(rank), n,
                              x + group.first + group.begin(rank), nrhs, columns(rank), n);
  }));
  int info = 0;
  // These must outlive the call: devices may read them until Solver::Call has waited for them.
  Descriptor descriptor;
  std::vector<void*> b;
  JAXMG_RETURN_IF_ERROR(solver.OnRoot([&] {
    for (int r = 0; r < comm.size(); ++r) {
      b.push_back(static_cast<T*>(solver.extras()[r]) + group.begin(r) * n);
    }
    return descriptor.Set(solver.grid(), n, group.count, group.width, Solver<T>::kType);
  }));
  auto call = [&](int* i) {
    return solver.library().cusolverMgPotrs(solver.handle(), CUBLAS_FILL_MODE_LOWER, solver.order(),
                                            static_cast<int>(group.count), solver.a(), 1, 1,
                                            solver.descriptor(), b.data(), 1, 1, descriptor.get(),
                                            Solver<T>::kType, solver.work(), solver.lwork(), i);
  };
  JAXMG_RETURN_IF_ERROR(solver.Call(call, "cusolverMgPotrs", &info));
  return solver.Step([&]() -> Status {
    for (int root = 0; root < comm.size(); ++root) {
      if (group.columns(root) == 0) continue;
      JAXMG_RETURN_IF_ERROR(
          Broadcast(comm, Stream::kMain, root, Block(columns(root), n, n, group.columns(root))));
    }
    JAXMG_RETURN_IF_ERROR(WaitAllSent(comm, Stream::kMain));
    return blas.ConjTranspose(Stream::kMain, n, group.count, solver.extra(), n, x + group.first,
                              nrhs);
  });
}

}  // namespace

template <typename T>
Status Potrs(const RankContext& context, const Operand<T>& operand, const Solution<T>& solution) {
  constexpr cudaDataType kType = Solver<T>::kType;
  const int64_t nrhs = solution.nrhs;
  T* const x = solution.x;
  const int ranks = context.comm.size();
  Solver<T> solver(context, operand, FactorWidth(context, operand), /*always_copy=*/false);
  auto group_at = [&](int64_t first) -> Group {
    const int64_t count = std::min(kMostRightHandSides, nrhs - first);
    return {first, count, (count + ranks - 1) / ranks};
  };
  const Group largest = group_at(0);
  auto workspace = [&](int64_t* elements) -> Status {
    const CusolverMg& library = solver.library();
    int64_t factor = 0, solve = 0;
    JAXMG_CHECK_CUDA(
        library.cusolverMgPotrf_bufferSize(solver.handle(), CUBLAS_FILL_MODE_LOWER, solver.order(),
                                           solver.a(), 1, 1, solver.descriptor(), kType, &factor),
        "cuSOLVERMg: potrf of order ", operand.n);
    if (largest.count > 0) {
      Descriptor b;
      std::vector<void*> pointers = solver.extras();
      JAXMG_RETURN_IF_ERROR(b.Set(solver.grid(), operand.n, largest.count, largest.width, kType));
      JAXMG_CHECK_CUDA(library.cusolverMgPotrs_bufferSize(
                           solver.handle(), CUBLAS_FILL_MODE_LOWER, solver.order(),
                           static_cast<int>(largest.count), solver.a(), 1, 1, solver.descriptor(),
                           pointers.data(), 1, 1, b.get(), kType, &solve),
                       "cuSOLVERMg: potrs of order ", operand.n, " for ", largest.count,
                       " right-hand sides");
    }
    *elements = std::max(factor, solve);
    return Status::Ok();
  };
  JAXMG_RETURN_IF_ERROR(solver.Prepare(operand.n * largest.width * ranks, workspace));
  JAXMG_RETURN_IF_ERROR(solver.Step([&]() -> Status {
    JAXMG_RETURN_IF_ERROR(CopyIfApart(solver.device(), solution.b, x, nrhs * operand.n));
    if (solution.check_b) {
      JAXMG_RETURN_IF_ERROR(solver.device().status().Digest(
          Stream::kMain, x, nrhs * operand.n * sizeof(T) / sizeof(int32_t),
          solver.outcome().digest()));
    }
    return solver.ToTiles();
  }));
  int info = 0;
  JAXMG_RETURN_IF_ERROR(solver.Factor(&info));
  JAXMG_RETURN_IF_ERROR(solver.Step([&] { return solver.SetStatus(info); }));
  for (int64_t first = 0; info == 0 && first < nrhs; first += kMostRightHandSides) {
    JAXMG_RETURN_IF_ERROR(SolveGroup(solver, group_at(first), nrhs, x));
  }
  return solver.Step([&]() -> Status {
    JAXMG_RETURN_IF_ERROR(solver.LogDet(solution.log_det));
    return solver.outcome().PoisonIfFailed(nrhs, operand.n, x);
  });
}

template <typename T>
Status Potri(const RankContext& context, const Operand<T>& operand) {
  constexpr cudaDataType kType = Solver<T>::kType;
  Solver<T> solver(context, operand, FactorWidth(context, operand), /*always_copy=*/false);
  auto workspace = [&](int64_t* elements) -> Status {
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
  };
  JAXMG_RETURN_IF_ERROR(solver.Prepare(0, workspace));
  JAXMG_RETURN_IF_ERROR(solver.Step([&] { return solver.ToTiles(); }));
  int info = 0;
  JAXMG_RETURN_IF_ERROR(solver.Factor(&info));
  JAXMG_RETURN_IF_ERROR(solver.Step([&] { return solver.SetStatus(info); }));
  if (info == 0) {
    int ignored = 0;  // Factor has already reported a singular factor
    JAXMG_RETURN_IF_ERROR(solver.Call(
        [&](int* i) {
          return solver.library().cusolverMgPotri(
              solver.handle(), CUBLAS_FILL_MODE_LOWER, solver.order(), solver.a(), 1, 1,
              solver.descriptor(), kType, solver.work(), solver.lwork(), i);
        },
        "cusolverMgPotri", &ignored));
  }
  return solver.Step([&]() -> Status {
    if (info == 0) {
      JAXMG_RETURN_IF_ERROR(solver.ToBlocks());
      JAXMG_RETURN_IF_ERROR(Symmetrize(context, solver.matrix(), solver.staging()));
    }
    return solver.outcome().PoisonIfFailed(operand.n, operand.block, operand.a);
  });
}

namespace {

// Converts the ranks' tiles of U to their blocks of U^H.
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
      JAXMG_RETURN_IF_ERROR(context.comm.Send(Stream::kMain, peer,
                                              Block(rows_of(j, peer), n, rows, tiles.columns(j))));
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
  const int64_t width = operand.tile > 0 ? std::min(operand.tile, kMostSyevdWidth) : kSyevdWidth;
  Solver<T> solver(context, operand, width, /*always_copy=*/true);
  CudaDevice& device = solver.device();
  std::vector<Real<T>> values(solver.rank() == 0 ? operand.n
                                                 : 1);  // the library writes it on the host
  auto workspace = [&](int64_t* elements) -> Status {
    JAXMG_CHECK_CUDA(solver.library().cusolverMgSyevd_bufferSize(
                         solver.handle(), job, CUBLAS_FILL_MODE_LOWER, solver.order(), solver.a(),
                         1, 1, solver.descriptor(), values.data(), kRealType, kType, elements),
                     "cuSOLVERMg: syevd of order ", operand.n);
    return Status::Ok();
  };
  JAXMG_RETURN_IF_ERROR(solver.Prepare(0, workspace));
  // The library may not terminate if elements are not finite.
  int32_t status = 0;
  JAXMG_RETURN_IF_ERROR(solver.Step([&]() -> Status {
    JAXMG_RETURN_IF_ERROR(solver.ToTiles());
    const TileColumns& tiles = solver.tiles();
    CudaStatus& status_kernels = device.cuda_status();
    for (int64_t j = solver.rank(); j < tiles.count(); j += tiles.ranks) {
      JAXMG_RETURN_IF_ERROR(status_kernels.CheckFinite(Stream::kMain, operand.n - tiles.begin(j),
                                                       tiles.columns(j), solver.tile(j), operand.n,
                                                       tiles.begin(j), solver.outcome().info()));
    }
    JAXMG_RETURN_IF_ERROR(solver.outcome().Set());
    return device.CopyToHost(Stream::kMain, &status, operand.status, sizeof(status));
  }));
  if (status == 0) {
    int info = 0;
    JAXMG_RETURN_IF_ERROR(solver.Call(
        [&](int* i) {
          return solver.library().cusolverMgSyevd(solver.handle(), job, CUBLAS_FILL_MODE_LOWER,
                                                  solver.order(), solver.a(), 1, 1,
                                                  solver.descriptor(), values.data(), kRealType,
                                                  kType, solver.work(), solver.lwork(), i);
        },
        "cusolverMgSyevd", &info));
    // The library may return eigenvalues that are equal up to rounding out of order.
    for (size_t i = 1; i < values.size(); ++i) values[i] = std::max(values[i], values[i - 1]);
    std::vector<int64_t> pointers;
    JAXMG_RETURN_IF_ERROR(context.comm.Share(reinterpret_cast<int64_t>(values.data()), &pointers));
    JAXMG_RETURN_IF_ERROR(solver.Step([&]() -> Status {
      JAXMG_RETURN_IF_ERROR(device.FillInt32(Stream::kMain, operand.status, 1, info));
      JAXMG_RETURN_IF_ERROR(device.CopyFromHost(
          Stream::kMain, w, reinterpret_cast<void*>(pointers[0]), operand.n * sizeof(Real<T>)));
      return vectors ? DealVectors(context, solver, operand) : Status::Ok();
    }));
  }
  return solver.Step([&]() -> Status {
    JAXMG_RETURN_IF_ERROR(solver.outcome().PoisonIfFailed(operand.n, 1, w));
    return vectors ? solver.outcome().PoisonIfFailed(operand.n, operand.block, operand.a)
                   : Status::Ok();
  });
}

#define JAXMG_INSTANTIATE(T)                                                        \
  template Status Potrs(const RankContext&, const Operand<T>&, const Solution<T>&); \
  template Status Potri(const RankContext&, const Operand<T>&);                     \
  template Status Syevd(const RankContext&, const Operand<T>&, bool, Real<T>*);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg::mg
