#include "xla_ffi/device/cuda/qr/panel.h"

#include <algorithm>
#include <complex>

#include "xla_ffi/device/cuda/device.h"

namespace jaxmg {

template <typename T>
Status CudaPanel<T>::QrPanel(Stream stream, int64_t m, int64_t n, T* a, int64_t lda, T* t,
                             int64_t ldt) {
  if (m == 0 || n == 0) return Status::Ok();
  if (n > kPanelColumns) {
    return Error(Code::kInternal, "a panel must have at most ", kPanelColumns, " columns; got ", n);
  }
  int multiprocessors = 0;
  JAXMG_RETURN_IF_ERROR(device_.resources().Multiprocessors(&multiprocessors));
  // `owners` is the number of blocks that have rows. If there are several, one more block has none.
  const int64_t most = std::clamp(multiprocessors - 1, 1, kPanelBlocks);
  constexpr int64_t kBlockRows = 32 * kLaneRows<sizeof(T)>;
  // The kernel for complex128 isn't used: if the entries below the diagonal are near the smallest
  // number, and products aren't fused with sums, its result on the host is NaN.
  constexpr bool kUsed = sizeof(T) < 2 * sizeof(double);
  if (kUsed && m <= most * kBlockRows) {
    return InRegisters(stream, m, n, a, lda, t, ldt, multiprocessors);
  }
  const int64_t owners = std::clamp<int64_t>(m / kPanelRows, 1, most);
  const int64_t blocks = owners == 1 ? 1 : owners + 1;
  constexpr size_t kHead = 16;  // aligns the sums after it
  const size_t sums_bytes = 2 * n * (1 + owners) * sizeof(T);
  void* scratch = nullptr;
  JAXMG_RETURN_IF_ERROR(
      device_.Scratch(stream, kHead + sums_bytes + 2 * owners * sizeof(R), &scratch));
  auto* arrivals = static_cast<int32_t*>(scratch);
  char* sums = static_cast<char*>(scratch) + kHead;
  JAXMG_RETURN_IF_ERROR(device_.FillInt32(stream, arrivals, 1, 0));
  return device_.LaunchCooperative(Kernel::factor_panel, CudaType<T>::kLetter, stream, blocks,
                                   kPanelThreads, 0, m, static_cast<int>(n), a, lda, t, ldt,
                                   arrivals, sums, sums + sums_bytes);
}

// The number of blocks is a compromise: with more blocks communication takes longer, and with fewer
// blocks each one has more rows.
template <typename T>
Status CudaPanel<T>::InRegisters(Stream stream, int64_t m, int64_t n, T* a, int64_t lda, T* t,
                                 int64_t ldt, int multiprocessors) {
  constexpr int64_t kMostRows = 32 * kLaneRows<sizeof(T)>;
  const int64_t rows =
      std::clamp((m + kRegisterBlocks - 1) / kRegisterBlocks, kMostRows / 2, kMostRows);
  const int64_t most = std::clamp(multiprocessors - 1, 1, kPanelBlocks);
  const int64_t owners = std::clamp<int64_t>((m + rows - 1) / rows, 1, most);
  const int64_t blocks = multiprocessors > 1 ? owners + 1 : 1;
  const int64_t count = std::min(m, n) * (n + 1) * (owners + 1);
  void* numbers = nullptr;
  JAXMG_RETURN_IF_ERROR(device_.Scratch(stream, count * sizeof(T), &numbers));
  JAXMG_RETURN_IF_ERROR(device_.FillInt32(stream, static_cast<int32_t*>(numbers),
                                          count * sizeof(T) / sizeof(int32_t), -1));
  const int warps = static_cast<int>((n + kWarpColumns - 1) / kWarpColumns);
  return device_.LaunchCooperative(Kernel::factor_panel_in_registers, CudaType<T>::kLetter, stream,
                                   blocks, 32 * warps, 0, m, static_cast<int>(n), a, lda, t, ldt,
                                   numbers);
}

template <typename T>
Status CudaPanel<T>::UnpackReflectors(Stream stream, int64_t m, int64_t k, const T* a, int64_t lda,
                                      T* v, int64_t ldv) {
  return device_.LaunchElements(Kernel::unpack_reflectors, CudaType<T>::kLetter, stream, m * k, m,
                                k, a, lda, v, ldv);
}

template <typename T>
Status CudaPanel<T>::PackBand(Stream stream, int64_t m, int64_t n, int64_t k, const T* a,
                              int64_t lda, T* band, int64_t ldb) {
  return device_.LaunchElements(Kernel::pack_band, CudaType<T>::kLetter, stream, ldb * n, m, n, k,
                                a, lda, band, ldb);
}

template <typename T>
Status CudaPanel<T>::CheckFinite(Stream stream, int64_t m, int64_t n, const T* a, int64_t lda,
                                 int64_t offset, int32_t* first) {
  return device_.cuda_status().CheckFinite(stream, m, n, a, lda, offset, first);
}

template <typename T>
Status CudaPanel<T>::FromReal(Stream stream, int64_t m, int64_t n, const R* a, int64_t lda, T* b,
                              int64_t ldb) {
  return device_.LaunchElements(Kernel::from_real, CudaType<T>::kLetter, stream, m * n, m, n, a,
                                lda, b, ldb);
}

#define JAXMG_INSTANTIATE(T) template class CudaPanel<T>;
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
