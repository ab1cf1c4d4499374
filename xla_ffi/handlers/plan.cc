#include "xla_ffi/handlers/plan.h"

#include <complex>
#include <limits>

#include "xla_ffi/device/tunings.h"
#include "xla_ffi/engine/routines.h"
#include "xla_ffi/handlers/backends.h"
#include "xla_ffi/handlers/platform.h"

namespace jaxmg {
namespace {

// What a call takes of one rank.
struct RankNeeds {
  Tiles tiles;
  bool gathers;
  int64_t solver;  // bytes of the device's own solver of a whole matrix, about
  int64_t bytes;   // with those
};

// `results`: the elements of results that don't lie in A's place.
template <typename T>
RankNeeds NeedsOf(const RoutineSpace<T>& space, int64_t results) {
  const int64_t solver = space.solver * sizeof(T);
  return {space.tiles, space.gathers, solver,
          static_cast<int64_t>(space.bytes()) + solver + space.split_bytes +
              results * static_cast<int64_t>(sizeof(T))};
}

// A routine's, by query, sizes and ranks.
struct Potrs {
  template <typename T>
  static RankNeeds Needs(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    return NeedsOf<T>(PotrsSpace<T>(sizes, query.nrhs, ranks), query.n * query.nrhs);
  }
};

struct Potri {
  template <typename T>
  static RankNeeds Needs(const PlanQuery&, const Sizes& sizes, const Ranks& ranks) {
    return NeedsOf<T>(PotriSpace<T>(sizes, ranks), 0);
  }
};

struct Syevd {
  template <typename T>
  static RankNeeds Needs(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    RankNeeds needs =
        NeedsOf<T>(EigenproblemSpace<T>(sizes, query.vectors, {0, query.n}, ranks), 0);
    needs.bytes += query.n * sizeof(Real<T>);
    return needs;
  }
};

struct Sygvd {
  template <typename T>
  static RankNeeds Needs(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    RankNeeds needs = NeedsOf<T>(SygvdSpace<T>(sizes, query.vectors, {0, query.n}, ranks), 0);
    needs.bytes += query.n * sizeof(Real<T>) + SygstSpace<T>(sizes, ranks).bytes();
    return needs;
  }
};

struct Potrf {
  template <typename T>
  static RankNeeds Needs(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    const PotrfSpace<T> space(sizes, ranks);
    return NeedsOf<T>(space, space.tiles.has_overflow() ? space.tiles.width() * query.n : 0);
  }
};

struct Apply {
  template <typename T>
  static RankNeeds Needs(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks) {
    return NeedsOf<T>(ApplySpace<T>(sizes, query.nrhs, ranks), query.n * query.nrhs);
  }
};

template <typename Routine, typename T>
void AnswerFor(const PlanQuery& query, const Tuning& tuning, PlanAnswer* answer) {
  const Sizes sizes = {query.n, query.n, query.rows, query.tile,
                       static_cast<Precision>(query.products)};
  for (int rank = 0; rank < query.ranks; ++rank) {
    const RankNeeds needs =
        Routine::template Needs<T>(query, sizes, Ranks{query.ranks, rank, tuning});
    answer->tile = needs.tiles.width();
    answer->overflow_rows = needs.tiles.has_overflow() ? needs.tiles.width() : 0;
    answer->gathered = needs.gathers;
    if (rank == 0) answer->solver = needs.solver;
    answer->bytes.push_back(needs.bytes);
  }
}

// False where there is no such dtype.
template <typename Routine>
bool Answer(const PlanQuery& query, const Tuning& tuning, PlanAnswer* answer) {
  if (query.dtype == "float32") {
    AnswerFor<Routine, float>(query, tuning, answer);
  } else if (query.dtype == "float64") {
    AnswerFor<Routine, double>(query, tuning, answer);
  } else if (query.dtype == "complex64") {
    AnswerFor<Routine, std::complex<float>>(query, tuning, answer);
  } else if (query.dtype == "complex128") {
    AnswerFor<Routine, std::complex<double>>(query, tuning, answer);
  } else {
    return false;
  }
  return true;
}

constexpr struct {
  const char* name;
  bool (*answer)(const PlanQuery&, const Tuning&, PlanAnswer*);
} kRoutines[] = {{"potrs", &Answer<Potrs>}, {"potri", &Answer<Potri>},    {"syevd", &Answer<Syevd>},
                 {"syevx", &Answer<Syevd>}, {"sygvd", &Answer<Sygvd>},    {"sygvx", &Answer<Sygvd>},
                 {"potrf", &Answer<Potrf>}, {"cho_solve", &Answer<Apply>}};

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
    if (!known.answer(query, tuning, answer)) {
      return Error(Code::kInvalidArgument, name, ": no dtype '", query.dtype, "'");
    }
    if (backend != kNative) answer->bytes.clear();
    return Status::Ok();
  }
  return Error(Code::kInvalidArgument, "there is no plan for '", query.routine, "'");
}

}  // namespace jaxmg
