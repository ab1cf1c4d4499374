// The host device: copies, the checks around LAPACK, and the share of the cores that BLAS gets.
#include <cmath>
#include <complex>
#include <limits>
#include <thread>
#include <vector>

#include "tests/cc/reference_lapack.h"
#include "tests/cc/testing.h"
#include "xla_ffi/device/host.h"
#include "xla_ffi/device/lapack.h"

namespace jaxmg {
namespace {

TEST(CopyMovesBlocksBetweenPitches) {
  auto device = NewHostDevice();
  std::vector<float> from(5 * 4), to(7 * 4, -1);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
  const Status status =
      device->Copy(Stream::kMain, Block(to.data() + 2, 7, 3, 4), Block(from.data() + 1, 5, 3, 4));
  EXPECT(status.ok()) << status.message();
  for (int j = 0; j < 4; ++j) {
    for (int i = 0; i < 7; ++i) {
      const float expected = i >= 2 && i < 5 ? from[j * 5 + 1 + i - 2] : -1;
      EXPECT(to[j * 7 + i] == expected) << i << " " << j;
    }
  }
}

template <typename T>
void CheckAdd() {
  constexpr int64_t kM = 3, kN = 4, kLda = 5, kLdb = 7;
  std::vector<T> a(kLda * kN), b(kLdb * kN);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<Real<T>>(i + 1);
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<Real<T>>(100 * i);
  const std::vector<T> before = b;
  auto device = NewHostDevice();
  EXPECT(device->blas<T>().Add(Stream::kMain, kM, kN, a.data(), kLda, b.data(), kLdb).ok());
  for (int64_t j = 0; j < kN; ++j) {
    for (int64_t i = 0; i < kLdb; ++i) {
      const T expected = before[j * kLdb + i] + (i < kM ? a[j * kLda + i] : T(0));
      EXPECT(b[j * kLdb + i] == expected) << i << " " << j;
    }
  }
}

TEST(AddLeavesTheMarginAlone) {
  CheckAdd<float>();
  CheckAdd<double>();
  CheckAdd<std::complex<float>>();
  CheckAdd<std::complex<double>>();
}

TEST(AnAllocationThatIsTooLargeIsAnError) {
  auto device = NewHostDevice();
  std::unique_ptr<Buffer> buffer;
  for (size_t bytes :
       {std::numeric_limits<size_t>::max(), std::numeric_limits<size_t>::max() / 4}) {
    EXPECT(device->Allocate(bytes, &buffer).code() == Code::kResourceExhausted) << bytes;
  }
}

TEST(SizesBeyond32BitsAreRefused) {
  auto device = NewHostDevice();
  double x = 0;
  const int64_t large = int64_t{1} << 31;
  const Status status =
      device->blas<double>().Trsm(Stream::kMain, Side::kLeft, Op::kNone, 1, 1, &x, large, &x, 1);
  EXPECT(status.code() == Code::kInvalidArgument) << status.message();
}

TEST(PotrfCountsADiagonalThatIsNotFinite) {
  auto device = NewHostDevice();
  std::vector<double> a = {4, 2, 2, 0, std::numeric_limits<double>::infinity(), 1, 0, 0, 4};
  int32_t info = kNoInfo;
  const Status status =
      device->blas<double>().Potrf(Stream::kMain, 3, a.data(), 3, /*offset=*/10, &info);
  EXPECT(status.ok()) << status.message();
  EXPECT(info == 12) << info;
  for (double value : a) EXPECT(std::isnan(value));
}

int threads_now = 0;

TEST(RanksShareTheCoresAndGiveThemBack) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  HostBlasThreads() = {[] { return threads_now; }, [](int threads) { threads_now = threads; }};
  threads_now = cores;
  {
    BlasThreadShare one(1);
    EXPECT(threads_now == cores) << threads_now;
    {
      BlasThreadShare many(2 * cores);
      EXPECT(threads_now == 1) << threads_now;
    }
    EXPECT(threads_now == 1) << "a share grew while another call was under way";
  }
  EXPECT(threads_now == cores) << threads_now;
  // What the user has set lower stays.
  threads_now = 1;
  {
    BlasThreadShare one(1);
    EXPECT(threads_now == 1);
  }
  EXPECT(threads_now == 1);
  HostBlasThreads() = {};
}

struct InstallLapack {
  InstallLapack() { testing::InstallReferenceLapack(); }
} install_lapack;

}  // namespace
}  // namespace jaxmg
