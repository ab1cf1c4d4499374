#include "tests/cc/support/testing.h"

int main(int count, char** words) {
  return jaxmg::testing::Main({words + 1, words + count}, std::getenv("TESTBRIDGE_TEST_ONLY"));
}
