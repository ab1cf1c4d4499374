// Shared by the tests of routines: matrices of many sizes and layouts for every dtype, and ranks on
// devices with other tunings or with streams.
#ifndef JAXMG_TESTS_CC_SUPPORT_ROUTINE_CASES_H_
#define JAXMG_TESTS_CC_SUPPORT_ROUTINE_CASES_H_

#include <complex>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/cc/support/devices/async_device.h"
#include "tests/cc/support/problem.h"
#include "tests/cc/support/ranks.h"
#include "tests/cc/support/reference_lapack.h"

namespace jaxmg::testing {

inline const Case kCases[] = {
    {1, 1, 0},  {1, 3, 1},     {2, 2, 1},     {5, 8, 2},   {7, 2, 3},   {16, 4, 4},
    {17, 4, 2}, {30, 5, 4},    {33, 3, 5, 2}, {40, 16, 2}, {48, 2, 8},  {50, 1, 7},
    {60, 2, 3}, {61, 4, 2, 1}, {64, 3, 2},    {63, 7, 3},  {64, 4, 64}, {70, 6, 4, 1},
    {97, 3, 0}, {90, 2, 13},   {150, 2, 75},  {64, 2, 1},  {68, 4, 1},
};

inline std::string TextOf(const Case& c) {
  return "n " + std::to_string(c.n) + " ranks " + std::to_string(c.ranks) + " tile " +
         std::to_string(c.tile);
}

// The devices that RunOnDevices makes for ranks: the host, or an AsyncDevice.
inline thread_local DeviceMaker make_device = OnHost;

inline std::vector<Status> RunOnDevices(int ranks, const RankProgram& program) {
  return RunRanks(ranks, program, kPatience, make_device);
}

// Runs `check` with devices whose streams run concurrently, like a GPU's.
template <typename Check>
void OnStreams(const Tuning& tuning, const Check& check) {
  make_device = [tuning](int) { return NewAsyncDevice(NewHostDevice(), tuning); };
  check();
  make_device = OnHost;
}

// Returns tunings that differ in the order of a routine's steps: the GPUs', the host's, and one
// with which a single rank works on small matrices.
inline std::vector<Tuning> TuningsOnStreams() {
  Tuning gathering = LikeGpu();
  gathering.cholesky.whole_order = gathering.gather_to_solve = gathering.gather_to_invert = 40;
  return {LikeGpu(), LikeGpu(0), NewHostDevice()->tuning(), gathering};
}

// Returns tunings with which one rank does all the work on a small matrix, as on GPUs: in a single
// tile, and in several.
inline std::vector<Tuning> GatheringTunings() {
  Tuning one = LikeGpu();
  one.usual_tile = 7;
  one.gather_to_solve = one.gather_to_invert = 1000;
  Tuning several = one;
  one.cholesky.whole_order = 1000;
  several.cholesky.whole_order = 0;
  return {one, several};
}

}  // namespace jaxmg::testing

#define JAXMG_TEST_EACH_DTYPE(Name, Check) \
  TEST(Name) {                             \
    for (const Case& c : kCases) {         \
      Check<float>(c);                     \
      Check<double>(c);                    \
      Check<std::complex<float>>(c);       \
      Check<std::complex<double>>(c);      \
    }                                      \
  }

#endif  // JAXMG_TESTS_CC_SUPPORT_ROUTINE_CASES_H_
