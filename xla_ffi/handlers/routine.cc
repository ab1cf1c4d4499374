#include "xla_ffi/handlers/routine.h"

namespace jaxmg {

Status FindBackend(const char* routine, const Backends& backends, std::string_view name,
                   size_t* index) {
  for (*index = 0; *index < backends.count; ++*index) {
    if (name == backends.names[*index]) return Status::Ok();
  }
  return Error(Code::kInvalidArgument, routine, ": this plugin has no backend '", name, "'");
}

}  // namespace jaxmg
