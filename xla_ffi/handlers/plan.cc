#include "xla_ffi/handlers/plan.h"

#include <algorithm>
#include <limits>

#include "xla_ffi/device/tunings.h"
#include "xla_ffi/engine/qr/whole_qr.h"
#include "xla_ffi/handlers/handlers.h"
#include "xla_ffi/handlers/platform/platform.h"

namespace jaxmg {

namespace {

Tuning OwnTuning() { return std::string(kPlatform) == "cpu" ? HostTuning() : CudaTuning(); }

}  // namespace

bool OneRankFactors(int64_t n, int64_t block, int ranks) {
  return IsWholeQr({n, block, 0, 0, false, true}, ranks, OwnTuning());
}

int64_t WholeSvdOrder() { return OwnTuning().svd.whole_order; }

int64_t StagedEigenOrder() {
  const Tuning tuning = OwnTuning();
  const auto [least, most] =
      std::minmax({tuning.eigen.spread, tuning.eigen.spread_values, tuning.eigen.spread_complex,
                   tuning.eigen.stages_alone, tuning.eigen.stages_alone_values});
  return least == 0 ? 0 : most;
}

Status AnswerPlan(const PlanQuery& query, PlanAnswer* answer) {
  const char* name = query.routine.c_str();
  const Routine* routine = FindRoutine(query.routine);
  if (routine == nullptr || routine->plan == nullptr) {
    return Error(Code::kInvalidArgument, "there is no plan for '", query.routine, "'");
  }
  size_t backend = 0;
  JAXMG_RETURN_IF_ERROR(FindBackend(name, routine->backends, query.backend, &backend));
  const std::string platform = query.platform.empty() ? kPlatform : query.platform;
  if (platform != "cpu" && platform != "gpu") {
    return Error(Code::kInvalidArgument, name, ": unknown platform '", platform, "'");
  }
  const Tuning tuning = platform == "gpu" ? CudaTuning() : HostTuning();
  // The upper limit also keeps products of these sizes within 64 bits.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  for (int64_t size : {query.m, query.n, query.block, int64_t{query.ranks}}) {
    if (size < 1 || size > kMost) {
      return Error(Code::kInvalidArgument, name,
                   ": sizes must be from 1 to 2^31 - 1; got m = ", query.m, ", n = ", query.n,
                   ", block = ", query.block, ", ranks = ", query.ranks);
    }
  }
  if (query.block * query.ranks < query.m || query.tile < 0 || query.nrhs < 0 ||
      query.nrhs > kMost) {
    return Error(Code::kInvalidArgument, name,
                 ": the blocks must hold m rows, and tile and nrhs must be 0 or more; got ",
                 query.ranks, " blocks of ", query.block, " rows for m = ", query.m,
                 ", tile = ", query.tile, ", nrhs = ", query.nrhs);
  }
  if (query.products < 0 || query.products > static_cast<int64_t>(Precision::kChosen)) {
    return Error(Code::kInvalidArgument, name, ": there is no precision ", query.products);
  }
  JAXMG_RETURN_IF_ERROR(routine->plan(query, tuning, answer));
  if (query.backend != kNative) answer->bytes.clear();
  return Status::Ok();
}

}  // namespace jaxmg
