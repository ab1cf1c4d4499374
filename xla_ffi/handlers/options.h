// What a process can set for all later calls.
#ifndef JAXMG_XLA_FFI_HANDLERS_OPTIONS_H_
#define JAXMG_XLA_FFI_HANDLERS_OPTIONS_H_

#include <chrono>

namespace jaxmg {

// How long a rank waits for the others of its call to arrive. At first the number of seconds in the
// environment variable JAXMG_RENDEZVOUS_TIMEOUT, or 300.
std::chrono::duration<double> RendezvousTimeout();
void SetRendezvousTimeout(std::chrono::duration<double> limit);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_OPTIONS_H_
