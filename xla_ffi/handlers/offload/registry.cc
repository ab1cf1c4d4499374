#include "xla_ffi/handlers/offload/registry.h"

#include <algorithm>
#include <complex>
#include <limits>
#include <utility>

#include "xla_ffi/device/tunings.h"
#include "xla_ffi/engine/offload/host_cache.h"
#include "xla_ffi/engine/offload/host_plan.h"
#include "xla_ffi/engine/offload/open_objects.h"
#include "xla_ffi/handlers/platform/platform.h"

namespace jaxmg {
namespace {

// Never destroyed: calls may run while the process exits.
OpenObjects<HostMatrix>& Matrices() {
  static auto* matrices = new OpenObjects<HostMatrix>("matrix");
  return *matrices;
}

Status CheckBlocks(const char* what, const std::vector<HostBlock>& blocks, const HostShape& shape) {
  if (static_cast<int64_t>(blocks.size()) != shape.blocks()) {
    return Error(Code::kInvalidArgument, "host_open: ", what, " has ", blocks.size(),
                 " block rows, not ", shape.blocks());
  }
  for (int64_t j = 0; j < shape.blocks(); ++j) {
    const HostBlock& block = blocks[j];
    const int64_t columns = shape.whole ? shape.n : shape.rows(j);
    if (block.data == nullptr || block.ld < columns) {
      return Error(Code::kInvalidArgument, "host_open: block row ", j, " of ", what, " has ",
                   columns, " columns, but its rows are ", block.ld, " apart");
    }
  }
  return Status::Ok();
}

template <typename T>
Status Answer(const HostPlanQuery& query, const Tuning& tuning, HostPlanAnswer* answer) {
  const auto products = static_cast<Precision>(query.products);
  HostShape& shape = answer->shape;
  shape = {query.n, query.nrhs, query.width, 1, query.ranks, query.whole};
  if (query.width == 0) {
    JAXMG_RETURN_IF_ERROR(PlanHostMatrix<T>(query.budget, products, tuning, &shape));
  } else {
    const int64_t per_rank = (std::min(query.width, query.n) + query.ranks - 1) / query.ranks;
    shape.tile = std::min(tuning.usual_tile, per_rank);
    const int64_t step = shape.tile * shape.ranks;
    shape.width = std::min((query.width + step - 1) / step * step, query.n);
  }
  answer->chunk = shape.chunk(tuning);
  answer->bytes = HostBytes<T>(shape, products, tuning);
  const int64_t left = (query.budget - answer->bytes) / static_cast<int64_t>(sizeof(T));
  answer->cache = std::clamp<int64_t>(left, 0, HostCache<T>::All(shape, 0));
  return Status::Ok();
}

}  // namespace

Status CheckHostShape(const char* name, const HostShape& shape) {
  // The upper limit also keeps products of these sizes within 64 bits.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const bool valid = shape.n >= 1 && shape.n <= kMost && shape.nrhs >= 0 && shape.nrhs <= kMost &&
                     shape.width >= 1 && shape.width <= shape.n && shape.tile >= 1 &&
                     shape.tile <= kMost && shape.ranks >= 1 &&
                     (shape.width == shape.n || shape.width % (shape.tile * shape.ranks) == 0);
  if (valid) return Status::Ok();
  return Error(Code::kInvalidArgument, name, ": invalid sizes: n = ", shape.n,
               ", nrhs = ", shape.nrhs, ", width = ", shape.width, ", tile = ", shape.tile,
               ", ranks = ", shape.ranks);
}

Status OpenHostMatrix(HostMatrix matrix, int32_t* id) {
  JAXMG_RETURN_IF_ERROR(CheckHostShape("host_open", matrix.shape));
  const std::string& dtype = matrix.dtype;
  if (dtype != "float32" && dtype != "float64" && dtype != "complex64" && dtype != "complex128") {
    return Error(Code::kInvalidArgument, "host_open: unsupported dtype '", dtype, "'");
  }
  if (matrix.shape.spread && static_cast<int>(matrix.local.size()) != matrix.shape.ranks) {
    return Error(Code::kInvalidArgument, "host_open: local has ", matrix.local.size(),
                 " elements, not one of each of the ", matrix.shape.ranks, " ranks");
  }
  if (!matrix.source.empty()) {
    JAXMG_RETURN_IF_ERROR(CheckBlocks("source", matrix.source, matrix.shape));
  }
  JAXMG_RETURN_IF_ERROR(CheckBlocks("factor", matrix.factor, matrix.shape));
  *id = Matrices().Open(std::move(matrix));
  return Status::Ok();
}

Status CloseHostMatrix(int32_t id) { return Matrices().Close(id); }

Status FindOpenHostMatrix(int32_t id, std::shared_ptr<const HostMatrix>* matrix) {
  return Matrices().Find(id, matrix);
}

Status AnswerHostPlan(const HostPlanQuery& query, HostPlanAnswer* answer) {
  const std::string platform = query.platform.empty() ? kPlatform : query.platform;
  if (platform != "cpu" && platform != "gpu") {
    return Error(Code::kInvalidArgument, "host_plan: unknown platform '", platform, "'");
  }
  const Tuning tuning = platform == "gpu" ? CudaTuning() : HostTuning();
  const int64_t width = query.width == 0 ? query.n : std::min(query.width, query.n);
  JAXMG_RETURN_IF_ERROR(
      CheckHostShape("host_plan", {query.n, query.nrhs, query.n, 1, query.ranks}));
  if (width < 1 || query.products < 0 ||
      query.products > static_cast<int64_t>(Precision::kChosen)) {
    return Error(Code::kInvalidArgument,
                 "host_plan: the width must be at least 1, and the precision known; got width = ",
                 query.width, ", products = ", query.products);
  }
  if (query.dtype == "float32") return Answer<float>(query, tuning, answer);
  if (query.dtype == "float64") return Answer<double>(query, tuning, answer);
  if (query.dtype == "complex64") return Answer<std::complex<float>>(query, tuning, answer);
  if (query.dtype == "complex128") return Answer<std::complex<double>>(query, tuning, answer);
  return Error(Code::kInvalidArgument, "host_plan: unsupported dtype '", query.dtype, "'");
}

}  // namespace jaxmg
