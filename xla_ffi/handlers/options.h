// Settings of the process for all later calls.
#ifndef JAXMG_XLA_FFI_HANDLERS_OPTIONS_H_
#define JAXMG_XLA_FFI_HANDLERS_OPTIONS_H_

#include <string>

#include "xla_ffi/comm/monitor.h"

namespace jaxmg {

// The time that a rank waits for the other ranks of its call to arrive. The default is 300 s;
// infinity means no limit.
Seconds RendezvousTimeout();
void SetRendezvousTimeout(Seconds limit);

// How long a rank of several CPU devices waits for the others on XLA's thread before it continues
// on its own: 1 ms unless set. At first it polls.
inline constexpr Seconds kBriefSpin(50e-6);
WaitPolicy BriefWait();
void SetBriefWait(Seconds limit, Seconds spin = kBriefSpin);

// Selects which ranks solve an eigenproblem: "one" (LAPACK or cuSOLVER), "all" (the engine) or
// "auto" (depends on the order of the matrix). Returns false for any other name.
bool SetEigensolver(const std::string& name);

// Reads the environment: JAXMG_RENDEZVOUS_TIMEOUT; JAXMG_PEER_TIMEOUT, the silence after which
// another process is considered lost (60 s); JAXMG_TRANSPORT, the connection between processes
// (auto, nccl, unix or tcp). Throws std::invalid_argument, which names the variable, if a value is
// invalid.
void ReadOptions();

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_HANDLERS_OPTIONS_H_
