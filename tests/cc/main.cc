#include "tests/cc/testing.h"

int main() { return jaxmg::testing::RunTests(); }
