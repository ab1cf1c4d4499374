// The kernels for the merges of divide and conquer, run on the host.
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "tests/cc/support/host_cuda/host_cuda.h"
#include "tests/cc/support/secular_problem.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#include "xla_ffi/device/cuda/eigen/secular.cuh"
#pragma GCC diagnostic pop

namespace jaxmg::testing {
namespace {

using host_cuda::Launch;

// Launches the kernels like CudaSecular, but with few threads, which take less time here.
template <typename R>
class EmulatedSecular : public SecularKernels<R> {
 public:
  explicit EmulatedSecular(unsigned threads) : threads_(threads) {}

  Status Roots(Stream, int64_t k, int64_t begin, int64_t end, const R* d, const R* z, R rho,
               int limit, R* origin, R* tau, R* roots, int32_t* info) override {
    Launch(Blocks(end - begin), threads_, 1,
           [&] { kernels::SecularRoots(k, begin, d, z, rho, limit, origin, tau, roots, info); });
    return Status::Ok();
  }

  Status RefineZ(Stream, int64_t k, int64_t begin, int64_t end, const int32_t* order, const R* d,
                 const R* z, R rho, const R* origin, const R* tau, R* refined) override {
    Launch(Blocks(end - begin), threads_, 1,
           [&] { kernels::RefineZ(k, begin, order, d, z, rho, origin, tau, refined); });
    return Status::Ok();
  }

  Status Vectors(Stream, int64_t k, int64_t begin, int64_t end, const R* d, const R* z,
                 const R* origin, const R* tau, R* u, int64_t ldu) override {
    Launch(Blocks(end - begin), threads_, 1,
           [&] { kernels::SecularVectors(k, begin, d, z, origin, tau, u, ldu); });
    return Status::Ok();
  }

  Status RotateColumns(Stream, int64_t rows, int64_t chains, const int32_t* starts,
                       const int32_t* first, const int32_t* second, const R* c, const R* s, R* q,
                       int64_t ldq) override {
    Launch(Blocks((rows + threads_ - 1) / threads_ * chains), threads_, 1,
           [&] { kernels::RotateColumns(rows, starts, first, second, c, s, q, ldq); });
    return Status::Ok();
  }

  Status CopyColumns(Stream, int64_t rows, int64_t columns, const int32_t* from, const R* source,
                     int64_t lds, const int32_t* to, R* target, int64_t ldt) override {
    const int64_t tiles =
        (rows + kTileEdge - 1) / kTileEdge * ((columns + kTileEdge - 1) / kTileEdge);
    Launch(Blocks(tiles), kTileEdge, kTileRows,
           [&] { kernels::ArrangeColumns(rows, columns, from, source, lds, to, target, ldt); });
    return Status::Ok();
  }

 private:
  static unsigned Blocks(int64_t blocks) { return static_cast<unsigned>(blocks); }

  const unsigned threads_;
};

constexpr unsigned kFew = 8;

// Uses fewer orders than the host device's test: emulated threads are slow, and every root runs the
// same code.
template <typename R>
void CheckOrders() {
  EmulatedSecular<R> few(kFew), many(kSecularThreads);
  CheckMerges(few, {1, 2, 3, 9});
  std::mt19937_64 random(5);
  CheckMerge<R>(few, 150, true, 1, random);
  // As many threads as on a GPU; most of them have no pole.
  CheckMerge<R>(many, 12, true, 1, random);
}

TEST(KernelsSolveMergesFloat32) { CheckOrders<float>(); }
TEST(KernelsSolveMergesFloat64) { CheckOrders<double>(); }

// Sums don't depend on the order of threads.
template <typename R>
void CheckAgain() {
  constexpr int64_t kOrder = 20;
  std::mt19937_64 random(6);
  const auto problem = SecularProblem<R>::Random(kOrder, true, 1, random);
  EmulatedSecular<R> kernels(16);
  auto run = [&] {
    std::vector<R> actual(4 * kOrder), u(kOrder * kOrder);
    R *origin = actual.data(), *tau = origin + kOrder, *roots = tau + kOrder, *z = roots + kOrder;
    std::vector<int32_t> order(kOrder);
    std::iota(order.begin(), order.end(), 0);
    int32_t info = 0;
    const R* d = problem.d.data();
    EXPECT(kernels
               .Roots(Stream::kMain, kOrder, 0, kOrder, d, problem.z.data(), 1, 100, origin, tau,
                      roots, &info)
               .ok());
    EXPECT(kernels
               .RefineZ(Stream::kMain, kOrder, 0, kOrder, order.data(), d, problem.z.data(), 1,
                        origin, tau, z)
               .ok());
    EXPECT(kernels.Vectors(Stream::kMain, kOrder, 0, kOrder, d, z, origin, tau, u.data(), kOrder)
               .ok());
    actual.insert(actual.end(), u.begin(), u.end());
    return actual;
  };
  EXPECT(run() == run());
}

TEST(ResultsAreReproducible) {
  CheckAgain<float>();
  CheckAgain<double>();
}

TEST(MissingConvergenceIsReportedInInfo) {
  EmulatedSecular<float> singles(kFew);
  EmulatedSecular<double> doubles(kFew);
  CheckLimit(singles);
  CheckLimit(doubles);
}

template <typename R>
void CheckMovedColumns() {
  EmulatedSecular<R> kernels(kFew);
  for (int64_t rows : {1, 50}) {
    CheckRotations(kernels, rows);
    CheckCopies(kernels, rows, 40);
  }
}

TEST(ColumnsAreRotatedInTurnAndCopied) {
  CheckMovedColumns<float>();
  CheckMovedColumns<double>();
}

}  // namespace
}  // namespace jaxmg::testing
