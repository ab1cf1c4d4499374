// A test harness of one page: TEST(Name) { EXPECT(condition) << details; } and RUN_TESTS().
#ifndef JAXMG_TESTS_CC_TESTING_H_
#define JAXMG_TESTS_CC_TESTING_H_

#include <atomic>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

namespace jaxmg::testing {

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

inline std::atomic<int>& Failures() {
  static std::atomic<int> failures{0};
  return failures;
}

struct Registration {
  Registration(const char* name, void (*body)()) { Tests().push_back({name, body}); }
};

// Prints what was streamed into it when it goes; may be used on any thread.
class Failure {
 public:
  Failure(const char* file, int line, const char* condition) {
    text_ << file << ":" << line << ": " << condition << "  ";
  }
  ~Failure() {
    ++Failures();
    std::fprintf(stderr, "%s\n", text_.str().c_str());
  }
  template <typename Piece>
  Failure& operator<<(const Piece& piece) {
    text_ << piece;
    return *this;
  }

 private:
  std::ostringstream text_;
};

inline int RunTests() {
  int failed = 0;
  for (const Test& test : Tests()) {
    const int before = Failures();
    test.body();
    const bool ok = Failures() == before;
    std::printf("%s %s\n", ok ? "ok    " : "FAILED", test.name);
    failed += !ok;
  }
  std::printf("%zu passed, %d failed\n", Tests().size() - failed, failed);
  return failed == 0 && !Tests().empty() ? 0 : 1;
}

}  // namespace jaxmg::testing

#define TEST(name)                                                         \
  static void name();                                                      \
  static ::jaxmg::testing::Registration name##_registration(#name, &name); \
  static void name()

#define EXPECT(condition) \
  if (condition) {        \
  } else                  \
    ::jaxmg::testing::Failure(__FILE__, __LINE__, #condition)

#endif  // JAXMG_TESTS_CC_TESTING_H_
