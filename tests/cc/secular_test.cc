// The host's kernels for the merges of divide and conquer: roots, the refined z, vectors and
// columns.
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/cc/support/secular_problem.h"
#include "xla_ffi/device/host/device.h"

namespace jaxmg::testing {
namespace {

template <typename R>
struct Host {
  std::unique_ptr<Device> device = NewHostDevice();
  SecularKernels<R>& kernels = *device->template eigen<R>().secular;
};

const std::vector<int64_t> kOrders = {1, 2, 3, 4, 7, 8, 9, 17, 40, 65, 100};

TEST(MergesAreSolvedFloat32) { CheckMerges(Host<float>().kernels, kOrders); }
TEST(MergesAreSolvedFloat64) { CheckMerges(Host<double>().kernels, kOrders); }

TEST(MissingConvergenceIsReportedInInfo) {
  CheckLimit(Host<float>().kernels);
  CheckLimit(Host<double>().kernels);
}

TEST(ColumnsAreRotatedInTurnAndCopied) {
  for (int64_t rows : {1, 3, 300}) {
    CheckRotations(Host<float>().kernels, rows);
    CheckRotations(Host<double>().kernels, rows);
    CheckCopies(Host<double>().kernels, rows, 40);
  }
}

}  // namespace
}  // namespace jaxmg::testing
