// Textbook versions of the BLAS and LAPACK routines that the host device calls. The engine's tests
// thus need no library, and sanitizers see every access.
#ifndef JAXMG_TESTS_CC_SUPPORT_REFERENCE_LAPACK_H_
#define JAXMG_TESTS_CC_SUPPORT_REFERENCE_LAPACK_H_

namespace jaxmg::testing {

// Fills the tables of all dtypes. Must run before any other thread starts.
void InstallReferenceLapack();

// Installs the routines before a test that includes this header runs.
inline const struct ReferenceLapack {
  ReferenceLapack() { InstallReferenceLapack(); }
} reference_lapack;

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_REFERENCE_LAPACK_H_
