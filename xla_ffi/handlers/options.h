// What a process can set for all later calls.
#ifndef JAXMG_XLA_FFI_HANDLERS_OPTIONS_H_
#define JAXMG_XLA_FFI_HANDLERS_OPTIONS_H_

#include <string>

#include "xla_ffi/comm/monitor.h"

namespace jaxmg {

// How long a rank waits for the others of its call to arrive: 300 s unless set. Infinity is no
// limit.
Seconds RendezvousTimeout();
void SetRendezvousTimeout(Seconds limit);

// Which ranks solve an eigenproblem: "one" by LAPACK or cuSOLVER, "all" by the engine, or "auto",
// by the order of the matrix. False where the name is none of these.
bool SetEigensolver(const std::string& name);

// Takes what the environment sets: JAXMG_RENDEZVOUS_TIMEOUT; JAXMG_PEER_TIMEOUT, from how long a
// silence on another process is lost (60 s); JAXMG_TRANSPORT, by what processes are connected
// (auto, nccl, unix or tcp); JAXMG_EIGENSOLVER, as SetEigensolver has it. Throws
// std::invalid_argument, which names the variable, where a value can't be right.
void ReadOptions();

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_OPTIONS_H_
