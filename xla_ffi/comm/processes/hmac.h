// HMAC-SHA256 (RFC 2104, FIPS 180-4): by it processes prove that they know the key of their job
// without sending it. A library for this would be one more that every wheel needs.
#ifndef JAXMG_XLA_FFI_COMM_PROCESSES_HMAC_H_
#define JAXMG_XLA_FFI_COMM_PROCESSES_HMAC_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace jaxmg {

inline constexpr size_t kSha256Bytes = 32;

// 32 bytes each.
std::string Sha256(std::string_view data);
std::string HmacSha256(std::string_view key, std::string_view message);

// Takes as long for texts of one length whatever they contain, so that its duration tells nothing
// about a secret.
bool EqualInConstantTime(std::string_view a, std::string_view b);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_COMM_PROCESSES_HMAC_H_
