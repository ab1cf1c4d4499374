// The kernels of kernels.cu that compute and reduce the status of a call, run on the host: checks,
// infos, digests and the outcome.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tests/cc/support/host_cuda/kernels_by_dtype.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/cuda/kernels.h"
#include "xla_ffi/device/host/device.h"

namespace jaxmg {
namespace {

// Tests the kernels that check a matrix and compute its log-determinant.
template <typename T>
void CheckChecks() {
  using R = RealType<T>;
  std::mt19937_64 random(9);
  const long long n = 300, offset = 1000;
  Matrix<T> a = Matrix<T>::Uniform(n, n, random);
  for (long long j = 0; j < n; ++j) a(j, j) = 1 + std::abs(a(j, j));
  R log_det = 0.5, expected = 0.5;
  Launch(1, kThreads, 1, [&] { Kernels<T>::add_log_det(n, a.device(), a.ld, &log_det); });
  for (long long j = 0; j < n; ++j) expected += 2 * std::log(std::real(a(j, j)));
  EXPECT(std::abs(log_det - expected) < 1e-4 * expected) << log_det << " not " << expected;

  auto factor = [&](int solver_info, int before) {
    int failed = -1, info = before;
    Launch(1, kThreads, 1, [&] {
      Kernels<T>::check_factor(n, a.device(), a.ld, offset, &solver_info, &failed, &info, nullptr);
    });
    return std::vector<int>{failed, info};
  };
  auto finite = [&] {
    int first = kNoInfo;
    Launch(2, 8, 1, [&] { Kernels<T>::check_finite(n, n, a.device(), a.ld, offset, &first); });
    return first;
  };
  EXPECT((factor(0, 5000) == std::vector<int>{0, 5000}) && finite() == kNoInfo);
  EXPECT((factor(7, 5000) == std::vector<int>{7, 1007}));
  EXPECT((factor(7, 12) == std::vector<int>{7, 12}));
  a(2, 4) = std::numeric_limits<R>::infinity();  // above the diagonal: not read
  EXPECT((factor(0, 5000) == std::vector<int>{0, 5000}) && finite() == kNoInfo);
  a(280, 280) = a(271, 270) = std::numeric_limits<R>::quiet_NaN();
  EXPECT((factor(0, 5000) == std::vector<int>{281, 1281}) && finite() == 1271);
  // With the log-determinant, as add_log_det adds it.
  for (long long j = 0; j < n; ++j) a(j, j) = T(R(1 + j % 7));
  R sum = 3, alone = 3;
  int failed = -1, info = kNoInfo, solver_info = 0;
  Launch(1, kThreads, 1, [&] {
    Kernels<T>::check_factor(n, a.device(), a.ld, offset, &solver_info, &failed, &info, &sum);
  });
  Launch(1, kThreads, 1, [&] { Kernels<T>::add_log_det(n, a.device(), a.ld, &alone); });
  EXPECT(failed == 0 && info == kNoInfo && sum == alone && sum > 3) << sum;
}

// Tests the outcome of three ranks in one kernel. It must equal reduce_info, keep_negative,
// sum_reals, multiply and poison_if in sequence.
template <typename T>
void CheckConclusions() {
  using R = RealType<T>;
  constexpr int kRanks = 3;
  for (int info : {kNoInfo, 7, kNotFinite, kMisplaced}) {
    for (bool differ : {false, true}) {
      for (bool keeps_positive : {false, true}) {
        alignas(16) int records[kRanks * kRecordWords] = {};
        R sum = 0;
        T product = T(1);
        for (int rank = 0; rank < kRanks; ++rank) {
          int* record = records + rank * kRecordWords;
          record[0] = rank == 1 ? info : kNoInfo;
          record[1] = differ && rank == 2 ? 5 : 4;
          *reinterpret_cast<R*>(record + kRecordLogDet) = R(rank + 0.5);
          *reinterpret_cast<T*>(record + kRecordSign) = T(R(rank - 3));
          sum += R(rank + 0.5);
          product *= T(R(rank - 3));
        }
        const int least = std::min(info, differ ? kDifferentOperands : kNoInfo);
        const int expected = least == kNoInfo ? 0 : least;
        int status = -5, failure = -5;
        R log_det = 9;
        std::vector<T> sign(1, T(9)), x(400, T(kUntouched));
        auto device = [](std::vector<T>& v) { return reinterpret_cast<DeviceType<T>*>(v.data()); };
        Launch(1, kThreads, 1, [&] {
          Kernels<T>::conclude(records, kRanks, &status, keeps_positive ? &failure : nullptr,
                               &log_det, device(sign), device(x), 399);
        });
        const bool fails = keeps_positive ? expected < 0 : expected != 0;
        EXPECT(status == expected) << status << " not " << expected;
        EXPECT(failure == (keeps_positive ? std::min(expected, 0) : -5)) << failure;
        EXPECT(fails ? std::isnan(log_det) : log_det == sum) << log_det;
        EXPECT(fails ? std::isnan(std::real(sign[0])) : sign[0] == product);
        for (int i = 0; i < 399; ++i) {
          EXPECT(fails ? std::isnan(std::real(x[i])) : x[i] == T(kUntouched)) << i;
        }
        EXPECT(x[399] == T(kUntouched));
        // Results with null pointers are not written.
        Launch(1, kThreads, 1, [&] {
          Kernels<T>::conclude(records, kRanks, &status, nullptr, nullptr, nullptr, nullptr, 0);
        });
        EXPECT(status == expected) << status;
      }
    }
  }
}

// Tests a library's LU factor, with pivots that count from 1, and the search for the first pivot
// that is zero or not finite.
template <typename T>
void CheckLuFactors() {
  using R = RealType<T>;
  std::mt19937_64 random(10);
  const long long n = 300, offset = 1000;
  std::vector<long long> from_one(n);
  std::iota(from_one.rbegin(), from_one.rend(), 1);
  Matrix<T> a = Matrix<T>::Uniform(n, n, random);
  for (long long j = 0; j < n; ++j) a(j, j) = T(3);
  auto info_after = [&](int before) {
    std::vector<int> pivots(n, -7);
    int info = before;
    Launch(1, kThreads, 1, [&] {
      Kernels<T>::check_lu_factor(n, a.device(), a.ld, offset, from_one.data(), pivots.data(),
                                  &info);
    });
    for (long long j = 0; j < n; ++j) EXPECT(pivots[j] == offset + from_one[j] - 1) << j;
    return info;
  };
  a(5, 4) = a(4, 5) = T(0);
  EXPECT(info_after(kNoInfo) == kNoInfo && info_after(17) == 17);
  a(280, 280) = a(270, 270) = T(0);
  EXPECT(info_after(kNoInfo) == 1271 && info_after(17) == 17);
  a(290, 290) = std::numeric_limits<R>::quiet_NaN();
  EXPECT(info_after(kNoInfo) == kNotFinite && info_after(17) == kNotFinite);
  a(290, 290) = std::numeric_limits<R>::infinity();
  EXPECT(info_after(kNoInfo) == kNotFinite);

  auto any_after = [&](int before) {
    int info = before;
    Launch(2, 8, 1, [&] { Kernels<T>::check_all_finite(n, n - 1, a.device(), a.ld, &info); });
    return info;
  };
  EXPECT(any_after(17) == kNotFinite);  // at (290, 290)
  a(290, 290) = T(0);
  a(3, n - 1) = std::numeric_limits<R>::quiet_NaN();  // after the checked columns
  EXPECT(any_after(17) == 17 && any_after(kNoInfo) == kNoInfo);
  a(3, n - 2) = std::numeric_limits<R>::quiet_NaN();
  EXPECT(any_after(17) == kNotFinite && any_after(kNoInfo) == kNotFinite);
}

JAXMG_TEST_KERNELS(ChecksFindTheFirstFailure, CheckChecks)
JAXMG_TEST_KERNELS(ConcludesAtOnce, CheckConclusions)
JAXMG_TEST_KERNELS(FactorsOfALibrary, CheckLuFactors)

// Digests equal the host device's, for every grid.
TEST(Digests) {
  std::mt19937_64 random(5);
  std::vector<unsigned> words(1000);
  for (unsigned& word : words) word = static_cast<unsigned>(random());
  auto digest = [&](unsigned blocks) {
    int result = 0;
    Launch(blocks, 8, 1, [&] { kernels::jaxmg_digest(words.data(), words.size(), &result); });
    return result;
  };
  int32_t expected = 0;
  EXPECT(
      NewHostDevice()->status().Digest(Stream::kMain, words.data(), words.size(), &expected).ok());
  EXPECT(digest(1) == expected && digest(7) == expected);
  for (size_t i : {0, 499, 999}) {
    words[i] ^= 1u << 31;
    EXPECT(digest(3) != expected) << i;
    words[i] ^= 1u << 31;
  }
}

TEST(Places) {
  const int place[2] = {2, 1};
  for (int rank : {2, 0}) {
    for (int group : {1, 0}) {
      int record[] = {-1, -1, -1, -1, -1}, stale = 0;
      Launch(1, 8, 1,
             [&] { kernels::jaxmg_init_info(place, rank, group, record, &stale, 4, 2, 77); });
      const bool right = rank == 2 && group == 1;
      EXPECT(record[0] == (right ? kNoInfo : kMisplaced) && stale == !right) << rank << group;
      EXPECT(record[1] == 0 && record[2] == 77 && record[3] == 0 && record[4] == -1);
    }
  }
  int info[] = {-1, -1};  // no coordinates to compare, and only one word
  Launch(1, 8, 1, [&] { kernels::jaxmg_init_info(nullptr, 5, 5, info, nullptr, 1, 0, 0); });
  EXPECT(info[0] == kNoInfo && info[1] == -1);
}

TEST(Infos) {
  std::vector<int> infos(20, -1);
  Launch(2, 8, 1, [&] { kernels::jaxmg_fill_int32(infos.data(), 19, kNoInfo); });
  EXPECT(infos[18] == kNoInfo && infos[19] == -1);
  int status = -1;
  // Infos and digests in pairs, three numbers apart.
  for (size_t i = 1; i < infos.size(); i += 3) infos[i] = 77;
  auto reduce = [&] {
    Launch(1, 8, 1, [&] { kernels::jaxmg_reduce_info(infos.data(), 3, 6, &status); });
    return status;
  };
  EXPECT(reduce() == 0);
  infos[3] = 40, infos[15] = 30, infos[5] = 1;
  EXPECT(reduce() == 30) << status;
  infos[13] = 78;
  EXPECT(reduce() == kDifferentOperands) << status;
  infos[9] = kMisplaced;
  EXPECT(reduce() == kMisplaced) << status;
  for (int value : {0, 7, -1, kMisplaced}) {
    int failure = 5;
    Launch(1, 8, 1, [&] { kernels::jaxmg_keep_negative(&value, &failure); });
    EXPECT(failure == (value < 0 ? value : 0)) << value << " became " << failure;
  }
  for (int first : {kNoInfo, 5}) {
    const int solver = 9;
    Launch(1, 8, 1, [&] { kernels::jaxmg_set_syevd_info(&first, &solver, &status); });
    EXPECT(status == (first == 5 ? 5 : 9)) << first;
  }
}

}  // namespace
}  // namespace jaxmg
