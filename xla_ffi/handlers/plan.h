// What a call of a routine would need, before there is one: for Python. A routine's row (routine.h)
// has its PlanFunction, which computes with the routine's own workspace.
#ifndef JAXMG_XLA_FFI_HANDLERS_PLAN_H_
#define JAXMG_XLA_FFI_HANDLERS_PLAN_H_

#include <complex>
#include <cstdint>
#include <string>
#include <vector>

#include "xla_ffi/base/status.h"
#include "xla_ffi/engine/core/plan.h"

namespace jaxmg {

struct PlanQuery {
  std::string routine;  // as its row calls it
  std::string backend;
  std::string dtype;  // NumPy's name
  int64_t n, rows;    // the order, and rows on each rank
  int ranks;
  int64_t tile;  // 0: choose
  int64_t nrhs;
  bool vectors;          // of an eigenproblem
  std::string platform;  // "cpu" or "gpu"; empty: the plugin's own
  int64_t products;      // Precision
};

struct PlanAnswer {
  int64_t tile;           // the width that the call works with
  int64_t overflow_rows;  // of a factor's overflow tile on each rank
  bool gathered;          // one rank does it all
  // By rank: workspace, and results that don't lie in A's place. Empty where the backend doesn't
  // say before it has the matrix.
  std::vector<int64_t> bytes;
  int64_t solver = 0;  // of those of rank 0, about what the device's own solver asks for
};

// An impossible query is an error that says why.
Status AnswerPlan(const PlanQuery& query, PlanAnswer* answer);

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
  const auto size = static_cast<int64_t>(sizeof(T));
  const int64_t solver = space.solver * size;
  return {space.tiles, space.gathers, solver,
          static_cast<int64_t>(space.bytes()) + solver + space.split_bytes + results * size};
}

template <typename Needs, typename T>
void AnswerFor(const PlanQuery& query, const Tuning& tuning, PlanAnswer* answer) {
  const Sizes sizes = {query.n, query.n, query.rows, query.tile,
                       static_cast<Precision>(query.products)};
  for (int rank = 0; rank < query.ranks; ++rank) {
    const RankNeeds needs = Needs::template Of<T>(query, sizes, Ranks{query.ranks, rank, tuning});
    answer->tile = needs.tiles.width();
    answer->overflow_rows = needs.tiles.has_overflow() ? needs.tiles.width() : 0;
    answer->gathered = needs.gathers;
    if (rank == 0) answer->solver = needs.solver;
    answer->bytes.push_back(needs.bytes);
  }
}

// False where there is no such dtype.
using PlanFunction = bool(const PlanQuery& query, const Tuning& tuning, PlanAnswer* answer);

// Needs::Of<T>(query, sizes, ranks) are the RankNeeds of a routine.
template <typename Needs>
bool AnswerWith(const PlanQuery& query, const Tuning& tuning, PlanAnswer* answer) {
  if (query.dtype == "float32") {
    AnswerFor<Needs, float>(query, tuning, answer);
  } else if (query.dtype == "float64") {
    AnswerFor<Needs, double>(query, tuning, answer);
  } else if (query.dtype == "complex64") {
    AnswerFor<Needs, std::complex<float>>(query, tuning, answer);
  } else if (query.dtype == "complex128") {
    AnswerFor<Needs, std::complex<double>>(query, tuning, answer);
  } else {
    return false;
  }
  return true;
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_PLAN_H_
