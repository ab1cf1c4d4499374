// HMAC-SHA256 (RFC 2104, FIPS 180-4). Processes prove with it that they know the key of their job
// without sending it. Implemented here to save the wheels a dependency.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_HMAC_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_HMAC_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace jaxmg {

inline constexpr size_t kSha256Bytes = 32;

// Both return 32 bytes.
std::string Sha256(std::string_view data);
std::string HmacSha256(std::string_view key, std::string_view message);

// Compares two strings in a time that depends only on their lengths, so that the duration reveals
// nothing about a secret.
bool EqualInConstantTime(std::string_view a, std::string_view b);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_CONNECTIONS_HMAC_H_
