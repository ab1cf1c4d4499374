// The outcome of a call is equal on all ranks.
#include "xla_ffi/engine/core/outcome.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/routine_cases.h"
#include "tests/cc/support/testing.h"
#include "xla_ffi/device/constants.h"
#include "xla_ffi/engine/routines.h"

namespace jaxmg {
namespace {

using namespace testing;

// A device whose rank coordinates differ from those that the host assumes.
class Misplaced : public ForwardingDevice {
 public:
  explicit Misplaced(Device& real) : ForwardingDevice(real), status_(real) { Offer(status_); }

 private:
  class MisplacedStatus : public StatusKernels {
   public:
    explicit MisplacedStatus(Device& real) : device_(real), real_(real.status()) {}
    Status InitInfo(Stream s, int32_t* info) override {
      return device_.FillInt32(s, info, 1, kMisplaced);
    }
    Status Digest(Stream s, const void* words, int64_t count, int32_t* digest) override {
      return real_.Digest(s, words, count, digest);
    }
    Status ReduceInfo(Stream s, const int32_t* pairs, int64_t stride, int64_t count,
                      int32_t* status) override {
      return real_.ReduceInfo(s, pairs, stride, count, status);
    }
    Status KeepNegative(Stream s, const int32_t* status, int32_t* failure) override {
      return real_.KeepNegative(s, status, failure);
    }
    Status SumReals(Stream s, const float* terms, int64_t stride, int64_t count,
                    float* sum) override {
      return real_.SumReals(s, terms, stride, count, sum);
    }
    Status SumReals(Stream s, const double* terms, int64_t stride, int64_t count,
                    double* sum) override {
      return real_.SumReals(s, terms, stride, count, sum);
    }
#define JAXMG_MULTIPLY(T)                                                                \
  Status Multiply(Stream s, const T* factors, int64_t stride, int64_t count, T* product) \
      override {                                                                         \
    return real_.Multiply(s, factors, stride, count, product);                           \
  }
    JAXMG_FOR_EACH_DTYPE(JAXMG_MULTIPLY)
#undef JAXMG_MULTIPLY
#define JAXMG_POISON_IF(T)                                                                  \
  Status PoisonIf(Stream s, const int32_t* status, int64_t m, int64_t n, T* a, int64_t lda) \
      override {                                                                            \
    return real_.PoisonIf(s, status, m, n, a, lda);                                         \
  }
    JAXMG_FOR_EACH_DTYPE(JAXMG_POISON_IF)
#undef JAXMG_POISON_IF

   private:
    Device& device_;
    StatusKernels& real_;
  };
  MisplacedStatus status_;
};

TEST(AMisplacedRankIsAStatusOnAll) {
  constexpr int kRanks = 3;
  Problem<double> problem({20, kRanks, 4}), inverse({20, kRanks, 4}), eigen({20, kRanks, 4});
  std::vector<std::vector<double>> x(kRanks, std::vector<double>(20, 1.0)), w = x;
  const auto outcomes = RunOnDevices(kRanks, [&](const RankContext& context) -> Status {
    const int rank = context.comm.rank();
    Misplaced misplaced(context.device);
    const RankContext mine = {rank == 1 ? misplaced : context.device, context.comm};
    int32_t status[3] = {};
    double log_det = 0;
    JAXMG_RETURN_IF_ERROR(PotrsRoutine<double>(mine, problem.operand(rank, 4, &status[0]),
                                               {1, x[rank].data(), &log_det}));
    JAXMG_RETURN_IF_ERROR(PotriRoutine<double>(mine, inverse.operand(rank, 4, &status[1])));
    JAXMG_RETURN_IF_ERROR(
        SyevdRoutine<double>(mine, eigen.operand(rank, 4, &status[2]), true, w[rank].data()));
    for (int32_t value : status) EXPECT(value == kMisplaced) << value;
    return Status::Ok();
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT(outcomes[rank].ok()) << outcomes[rank].message();
    EXPECT(std::isnan(x[rank][0]) && std::isnan(w[rank][0]));
    EXPECT(std::isnan(inverse.blocks[rank][0]) && std::isnan(eigen.blocks[rank][0]));
  }
}

}  // namespace
}  // namespace jaxmg
