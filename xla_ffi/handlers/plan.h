// Plan: computes a call's tile width and the memory that it needs, without running it. Python calls
// AnswerPlan. A routine's row (routine.h) holds its PlanFunction, which uses the routine's
// workspace struct.
#ifndef JAXMG_XLA_FFI_HANDLERS_PLAN_H_
#define JAXMG_XLA_FFI_HANDLERS_PLAN_H_

#include <complex>
#include <cstdint>
#include <string>
#include <vector>

#include "xla_ffi/base/status.h"
#include "xla_ffi/engine/core/for_all.h"
#include "xla_ffi/engine/core/plan.h"

namespace jaxmg {

// The engine's own solvers, which every plugin has.
inline constexpr const char* kNative = "native";

struct PlanQuery {
  std::string routine;  // the name in its row
  std::string backend;
  std::string dtype;  // NumPy's name
  int64_t m, n;       // rows and columns of A, without padding
  int64_t block;      // rows of A on each rank, padding included
  int ranks;
  int64_t tile;  // 0: choose
  int64_t nrhs;
  bool vectors;          // whether an eigenproblem returns eigenvectors
  std::string platform;  // "cpu" or "gpu"; empty: the plugin's own
  int64_t products;      // Precision
};

struct PlanAnswer {
  int64_t tile;           // the tile width of the call
  int64_t overflow_rows;  // rows of a factor's overflow tile on each rank
  bool gathered;          // whether one rank does all the work
  // By rank: bytes of workspace, and of results that don't overwrite A. Empty for a backend that
  // determines its workspace only during the call.
  std::vector<int64_t> bytes;
  int64_t solver = 0;  // the approximate part of bytes[0] that the device's own solver uses
};

// Returns whether, on the plugin's platform, one rank computes the QR of a matrix for all, by the
// device's library (whole_qr.h). The matrix has n columns and `block` rows on each rank.
bool OneRankFactors(int64_t n, int64_t block, int ranks);
// Returns the order up to which one rank computes a singular value decomposition (whole_svd.h).
int64_t WholeSvdOrder();
// The order from which the engine's stages solve an eigenproblem of any dtype on any ranks, with
// eigenvectors or without (eigenproblem.h); 0: there is none.
int64_t StagedEigenOrder();

// Returns an error that names the argument if the query is impossible.
Status AnswerPlan(const PlanQuery& query, PlanAnswer* answer);

// The memory that a call needs on one rank.
struct RankNeeds {
  Tiles tiles;
  bool gathers;
  int64_t solver;  // approximate bytes of the device's own solver of a whole matrix
  int64_t bytes;   // the total, including `solver`
};

// `results`: the number of elements of results that don't overwrite A.
template <typename T>
RankNeeds NeedsOf(const RoutineSpace<T>& space, int64_t results) {
  const auto size = static_cast<int64_t>(sizeof(T));
  const int64_t solver = space.solver * size;
  return {space.tiles, space.gathers, solver,
          static_cast<int64_t>(space.bytes()) + solver + space.split_bytes + results * size};
}

// The needs of a routine that solves or inverts, which one CPU device may do for all (for_all.h).
// All memory then counts as the first rank's. Assumes that all ranks are in one process.
// space(sizes, ranks) returns the routine's workspace.
template <typename T, typename Space>
RankNeeds NeedsOfSolve(const PlanQuery& query, const Sizes& sizes, const Ranks& ranks,
                       int64_t results, const Space& space) {
  const bool for_all = ranks.size > 1 && query.backend == kNative &&
                       SolvesForAll<T>(sizes.n, sizes.tile, ranks.tuning);
  if (!for_all) return NeedsOf<T>(space(sizes, ranks), results);
  Sizes whole = sizes;
  whole.block = sizes.m;
  const auto size = static_cast<int64_t>(sizeof(T));
  RankNeeds needs = NeedsOf<T>(space(whole, Ranks{1, 0, ranks.tuning}), results);
  needs.gathers = true;
  needs.bytes = ranks.rank == 0 ? needs.bytes + sizes.m * sizes.n * size : results * size;
  return needs;
}

template <typename Needs, typename T>
void AnswerFor(const PlanQuery& query, const Tuning& tuning, PlanAnswer* answer) {
  const Sizes sizes = {query.m, query.n, query.block, query.tile,
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

using PlanFunction = Status(const PlanQuery& query, const Tuning& tuning, PlanAnswer* answer);

// The PlanFunction of a routine. Needs::Of<T>(query, sizes, ranks) returns its RankNeeds.
template <typename Needs>
Status AnswerWith(const PlanQuery& query, const Tuning& tuning, PlanAnswer* answer) {
  if (query.dtype == "float32") {
    AnswerFor<Needs, float>(query, tuning, answer);
  } else if (query.dtype == "float64") {
    AnswerFor<Needs, double>(query, tuning, answer);
  } else if (query.dtype == "complex64") {
    AnswerFor<Needs, std::complex<float>>(query, tuning, answer);
  } else if (query.dtype == "complex128") {
    AnswerFor<Needs, std::complex<double>>(query, tuning, answer);
  } else {
    return Error(Code::kInvalidArgument, query.routine, ": unsupported dtype '", query.dtype, "'");
  }
  return Status::Ok();
}

// As AnswerWith, for a routine on a square matrix.
template <typename Needs>
Status AnswerSquareWith(const PlanQuery& query, const Tuning& tuning, PlanAnswer* answer) {
  if (query.m != query.n) {
    return Error(Code::kInvalidArgument, query.routine, ": A must be square, but m = ", query.m,
                 " and n = ", query.n);
  }
  return AnswerWith<Needs>(query, tuning, answer);
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_PLAN_H_
