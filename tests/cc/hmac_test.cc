// SHA-256 and HMAC-SHA256 of the examples in the standards.
#include "xla_ffi/comm/processes/connections/hmac.h"

#include <string>

#include "tests/cc/support/testing.h"

namespace jaxmg {
namespace {

std::string Hex(const std::string& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte / 16];
    text += "0123456789abcdef"[byte % 16];
  }
  return text;
}

// The examples of FIPS 180-4, and texts of about one block.
TEST(Sha256OfKnownTexts) {
  EXPECT(Hex(Sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT(Hex(Sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT(Hex(Sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT(Hex(Sha256(std::string(1000000, 'a'))) ==
         "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  const struct {
    size_t length;
    const char* digest;
  } around[] = {
      {55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
      {56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
      {63, "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34"},
      {64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
      {65, "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0"},
  };
  for (const auto& one : around) {
    EXPECT(Hex(Sha256(std::string(one.length, 'a'))) == one.digest) << one.length;
  }
}

// RFC 4231, sections 4.2 to 4.8. The fifth example gives only the first 128 bits.
TEST(HmacOfRfc4231) {
  const auto both = [](const std::string& key, const std::string& text) {
    return Hex(HmacSha256(key, text));
  };
  EXPECT(both(std::string(20, '\x0b'), "Hi There") ==
         "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT(both("Jefe", "what do ya want for nothing?") ==
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT(both(std::string(20, '\xaa'), std::string(50, '\xdd')) ==
         "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string key;
  for (char c = 1; c <= 25; ++c) key += c;
  EXPECT(both(key, std::string(50, '\xcd')) ==
         "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  EXPECT(both(std::string(20, '\x0c'), "Test With Truncation").substr(0, 32) ==
         "a3b6167473100ee06e0c796c2955552b");
  EXPECT(both(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT(both(std::string(131, '\xaa'),
              "This is a test using a larger than block-size key and a larger than block-size "
              "data. The key needs to be hashed before being used by the HMAC algorithm.") ==
         "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(EqualTextsAreEqual) {
  EXPECT(EqualInConstantTime("", ""));
  EXPECT(EqualInConstantTime("abc", "abc"));
  EXPECT(!EqualInConstantTime("abc", "abd"));
  EXPECT(!EqualInConstantTime("abc", std::string("ab\0", 3)));
  EXPECT(!EqualInConstantTime("abc", "ab"));
  EXPECT(!EqualInConstantTime("", "a"));
}

}  // namespace
}  // namespace jaxmg
