#include "xla_ffi/handlers/plan.h"

#include <complex>
#include <limits>

#include "xla_ffi/device/tunings.h"
#include "xla_ffi/engine/core/plan.h"
#include "xla_ffi/handlers/backends.h"
#include "xla_ffi/handlers/platform.h"

namespace jaxmg {
namespace {

constexpr struct {
  const char* name;
  Routine routine;
} kRoutines[] = {{"potrs", Routine::kPotrs}, {"potri", Routine::kPotri},
                 {"syevd", Routine::kSyevd}, {"syevx", Routine::kSyevd},
                 {"sygvd", Routine::kSygvd}, {"sygvx", Routine::kSygvd},
                 {"potrf", Routine::kPotrf}, {"cho_solve", Routine::kApply}};

// Results that don't lie in A's place, each an allocation.
template <typename T>
int64_t ResultBytes(Routine routine, const PlanQuery& query, int64_t overflow_rows) {
  const int64_t x = query.n * query.nrhs * sizeof(T);
  switch (routine) {
    case Routine::kPotrs:
    case Routine::kApply:
      return x;
    case Routine::kSyevd:
    case Routine::kSygvd:
      return query.n * sizeof(Real<T>);
    case Routine::kPotrf:
      return overflow_rows * query.n * sizeof(T);
    default:
      return 0;
  }
}

template <typename T>
void Answer(Routine routine, const PlanQuery& query, const Tuning& tuning, PlanAnswer* answer) {
  const auto precision = static_cast<Precision>(query.products);
  const Sizes sizes = {query.n, query.rows, query.tile, query.nrhs, query.vectors, 0, 0, precision};
  for (int rank = 0; rank < query.ranks; ++rank) {
    const Plan<T> plan(routine, sizes, query.ranks, rank, tuning);
    answer->tile = plan.tiles.width();
    answer->overflow_rows = plan.tiles.has_overflow() ? plan.tiles.width() : 0;
    answer->gathered = plan.gathers;
    if (rank == 0) answer->solver = static_cast<int64_t>(plan.solver * sizeof(T));
    size_t bytes = plan.bytes(query.ranks) + plan.solver * sizeof(T) + plan.split_bytes;
    if (routine == Routine::kSygvd) {
      bytes += Plan<T>(Routine::kSygst, sizes, query.ranks, rank, tuning).bytes(query.ranks);
    }
    answer->bytes.push_back(static_cast<int64_t>(bytes) +
                            ResultBytes<T>(routine, query, answer->overflow_rows));
  }
}

}  // namespace

Status AnswerPlan(const PlanQuery& query, PlanAnswer* answer) {
  const char* name = query.routine.c_str();
  Backend backend;
  JAXMG_RETURN_IF_ERROR(FindBackend(name, query.backend, &backend));
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
  for (const auto& known : kRoutines) {
    if (query.routine != known.name) continue;
    if (query.dtype == "float32") {
      Answer<float>(known.routine, query, tuning, answer);
    } else if (query.dtype == "float64") {
      Answer<double>(known.routine, query, tuning, answer);
    } else if (query.dtype == "complex64") {
      Answer<std::complex<float>>(known.routine, query, tuning, answer);
    } else if (query.dtype == "complex128") {
      Answer<std::complex<double>>(known.routine, query, tuning, answer);
    } else {
      return Error(Code::kInvalidArgument, name, ": no dtype '", query.dtype, "'");
    }
    if (backend != kNative) answer->bytes.clear();
    return Status::Ok();
  }
  return Error(Code::kInvalidArgument, "there is no plan for '", query.routine, "'");
}

}  // namespace jaxmg
