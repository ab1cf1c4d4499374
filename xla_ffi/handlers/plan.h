// What a call of a routine would need, before there is one: for Python.
#ifndef JAXMG_XLA_FFI_HANDLERS_PLAN_H_
#define JAXMG_XLA_FFI_HANDLERS_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "xla_ffi/base/status.h"

namespace jaxmg {

struct PlanQuery {
  std::string routine;  // "potrs", "potri", "syevd", "sygvd", "potrf" or "cho_solve"
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

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_PLAN_H_
