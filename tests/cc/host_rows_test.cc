// Chunks of a tall matrix in host memory: R and Q^H b beside the load of the next chunk, on the
// host and on a device with streams; calls that are invalid; rings for pageable memory.
#include "xla_ffi/engine/offload/host_rows.h"

#include <cmath>
#include <complex>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/devices/failing_device.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/tall_problem.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/tunings.h"
#include "xla_ffi/engine/offload/host_ring.h"

namespace jaxmg {
namespace {

using namespace testing;

constexpr int32_t kId = 3;

std::unique_ptr<Device> OnThreads(int) { return NewAsyncDevice(NewHostDevice(), HostTuning()); }

// A call on `rows` rows of n columns, with buffers for the next chunk.
template <typename T>
struct Call {
  Call(int64_t rows, int64_t n, int64_t nrhs)
      : a(Normal<T>(rows, n)),
        b(Normal<T>(rows, nrhs, 2)),
        following(Normal<T>(rows, n, 3)),
        next_a(rows * n, NaN<T>()),
        next_b(rows * nrhs, NaN<T>()),
        r(n * n, NaN<T>()),
        c(n * nrhs, NaN<T>()),
        powers(nrhs, 77) {
    const size_t width = n * sizeof(T);
    // All rows but the first one, of which one and the others are two pieces.
    const Bytes2D one = Block(&following.at(1, 0), n, n, 1);
    const Bytes2D others = Block(&following.at(2, 0), n, n, rows - 2);
    chunks.bytes = {next_a.size() * sizeof(T), next_b.size() * sizeof(T)};
    chunks.chunks = {{}, {{0, width, width, one}, {0, 2 * width, width, others}}};
  }

  Status Run(HostRowsCall call, const DeviceMaker& make) {
    auto kept = std::make_shared<const HostChunks>(chunks);
    const auto outcomes = RunRanks(
        1,
        [&](const RankContext& context) {
          return HostRowsRoutine<T>(
              context, {{{a.columns, a.rows, 0, b.columns, true, false},
                         a.data.data(),
                         b.data.data(),
                         nullptr,
                         nullptr,
                         r.data(),
                         c.data(),
                         &power,
                         powers.data()},
                        reinterpret_cast<const int32_t*>(&call),
                        {next_a.data(), next_b.data()},
                        {static_cast<int64_t>(next_a.size()), static_cast<int64_t>(next_b.size())},
                        {next_a.data(), next_b.data()},
                        [kept](int32_t id, std::shared_ptr<const HostChunks>* found) {
                          if (id != kId) return Error(Code::kInvalidArgument, "there is no ", id);
                          *found = kept;
                          return Status::Ok();
                        }});
        },
        kPatience, make);
    return outcomes[0];
  }

