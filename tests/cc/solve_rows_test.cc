// Products of row-distributed matrices with a factor's inverse.
#include "xla_ffi/engine/cholesky/solve_rows.h"

#include <complex>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"
#include "tests/cc/support/testing.h"

namespace jaxmg {
namespace {

using namespace testing;

// Returns a lower triangle with small elements, a diagonal of at least 2, and NaN above it.
template <typename T>
std::vector<T> Factor(int64_t n) {
  std::mt19937_64 random(n);
  std::vector<T> l(n * n, NaN<T>());
  for (int64_t j = 0; j < n; ++j) {
    l[j * n + j] = T(2 + Real<T>(j % 3));
    for (int64_t i = j + 1; i < n; ++i) l[j * n + i] = Random<T>(random) / Real<T>(n);
  }
  return l;
}

template <typename T>
void Check(int64_t n, int ranks, int64_t width, Op op, const DeviceMaker& make = OnHost) {
  const std::vector<T> l = Factor<T>(n);
  const int64_t block = (n + ranks - 1) / ranks + 1;
  auto solve = [&](const RankContext& context) -> Status {
    const int rank = context.comm.rank();
    const Tiles tiles(n, block, ranks, width);
    std::vector<T> a(block * n, NaN<T>()), overflow(n * tiles.width(), NaN<T>());
    const Matrix<T> factor = {tiles, rank, n, a.data(), overflow.data()};
    for (int64_t p = rank; p < tiles.nonempty(); p += ranks) {
      std::copy_n(l.data() + tiles.offset(p) * n, tiles.width(p) * n, factor.tile(p));
    }
    const int64_t rows = (rank * 3 + 2) % 5;  // none on rank 1
    std::mt19937_64 random(rank);
    std::vector<T> x(rows * n), workspace(SolveRowsWorkspace(tiles), NaN<T>());
    for (T& value : x) value = Random<T>(random);
    const std::vector<T> b = x;
    JAXMG_RETURN_IF_ERROR(SolveRows(context, factor, op, rows, x.data(), workspace.data()));
    JAXMG_RETURN_IF_ERROR(context.device.Synchronize());
    JAXMG_RETURN_IF_ERROR(context.comm.Agree(Status::Ok()));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        T sum = 0;  // an element of x L^H or x L
        for (int64_t k = 0; k < n; ++k) {
          if (op == Op::kConjTrans ? k <= j : k >= j) {
            sum += x[k * rows + i] * (op == Op::kConjTrans ? Conj(l[k * n + j]) : l[j * n + k]);
          }
        }
        EXPECT(std::abs(sum - b[j * rows + i]) <= 50 * kEps<T> * Real<T>(n + 1))
            << "n " << n << ", " << ranks << " ranks, column " << j;
      }
    }
    return Status::Ok();
  };
  for (const Status& status : RunRanks(ranks, solve, kPatience, make)) {
    EXPECT(status.ok()) << status.message();
  }
}

template <typename T>
void CheckAll() {
  for (const Op op : {Op::kNone, Op::kConjTrans}) {
    for (const int64_t n : {1, 2, 7, 30}) {
      for (int ranks = 1; ranks <= 5; ++ranks) {
        for (const int64_t width : {1, 3, 50}) Check<T>(n, ranks, width, op);
      }
    }
  }
}

TEST(RowsAreSolvedOnTheirRanks) {
  CheckAll<float>();
  CheckAll<double>();
  CheckAll<std::complex<float>>();
  CheckAll<std::complex<double>>();
}

TEST(OnConcurrentStreams) {
  const auto make = [](int) -> std::unique_ptr<Device> {
    return NewAsyncDevice(NewHostDevice(), Tuning());
  };
  for (const Op op : {Op::kNone, Op::kConjTrans}) {
    for (int ranks = 1; ranks <= 4; ++ranks) Check<double>(40, ranks, 3, op, make);
  }
}

}  // namespace
}  // namespace jaxmg
