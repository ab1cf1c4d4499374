// What XLA keeps for a call site whose ranks are in several processes: its SharedSite, made with
// the executable (the instantiate stage) and found when it runs. Calls within one process keep
// nothing.
#ifndef JAXMG_XLA_FFI_HANDLERS_SITE_STATE_H_
#define JAXMG_XLA_FFI_HANDLERS_SITE_STATE_H_

#include <memory>

#include "xla/ffi/api/ffi.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/shared_site.h"

namespace jaxmg {

// Hands `site` to XLA, which keeps it as long as the executable. `ctx` is that of the stage.
Status KeepSite(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                std::shared_ptr<const SharedSite> site);

// The site that was kept; null where there is none. Takes no memory of ours.
std::shared_ptr<const SharedSite> KeptSite(const XLA_FFI_Api* api,
                                           XLA_FFI_ExecutionContext* ctx) noexcept;

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_SITE_STATE_H_
