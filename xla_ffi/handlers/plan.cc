#include "xla_ffi/handlers/plan.h"

#include <limits>

#include "xla_ffi/device/tunings.h"
#include "xla_ffi/handlers/handlers.h"
#include "xla_ffi/handlers/platform.h"

namespace jaxmg {
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
    return Error(Code::kInvalidArgument, name, ": no platform '", platform, "'");
  }
  const Tuning tuning = platform == "gpu" ? CudaTuning() : HostTuning();
  // Also so that no product of these sizes is beyond 64 bits.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  for (int64_t size : {query.n, query.rows, int64_t{query.ranks}}) {
    if (size < 1 || size > kMost) {
      return Error(Code::kInvalidArgument, name, ": n = ", query.n, ", rows = ", query.rows,
                   ", ranks = ", query.ranks);
    }
  }
  if (query.rows * query.ranks < query.n || query.tile < 0 || query.nrhs < 0 ||
      query.nrhs > kMost) {
    return Error(Code::kInvalidArgument, name, ": ", query.ranks, " x ", query.rows,
                 " rows, tile = ", query.tile, ", nrhs = ", query.nrhs, " for n = ", query.n);
  }
  if (query.products < 0 || query.products > static_cast<int64_t>(Precision::kChosen)) {
    return Error(Code::kInvalidArgument, name, ": products = ", query.products);
  }
  if (!routine->plan(query, tuning, answer)) {
    return Error(Code::kInvalidArgument, name, ": no dtype '", query.dtype, "'");
  }
  if (query.backend != kNative) answer->bytes.clear();
  return Status::Ok();
}

}  // namespace jaxmg
