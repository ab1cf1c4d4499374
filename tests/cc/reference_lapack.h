// Textbook versions of the BLAS and LAPACK routines that the host device calls, so that the
// engine's tests need no library and sanitizers see every access.
#ifndef JAXMG_TESTS_CC_REFERENCE_LAPACK_H_
#define JAXMG_TESTS_CC_REFERENCE_LAPACK_H_

namespace jaxmg::testing {

// Fills the tables of all dtypes. Call before any other thread runs.
void InstallReferenceLapack();

// A test that includes this header has them installed before it runs.
inline const struct ReferenceLapack {
  ReferenceLapack() { InstallReferenceLapack(); }
} reference_lapack;

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_REFERENCE_LAPACK_H_
