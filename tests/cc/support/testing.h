// A test harness of one page: TEST(Name) { EXPECT(condition) << details; }. The program's arguments
// are parts of the names of the tests to run, or --list. Bazel's --test_filter is a comma-separated
// list of such parts.
#ifndef JAXMG_TESTS_CC_SUPPORT_TESTING_H_
#define JAXMG_TESTS_CC_SUPPORT_TESTING_H_

#include <atomic>
#include <cstdio>
#include <cstdlib>
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

// The largest number of a test's failures to print: thousands of lines would hide the first.
constexpr int kPrintedFailures = 20;

// Number of failures before the test that is running.
inline std::atomic<int>& EarlierFailures() {
  static std::atomic<int> failures{0};
  return failures;
}

struct Registration {
  Registration(const char* name, void (*body)()) { Tests().push_back({name, body}); }
};

// Collects the details of a failure and prints them on destruction. Thread-safe.
class Failure {
 public:
  Failure(const char* file, int line, const char* condition) {
    text_ << file << ":" << line << ": " << condition << "  ";
  }
  ~Failure() {
    if (++Failures() - EarlierFailures() > kPrintedFailures) return;
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

// Returns the tests whose names contain one of `parts`, or all tests if there are no parts.
inline std::vector<Test> Select(const std::vector<std::string>& parts) {
  std::vector<Test> chosen;
  for (const Test& test : Tests()) {
    bool wanted = parts.empty();
    for (const std::string& part : parts) {
      wanted |= std::string(test.name).find(part) != std::string::npos;
    }
    if (wanted) chosen.push_back(test);
  }
  return chosen;
}

inline int List() {
  for (const Test& test : Tests()) std::printf("%s\n", test.name);
  return 0;
}

inline int Run(const std::vector<Test>& tests) {
  int failed = 0;
  for (const Test& test : tests) {
    const int before = Failures();
    EarlierFailures() = before;
    test.body();
    const bool ok = Failures() == before;
    if (Failures() - before > kPrintedFailures) {
      std::fprintf(stderr, "and %d more\n", Failures() - before - kPrintedFailures);
    }
    std::printf("%s %s\n", ok ? "ok    " : "FAILED", test.name);
    failed += !ok;
  }
  std::printf("%zu passed, %d failed\n", tests.size() - failed, failed);
  return failed == 0 ? 0 : 1;
}

// Returns the program's exit code: 0 only if at least one test ran and none failed.
inline int Main(std::vector<std::string> parts, const char* filter) {
  if (parts == std::vector<std::string>{"--list"}) return List();
  std::istringstream more(filter == nullptr ? "" : filter);
  for (std::string part; std::getline(more, part, ',');) parts.push_back(part);
  const std::vector<Test> chosen = Select(parts);
  if (!chosen.empty()) return Run(chosen);
  std::printf("no test has one of these in its name:");
  for (const std::string& part : parts) std::printf(" '%s'", part.c_str());
  std::printf("; there are\n");
  List();
  return 1;
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

#endif  // JAXMG_TESTS_CC_SUPPORT_TESTING_H_
