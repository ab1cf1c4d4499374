#include "xla_ffi/handlers/call.h"

#include <string>

namespace jaxmg {

CallSite SiteOf(const char* routine, const Platform& platform,
                ffi::Buffer<ffi::DataType::S32>& place, const Attributes& attributes) {
  const int32_t* rank_and_group = place.typed_data();
  const int64_t address = reinterpret_cast<int64_t>(attributes.backend.data());
  return {routine,
          platform.run_id,
          attributes.call ^ address,
          rank_and_group[1],
          rank_and_group[0],
          static_cast<int>(attributes.ranks)};
}

Status CheckBlock(const char* routine, ffi::AnyBuffer a, const Attributes& attributes) {
  const auto dimensions = a.dimensions();
  if (dimensions.size() != 2) {
    return Error(Code::kInvalidArgument, routine, ": a has ", dimensions.size(),
                 " dimensions, not 2");
  }
  if (attributes.ranks < 1 || attributes.tile < 0 || attributes.n < 1) {
    return Error(Code::kInvalidArgument, routine, ": n = ", attributes.n, ", ranks = ",
                 attributes.ranks, ", tile = ", attributes.tile);
  }
  if (dimensions[1] != attributes.n || dimensions[0] * attributes.ranks < attributes.n) {
    return Error(Code::kInvalidArgument, routine, ": a block of ", dimensions[0], " x ",
                 dimensions[1], " on each of ", attributes.ranks,
                 " ranks does not hold a matrix of order ", attributes.n);
  }
  return Status::Ok();
}

}  // namespace jaxmg
