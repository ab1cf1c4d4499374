#include "xla_ffi/device/cuda/lu/lu.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/device/cuda/device.h"
#include "xla_ffi/device/cuda/solver.h"

namespace jaxmg {
namespace {

constexpr int64_t kWordBytes = 16;
constexpr size_t kAlignment = 256;  // of the parts of a workspace

// cuSOLVER factors a matrix that is a single tile faster than our panels from this order on, up to
// the order that MostByLibrary returns.
constexpr int64_t kLeastByLibrary = kLuColumns + 1;
template <typename T>
int64_t MostByLibrary(const Tuning& tuning) {
  return sizeof(Real<T>) == 4 ? tuning.lu.library_order : tuning.lu.library_order_double;
}

// Returns the number of rows that a block holds in registers, with this number of columns.
template <typename T>
constexpr int64_t BlockRows(int64_t columns) {
  return kLuThreads * (kLuThreadBytes / static_cast<int64_t>(sizeof(T)) / columns);
}

constexpr Kernel LeafKernel(int64_t columns) {
  return columns == 32   ? Kernel::factor_lu_panel_32
         : columns == 16 ? Kernel::factor_lu_panel_16
         : columns == 8  ? Kernel::factor_lu_panel_8
                         : Kernel::factor_lu_panel_4;
}

}  // namespace

template <typename T>
Status CudaLu<T>::LeafColumns(int64_t m, int64_t* columns) const {
  int blocks = 0;
  JAXMG_RETURN_IF_ERROR(device_.resources().Multiprocessors(&blocks));
  blocks = std::min(blocks, kLuBlocks);
  for (*columns = kLuColumns; *columns >= kLuLeastColumns; *columns /= 2) {
    if (m <= blocks * BlockRows<T>(*columns)) return Status::Ok();
  }
  return Error(Code::kInvalidArgument, "a panel of ", m,
               " rows is too large for this GPU; at most ", blocks * BlockRows<T>(kLuLeastColumns));
}

// Tags differ during the lifetime of the memory, so that it is cleared only once.
template <typename T>
Status CudaLu<T>::ReserveSlots(Stream stream) {
  Exchange& exchange = exchanges_[static_cast<int>(stream)];
  if (!exchange.slots) {
    constexpr int64_t kBytes = kWordBytes * 2 * kLuSlotWords * kLuBlocks;
    JAXMG_RETURN_IF_ERROR(device_.AllocateForThisRank(kBytes, &exchange.slots));
    JAXMG_RETURN_IF_ERROR(device_.FillInt32(stream, static_cast<int32_t*>(exchange.slots->data()),
                                            kBytes / sizeof(int32_t), 0));
  }
  return Status::Ok();
}

template <typename T>
Status CudaLu<T>::ReserveMoves(Stream stream, int64_t columns) {
  Exchange& exchange = exchanges_[static_cast<int>(stream)];
  if (columns > exchange.columns) {
    JAXMG_RETURN_IF_ERROR(
        device_.AllocateForThisRank(4 * columns * sizeof(int32_t), &exchange.moves));
    exchange.columns = columns;
  }
  return Status::Ok();
}

template <typename T>
Status CudaLu<T>::FactorLeaf(const Panel& panel, int64_t begin, int64_t n) {
  Exchange& exchange = exchanges_[static_cast<int>(panel.stream)];
  const Kernel kernel = LeafKernel(panel.width);
  constexpr char kLetter = CudaType<T>::kLetter;
  int64_t m = panel.m - begin, lda = panel.lda, offset = panel.offset + begin;
  int columns = static_cast<int>(n), in_cluster = 1;
  T* a = panel.at(begin, begin);
  int32_t *pivots = panel.pivots + begin, *info = panel.info;
  void* slots = nullptr;
  int32_t* moves = static_cast<int32_t*>(exchange.moves->data()) + 4 * begin;
  uint32_t tag = exchange.tag;
  exchange.tag += columns;
  void* arguments[] = {&m, &columns, &a, &lda, &offset, &pivots, &info, &slots, &tag, &moves};
  const int64_t blocks = (m + BlockRows<T>(panel.width) - 1) / BlockRows<T>(panel.width);
  CudaResources& resources = device_.resources();
  if (blocks == 1) {
    return resources.Launch(kernel, kLetter, panel.stream, 1, kLuThreads, 1, arguments);
  }
  JAXMG_RETURN_IF_ERROR(resources.MostInCluster(kernel, kLetter, kLuThreads, &in_cluster));
  if (blocks > in_cluster) {
    JAXMG_RETURN_IF_ERROR(ReserveSlots(panel.stream));
    slots = exchange.slots->data();
    return resources.LaunchCooperative(kernel, kLetter, panel.stream, static_cast<unsigned>(blocks),
                                       kLuThreads, arguments);
  }
  unsigned cluster = 2;
  while (cluster < blocks) cluster *= 2;
  return resources.LaunchCluster(kernel, kLetter, panel.stream, cluster, kLuThreads, arguments);
}

// Interchanges after a leaf are applied to its columns only when these become factors of a product.
template <typename T>
Status CudaLu<T>::Step(const Panel& panel, int64_t first, int64_t last, int64_t right) {
  const int64_t begin = first * panel.width, end = std::min(last * panel.width, panel.n);
  const auto* moves =
      static_cast<const int32_t*>(exchanges_[static_cast<int>(panel.stream)].moves->data());
  auto launch = [&](int64_t column, int64_t columns) {
    return device_.LaunchBlocks(
        Kernel::step_lu_panel, CudaType<T>::kLetter, panel.stream,
        (columns + kLuStepColumns - 1) / kLuStepColumns, kThreads, static_cast<int>(panel.n),
        panel.a, panel.lda, static_cast<int>(panel.width), static_cast<int>(first),
        static_cast<int>(last), static_cast<int>(column), static_cast<int>(right), moves);
  };
  if (last - first > 1) JAXMG_RETURN_IF_ERROR(launch(begin, end - begin));
  JAXMG_RETURN_IF_ERROR(launch(end, right));
  if (right == 0 || end - begin <= kLuDepth) return Status::Ok();
  return blas_.Trsm(panel.stream, Side::kLeft, Op::kNone, end - begin, right,
                    panel.at(begin, begin), panel.lda, panel.at(begin, end), panel.lda,
                    {Uplo::kLower, Diag::kUnit});
}

// Factors in halves, so that products do most of the work: [A1 A2], P1 A1 = L1 U1, then A2 with L1,
// then the rest of A2. (S. Toledo, "Locality of reference in LU decomposition with partial
// pivoting", SIAM J. Matrix Anal. Appl. 18, 1997.)
template <typename T>
Status CudaLu<T>::FactorHalves(const Panel& panel, int64_t first, int64_t last) {
  const int64_t begin = first * panel.width, end = std::min(last * panel.width, panel.n);
  if (last - first == 1) return FactorLeaf(panel, begin, end - begin);
  const int64_t half = first + (last - first + 1) / 2, middle = half * panel.width;
  JAXMG_RETURN_IF_ERROR(FactorHalves(panel, first, half));
  JAXMG_RETURN_IF_ERROR(Step(panel, first, half, end - middle));
  JAXMG_RETURN_IF_ERROR(blas_.Gemm(panel.stream, Op::kNone, Op::kNone, panel.m - middle,
                                   end - middle, middle - begin, -1, panel.at(middle, begin),
                                   panel.lda, panel.at(begin, middle), panel.lda, 1,
                                   panel.at(middle, middle), panel.lda));
  return FactorHalves(panel, half, last);
}

template <typename T>
Status CudaLu<T>::FactorPanel(Stream stream, int64_t m, int64_t n, T* a, int64_t lda,
                              int64_t offset, int32_t* pivots, int32_t* info) {
  if (m == 0 || n == 0) return Status::Ok();
  const bool whole = stream == Stream::kMain && m == n;
  if (whole && n >= kLeastByLibrary && n <= MostByLibrary<T>(device_.tuning())) {
    return FactorByLibrary(stream, n, a, lda, offset, pivots, info);
  }
  return FactorByKernels(stream, m, n, a, lda, offset, pivots, info);
}

template <typename T>
Status CudaLu<T>::FactorByLibrary(Stream stream, int64_t n, T* a, int64_t lda, int64_t offset,
                                  int32_t* pivots, int32_t* info) {
  constexpr cudaDataType kType = CudaType<T>::kValue;
  const Cusolver& library = Get<Cusolver>();
  SolverSpace space;
  JAXMG_RETURN_IF_ERROR(space.Open(device_, stream));
  auto query = [&]() -> Status {
    JAXMG_CHECK_CUDA(
        library.cusolverDnXgetrf_bufferSize(space.handle, space.params, n, n, kType, a, lda, kType,
                                            &space.device_bytes, &space.host_bytes),
        "getrf: matrix of order ", n);
    return Status::Ok();
  };
  JAXMG_RETURN_IF_ERROR(space.Size(device_, {kType, 'g', n, lda}, query));
  const size_t work_bytes = space.device_bytes;
  const size_t begin = (work_bytes + kAlignment - 1) / kAlignment * kAlignment;
  space.device_bytes = begin + n * sizeof(int64_t);
  JAXMG_RETURN_IF_ERROR(space.Allocate(device_, stream));
  auto* from_one = reinterpret_cast<int64_t*>(static_cast<char*>(space.device) + begin);
  // Checks first, because the library may treat NaN as zero.
  CudaStatus& status = device_.cuda_status();
  JAXMG_RETURN_IF_ERROR(status.CheckAllFinite<T>(stream, n, n, a, lda, info));
  JAXMG_CHECK_CUDA(
      library.cusolverDnXgetrf(space.handle, space.params, n, n, kType, a, lda, from_one, kType,
                               space.device, work_bytes, space.host, space.host_bytes, space.info),
      "getrf: matrix of order ", n);
  return status.CheckLuFactor<T>(stream, n, a, lda, offset, from_one, pivots, info);
}

template <typename T>
Status CudaLu<T>::FactorByKernels(Stream stream, int64_t m, int64_t n, T* a, int64_t lda,
                                  int64_t offset, int32_t* pivots, int32_t* info) {
  const int64_t k = std::min(m, n);
  int64_t width = 0;
  JAXMG_RETURN_IF_ERROR(LeafColumns(m, &width));
  JAXMG_RETURN_IF_ERROR(ReserveMoves(stream, std::max(k, width)));
  Panel panel = {stream, m, n, a, lda, offset, pivots, info, width};
  if (n <= width) return FactorLeaf(panel, 0, n);
  panel.n = k;
  const int64_t leaves = (k + width - 1) / width;
  JAXMG_RETURN_IF_ERROR(FactorHalves(panel, 0, leaves));
  return Step(panel, 0, leaves, n - k);
}

template <typename T>
Status CudaLu<T>::Swap(Stream stream, Order order, int64_t n, T* a, int64_t line, int64_t element,
                       int64_t offset, int64_t count, const int32_t* pivots) {
  if (n == 0) return Status::Ok();
  const bool backward = order == Order::kBackward;
  const int64_t pieces = (count + kLuSwaps - 1) / kLuSwaps;
  void* scratch = nullptr;
  JAXMG_RETURN_IF_ERROR(device_.Scratch(stream, 4 * kLuSwaps * sizeof(int32_t), &scratch));
  auto* from = static_cast<int32_t*>(scratch);
  int32_t* to = from + 2 * kLuSwaps;
  for (int64_t step = 0; step < pieces; ++step) {
    const int64_t begin = (backward ? pieces - 1 - step : step) * kLuSwaps;
    const int64_t end = std::min<int64_t>(begin + kLuSwaps, count);
    JAXMG_RETURN_IF_ERROR(PlanMoves(stream, order, begin, end, offset, pivots, from, to));
    JAXMG_RETURN_IF_ERROR(device_.LaunchBlocks(
        Kernel::move_rows, CudaType<T>::kLetter, stream, std::min<int64_t>(n, 4096), kThreads, n,
        static_cast<int>(end - begin), from, to, a + begin * line, line, element));
  }
  return Status::Ok();
}

template <typename T>
Status CudaLu<T>::PlanMoves(Stream stream, Order order, int64_t begin, int64_t end, int64_t offset,
                            const int32_t* pivots, int32_t* from, int32_t* to) {
  return device_.LaunchOne(Kernel::plan_swaps, 's', stream,
                           static_cast<int>(order == Order::kBackward),
                           static_cast<int>(end - begin), offset + begin, pivots + begin, from, to);
}

// Computes the source of each row of the columns, from the last interchange to the first, and takes
// the rows from a copy of a few columns, which stays in the L2 cache. Interchange by interchange,
// an element would be moved once for each later panel, each time separately.
template <typename T>
Status CudaLu<T>::SwapAllRows(Stream stream, const std::vector<MovedColumns<T>>& all, int64_t rows,
                              int64_t lda, int64_t count, const int32_t* pivots, T* buffer,
                              int64_t room) {
  void* scratch = nullptr;
  JAXMG_RETURN_IF_ERROR(
      device_.Scratch(stream, (4 * kLuSwaps + 2 * rows) * sizeof(int32_t), &scratch));
  auto* from = static_cast<int32_t*>(scratch);
  int32_t *to = from + 2 * kLuSwaps, *moves = to + 2 * kLuSwaps, *sources = moves + rows;
  for (int32_t* each : {moves, sources}) {
    JAXMG_RETURN_IF_ERROR(device_.LaunchElements(Kernel::count_up, 's', stream, rows, rows, each));
  }
  int64_t done = count;  // `sources` includes the interchanges from here on
  for (const MovedColumns<T>& columns : all) {
    while (done > columns.first) {
      const int64_t begin = std::max(columns.first, done - kLuSwaps);
      const int piece = static_cast<int>(done - begin);
      JAXMG_RETURN_IF_ERROR(PlanMoves(stream, Order::kForward, begin, done, 0, pivots, from, to));
      const auto map = [&](bool back) {
        return device_.LaunchElements(Kernel::map_moves, 's', stream, 2 * piece,
                                      static_cast<int>(back), 2 * piece, static_cast<int>(begin),
                                      from, to, moves);
      };
      JAXMG_RETURN_IF_ERROR(map(false));
      JAXMG_RETURN_IF_ERROR(
          device_.LaunchElements(Kernel::compose_moves, 's', stream, rows, rows, moves, sources));
      JAXMG_RETURN_IF_ERROR(map(true));
      done = begin;
    }
    const int64_t height = rows - columns.first, most = std::max<int64_t>(room / height, 1);
    for (int64_t j = 0; j < columns.n; j += most) {
      const int64_t n = std::min(most, columns.n - j);
      T* const target = columns.a + j * lda + columns.first;
      JAXMG_RETURN_IF_ERROR(
          device_.Copy(stream, Block(buffer, height, height, n), Block(target, lda, height, n)));
      JAXMG_RETURN_IF_ERROR(device_.LaunchBlocks(
          Kernel::take_rows, CudaType<T>::kLetter, stream,
          n * ((height + kTakenRows - 1) / kTakenRows), kThreads, height, columns.first,
          sources + columns.first, static_cast<const T*>(buffer), target, lda));
    }
  }
  return Status::Ok();
}

template <typename T>
Status CudaLu<T>::SwapRows(Stream stream, Order order, int64_t n, T* a, int64_t lda, int64_t offset,
                           int64_t count, const int32_t* pivots) {
  return Swap(stream, order, n, a, 1, lda, offset, count, pivots);
}

template <typename T>
Status CudaLu<T>::SwapColumns(Stream stream, Order order, int64_t m, T* a, int64_t lda,
                              int64_t count, const int32_t* pivots) {
  return Swap(stream, order, m, a, lda, 1, 0, count, pivots);
}

template <typename T>
Status CudaLu<T>::AddDeterminant(Stream stream, int64_t n, const T* u, int64_t ldu, int64_t offset,
                                 const int32_t* pivots, R* log_abs, T* sign) {
  if (n == 0) return Status::Ok();
  return device_.LaunchOne(Kernel::add_determinant, CudaType<T>::kLetter, stream, n, u, ldu, offset,
                           pivots, log_abs, sign);
}

#define JAXMG_INSTANTIATE(T) template class CudaLu<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
