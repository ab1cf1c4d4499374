// What XLA keeps for a call site, made with the executable (the instantiate stage) and found when
// it runs: a number that no other one of the process has, and where ranks are in several processes
// its SharedCallSite.
#ifndef JAXMG_XLA_FFI_HANDLERS_SITE_STATE_H_
#define JAXMG_XLA_FFI_HANDLERS_SITE_STATE_H_

#include <cstdint>
#include <memory>

#include "xla/ffi/api/ffi.h"
#include "xla_ffi/base/status.h"
#include "xla_ffi/comm/processes/shared_call_site.h"

namespace jaxmg {

struct KeptSite {
  int64_t number = 0;  // from 1 on
  std::shared_ptr<const SharedCallSite> shared;
};

// Has XLA keep a new number, and `shared`, which may be null, as long as the executable. `ctx` is
// that of the stage.
Status KeepSite(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                std::shared_ptr<const SharedCallSite> shared);

// What was kept; empty where there is nothing. Takes no memory of ours.
KeptSite FindKeptSite(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx) noexcept;

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_SITE_STATE_H_
