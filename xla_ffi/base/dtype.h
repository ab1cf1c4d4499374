// The four dtypes of every routine, and their traits for templates.
#ifndef JAXMG_XLA_FFI_BASE_DTYPE_H_
#define JAXMG_XLA_FFI_BASE_DTYPE_H_

#include <complex>
#include <tuple>
#include <type_traits>

namespace jaxmg {

template <typename T>
struct RealOf {
  using type = T;
};
template <typename R>
struct RealOf<std::complex<R>> {
  using type = R;
};

// The dtype of norms, diagonals and eigenvalues.
template <typename T>
using Real = typename RealOf<T>::type;

template <typename T>
inline constexpr bool kIsComplex = !std::is_same_v<T, Real<T>>;

// A tuple of X<T> for each dtype T. std::get<X<T>> returns one of them.
template <template <typename> class X>
using PerDtype = std::tuple<X<float>, X<double>, X<std::complex<float>>, X<std::complex<double>>>;

// NumPy's name of a dtype.
template <typename T>
constexpr const char* DtypeName() {
  constexpr bool kSingle = std::is_same_v<Real<T>, float>;
  if (kIsComplex<T>) return kSingle ? "complex64" : "complex128";
  return kSingle ? "float32" : "float64";
}

// Unlike std::conj, returns a real number for a real number.
template <typename T>
T Conj(T x) {
  if constexpr (kIsComplex<T>) {
    return std::conj(x);
  } else {
    return x;
  }
}

}  // namespace jaxmg

// Instantiates a template for every dtype: JAXMG_FOR_EACH_DTYPE(MACRO) expands MACRO(T) four times.
#define JAXMG_FOR_EACH_DTYPE(MACRO) \
  MACRO(float)                      \
  MACRO(double)                     \
  MACRO(std::complex<float>)        \
  MACRO(std::complex<double>)

#endif  // JAXMG_XLA_FFI_BASE_DTYPE_H_
