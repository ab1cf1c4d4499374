// The kernel of column_solver.cuh, run on the host and compared to the host's TRSM.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/cc/support/host_cuda/cuda_types.h"
#include "tests/cc/support/host_cuda/host_cuda.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/host/device.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#include "xla_ffi/device/cuda/lu/column_solver.cuh"
#pragma GCC diagnostic pop

namespace jaxmg {
namespace {

using namespace testing;
using host_cuda::Cast;

// Checks L^-1 B for a random L of this order. Elements that the kernel must not read are NaN, and
// elements that it must not write are 7.
template <typename T>
void Check(int64_t order, int64_t columns) {
  using Solver = kernels::ColumnSolver<host_cuda::CudaType<T>>;
  const int64_t ldl = order + 3, ldb = order + 2;
  std::mt19937_64 random(order * 100 + columns);
  std::vector<T> l(ldl * order, NaN<T>()), b(ldb * columns, T(7));
  for (int64_t k = 0; k < order; ++k) {
    for (int64_t i = k + 1; i < order; ++i) l[i + k * ldl] = Random<T>(random);
  }
  // Keeps elements of L^-1 at a magnitude of about 1.
  for (T& x : l) x /= std::sqrt(static_cast<Real<T>>(order));
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = 0; i < order; ++i) b[i + j * ldb] = Random<T>(random);
  }
  std::vector<T> expected = b;
  const auto device = NewHostDevice();
  EXPECT(device->blas<T>()
             .Trsm(Stream::kMain, Side::kLeft, Op::kNone, order, columns, l.data(), ldl,
                   expected.data(), ldb, {Uplo::kLower, Diag::kUnit})
             .ok());

  constexpr int64_t kThreads = kColumnSolverThreads;
  host_cuda::Launch(static_cast<unsigned>((columns + kThreads - 1) / kThreads), kThreads, 1, [&] {
    Solver(static_cast<int>(order), columns, Cast(l.data()), ldl, Cast(b.data()), ldb).Run();
  });
  Real<T> difference = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference = std::max<Real<T>>(difference, std::abs(b[i] - expected[i]));
    if (std::isnan(std::abs(b[i]))) difference = std::numeric_limits<Real<T>>::infinity();
  }
  EXPECT(difference < 500 * kEps<T>) << order << " x " << columns << ": " << difference / kEps<T>;
}

template <typename T>
void CheckAll() {
  constexpr int64_t kOrder = kColumnSolverOrder<sizeof(T)>, kHalf = kOrder / 2;
  for (int64_t order : {int64_t{1}, int64_t{5}, kHalf, kHalf + 1, kOrder - 3, kOrder}) {
    Check<T>(order, 3);
  }
  Check<T>(kOrder, kColumnSolverThreads + 2);
}

TEST(AllOrders) {
  CheckAll<float>();
  CheckAll<double>();
  CheckAll<std::complex<float>>();
  CheckAll<std::complex<double>>();
}

}  // namespace
}  // namespace jaxmg