  Dense<T> a, b, following;
  std::vector<T> next_a, next_b, r, c;
  int32_t power = 77;
  std::vector<int32_t> powers;
  HostChunks chunks;
};

template <typename T>
void CheckCall(int64_t rows, int64_t n, int64_t nrhs, const DeviceMaker& make) {
  Call<T> call(rows, n, nrhs);
  const Status status = call.Run({kId, 1, 0, 0}, make);
  EXPECT(status.ok()) << status.message();
  for (int64_t i = 0; i < rows * n; ++i) {
    EXPECT(i < n ? call.next_a[i] != call.next_a[i] : call.next_a[i] == call.following.data[i]);
  }
  // R^H R = A^H A of the divided A. R is row-major.
  const Dense<T> expected = AdjointProduct(call.a, call.a);
  Dense<T> factor(n, n);
  factor.data = call.r;
  const Dense<T> found = AdjointProduct(factor, factor);
  const Real<T> scale = std::ldexp(Real<T>(1), 2 * call.power);
  for (int64_t i = 0; i < n * n; ++i) {
    const double flaw = std::abs(found.data[i] * scale - expected.data[i]);
    EXPECT(flaw <= 1e3 * rows * std::numeric_limits<Real<T>>::epsilon()) << flaw;
  }
}

TEST(AChunkIsFactoredWhileTheNextOneIsLoaded) {
  for (const DeviceMaker& make : {DeviceMaker(OnHost), DeviceMaker(OnThreads)}) {
    for (const int64_t n : {1, 3, 8}) {
      CheckCall<double>(5 * n + 2, n, 2, make);
      CheckCall<std::complex<float>>(3 * n + 1, n, 1, make);
    }
  }
}

TEST(NothingIsComputedOfNoRows) {
  Call<double> call(9, 3, 2);
  EXPECT(call.Run({kId, 1, 1, 0}, OnThreads).ok());
  for (const double value : call.r) EXPECT(value == 0);
  for (const double value : call.c) EXPECT(value == 0);
  EXPECT(call.power == 0 && call.powers == std::vector<int32_t>(2, 0));
  EXPECT(call.next_a[3] == call.following.at(1, 0));
  Call<double> other(9, 3, 2);
  EXPECT(other.Run({0, -1, 1, 0}, OnHost).ok());  // loads nothing, so the id doesn't matter
}

TEST(InvalidCalls) {
  Call<double> call(9, 3, 2);
  EXPECT(call.Run({kId + 1, 0, 0, 0}, OnHost).code() == Code::kInvalidArgument);
  const Status beyond = call.Run({kId, 2, 0, 0}, OnHost);
  EXPECT(beyond.message() ==
         "host_rows: the matrix in host memory has 2 chunks, but the call loads chunk 2")
      << beyond.message();
  call.chunks.bytes[1] += 8;
  const Status small = call.Run({kId, 0, 0, 0}, OnHost);
  EXPECT(small.code() == Code::kInvalidArgument) << small.message();
}

TEST(EachFailureOfAChunkIsReportedAndTheNextCallWorks) {
  for (const DeviceMaker& make : {DeviceMaker(OnHost), DeviceMaker(OnThreads)}) {
    Call<double> call(17, 3, 2);
    for (int64_t at = 0;; ++at) {
      Fault fault = {at};
      const Status status =
          call.Run({kId, 1, 0, 0}, [&](int rank) { return NewFailingDevice(make(rank), fault); });
      if (!fault.occurred()) {
        EXPECT(status.ok() && at > 3) << status.message();
        break;
      }
      EXPECT(status.message().find("on purpose") != std::string::npos) << status.message();
      CheckCall<double>(17, 3, 2, make);
    }
  }
}

TEST(EachFailureOfARingIsReported) {
  const int64_t height = 300, columns = 7;
  std::vector<char> memory(8 * 192), from(height * columns, 3), on_device(from.size()),
      to(from.size());
  const Bytes2D there = Block(on_device.data(), height, height, columns);
  const auto run = [&](Device& device) -> Status {
    JAXMG_RETURN_IF_ERROR(device.ReserveTransfers());
    HostRing ring(device, {memory.data(), memory.size(), 2}, 0, 1);
    JAXMG_RETURN_IF_ERROR(ring.Prepare());
    JAXMG_RETURN_IF_ERROR(
        ring.Load(Stream::kLoad, there, Block(from.data(), height, height, columns)));
    JAXMG_RETURN_IF_ERROR(device.Synchronize());
    JAXMG_RETURN_IF_ERROR(
        ring.Store(Stream::kStore, Block(to.data(), height, height, columns), there));
    return ring.Drain();
  };
  for (int64_t at = 0;; ++at) {
    Fault fault = {at};
    const auto device = NewAsyncDevice(NewHostDevice(), HostTuning());
    FailingDevice failing(*device, fault);
    const Status status = run(failing);
    EXPECT(device->Synchronize().ok());
    if (!fault.occurred()) {
      EXPECT(status.ok() && to == from && at > 30) << status.message();
      break;
    }
    EXPECT(status.message() == "failed on purpose") << status.message();
  }
}

TEST(ARingCopiesBlocksOfAnySize) {
  for (const int64_t bytes : {8 * 64, 8 * 192, 8 * 64 * 100}) {
    std::vector<char> memory(bytes);
    const int64_t height = 300, columns = 7, ld = 310;
    std::vector<char> from(ld * columns), on_device(height * columns), to(ld * columns, 1);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 7 % 101);
    const auto device = NewAsyncDevice(NewHostDevice(), HostTuning());
    EXPECT(device->ReserveTransfers().ok());
    HostRing ring(*device, {memory.data(), memory.size(), 2}, 0, 1);
    EXPECT(ring.works() && ring.Prepare().ok());
    const Bytes2D there = Block(on_device.data(), height, height, columns);
    EXPECT(ring.Load(Stream::kLoad, there, Block(from.data(), ld, height, columns)).ok());
    EXPECT(device->Synchronize().ok());
    EXPECT(ring.Store(Stream::kStore, Block(to.data(), ld, height, columns), there).ok());
    EXPECT(ring.Drain().ok());
    for (int64_t i = 0; i < ld * columns; ++i) {
      EXPECT(to[i] == (i % ld < height ? from[i] : 1)) << bytes << " bytes, at " << i;
    }
    EXPECT(device->Synchronize().ok());
  }
}

TEST(NoRingWithoutMemory) {
  const auto device = NewHostDevice();
  EXPECT(!HostRing(*device, {}, 0, 1).works());
  char memory[100];
  EXPECT(!HostRing(*device, {memory, sizeof(memory), 1}, 0, 1).works());
}

}  // namespace
}  // namespace jaxmg
