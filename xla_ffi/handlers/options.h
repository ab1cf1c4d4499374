// What a process can set for all later calls.
#ifndef JAXMG_XLA_FFI_HANDLERS_OPTIONS_H_
#define JAXMG_XLA_FFI_HANDLERS_OPTIONS_H_

#include "xla_ffi/comm/monitor.h"

namespace jaxmg {

// How long a rank waits for the others of its call to arrive: 300 s unless set. Infinity is no
// limit.
Seconds RendezvousTimeout();
void SetRendezvousTimeout(Seconds limit);

// Takes the limit from the environment variable JAXMG_RENDEZVOUS_TIMEOUT, if that is set. Throws
// std::invalid_argument, which names the variable, where it is no positive number of seconds.
void ReadOptions();

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_OPTIONS_H_
