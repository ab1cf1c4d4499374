// The exchange between a distribution by rows and one by columns.
#include "xla_ffi/engine/core/exchange.h"

#include <complex>
#include <vector>

#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/testing.h"

namespace jaxmg {
namespace {

using namespace testing;

template <typename T>
T Element(int64_t i, int64_t j) {
  return T(static_cast<Real<T>>(i * 1000 + j));
}

template <typename T>
void Check(const Distribution& rows, const Distribution& columns, int ranks, int64_t staging_size) {
  const auto statuses = RunRanks(ranks, [&](const RankContext& context) -> Status {
    const int rank = context.comm.rank();
    const int64_t height = rows.width(rank), width = columns.width(rank), ldq = height + 2;
    std::vector<Real<T>> q(ldq * columns.count, NaN<Real<T>>());
    for (int64_t j = 0; j < columns.count; ++j) {
      for (int64_t i = 0; i < height; ++i) {
        q[j * ldq + i] = Element<Real<T>>(rows.begin(rank) + i, j);
      }
    }
    std::vector<T> z(rows.count * width, NaN<T>()), staging(staging_size);
    JAXMG_RETURN_IF_ERROR(RowsToColumns<T>(context, rows, columns, q.data(), ldq, z.data(),
                                           staging.data(), staging_size));
    int wrong = 0;
    for (int64_t j = 0; j < width; ++j) {
      for (int64_t i = 0; i < rows.count; ++i) {
        wrong += z[i * width + j] != Element<T>(i, columns.begin(rank) + j);
      }
    }
    EXPECT(wrong == 0) << wrong << " wrong columns on rank " << rank << " of " << ranks;
    if constexpr (kIsComplex<T>) {
      for (T& x : z) x *= T(0, 1);
    }
    std::vector<T> a(columns.count * height, NaN<T>());
    JAXMG_RETURN_IF_ERROR(ColumnsToRows(context, rows, columns, z.data(), a.data()));
    const T unit = [] {
      if constexpr (kIsComplex<T>) return T(0, 1);
      return T(1);
    }();
    for (int64_t i = 0; i < height; ++i) {
      for (int64_t j = 0; j < columns.count; ++j) {
        wrong += a[i * columns.count + j] != unit * Element<T>(rows.begin(rank) + i, j);
      }
    }
    EXPECT(wrong == 0) << wrong << " wrong rows on rank " << rank << " of " << ranks;
    std::vector<T> again(z.size(), NaN<T>());
    JAXMG_RETURN_IF_ERROR(RowsToColumns(context, rows, columns, a.data(), again.data()));
    EXPECT(again == z) << "rank " << rank << " of " << ranks;
    return context.comm.Agree(Status::Ok());
  });
  for (const Status& status : statuses) EXPECT(status.ok()) << status.message();
}

template <typename T>
void CheckAll() {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (const int64_t n : {1, 2, 5, 13, 40}) {
      for (const int64_t m : {int64_t{1}, (n + 1) / 2, n}) {
        for (const int64_t padding : {0, 2}) {
          const Distribution rows = {n, (n + ranks - 1) / ranks + padding};
          const Distribution columns = {m, (m + ranks - 1) / ranks};
          for (const int64_t room : {MinimumStaging(rows), 7 * rows.block + 1, n * n + 50}) {
            Check<T>(rows, columns, ranks, room);
          }
        }
      }
    }
  }
}

TEST(RowsBecomeColumnsAndBack) {
  CheckAll<float>();
  CheckAll<double>();
  CheckAll<std::complex<float>>();
  CheckAll<std::complex<double>>();
}

}  // namespace
}  // namespace jaxmg
