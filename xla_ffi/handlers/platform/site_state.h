// SiteState: the state that XLA stores for a call site. The instantiate stage creates it with the
// executable, and the execute stage looks it up. It holds a number that is unique in the process
// and, if ranks are in several processes, the SharedCallSite.
#ifndef JAXMG_XLA_FFI_HANDLERS_PLATFORM_SITE_STATE_H_
#define JAXMG_XLA_FFI_HANDLERS_PLATFORM_SITE_STATE_H_

#include <cstdint>
#include <memory>

#include "xla/ffi/api/ffi.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/processes/shared_call_site.h"

namespace jaxmg {

struct SiteState {
  int64_t number = 0;  // starts at 1
  std::shared_ptr<const SharedCallSite> shared;
};

// Stores a new number and `shared`, which may be null, with the executable. `ctx` is the context of
// the instantiate stage.
Status StoreSiteState(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                      std::shared_ptr<const SharedCallSite> shared);

// Returns the stored state, or an empty one if none is stored. Allocates no memory.
SiteState FindSiteState(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx) noexcept;

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_PLATFORM_SITE_STATE_H_
