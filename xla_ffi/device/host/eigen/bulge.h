// One step of a sweep on the host: a block below the diagonal, and the adjacent diagonal block.
// Included only by chase.h.
//
// Complex numbers are treated as pairs of reals: given a column and i times that column, a product
// with a complex number is two products with real ones, without shuffles. Columns are processed in
// whole vectors, so lanes beyond a block's last row are also read and written. Their factors are
// zero, so memory is unchanged.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_EIGEN_BULGE_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_EIGEN_BULGE_H_

#include <algorithm>
#include <complex>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "xla_ffi/base/dtype.h"
#include "xla_ffi/device/host/reflector.h"

namespace jaxmg {

// A vector length that all hardware supports. Compilers generate poor code for longer vectors if
// they may not use the corresponding instructions.
template <typename R>
struct Lanes {
  static constexpr int64_t kCount = 16 / sizeof(R);
  using Int = std::conditional_t<sizeof(R) == 8, int64_t, int32_t>;
  typedef R Vector __attribute__((vector_size(16)));
  typedef Int Mask __attribute__((vector_size(16)));

  // By reference, because passing vectors by value depends on the ABI of each instruction set
  // extension.
  static void Load(const R* from, Vector& to) { std::memcpy(&to, from, sizeof(to)); }
  static void Store(const Vector& from, R* to) { std::memcpy(to, &from, sizeof(from)); }
  // Sets the mask of the lanes from `lane` on; lane <= kCount.
  static void From(int64_t lane, Mask& mask) {
    static constexpr struct Table {
      Int values[2 * kCount] = {};
      constexpr Table() {
        for (int64_t i = kCount; i < 2 * kCount; ++i) values[i] = -1;
      }
    } table;
    std::memcpy(&mask, table.values + kCount - lane, sizeof(mask));
  }
  static R Sum(const Vector& x) {
    R sums[kCount];
    Store(x, sums);
    for (int64_t half = kCount / 2; half > 0; half /= 2) {
      for (int64_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    return sums[0];
  }
};

template <typename T>
class HostBulge {
  using R = Real<T>;
  using L = Lanes<R>;
  using Vector = typename L::Vector;
  static constexpr int64_t kParts = sizeof(T) / sizeof(R);

 public:
  // The number of elements beyond a block's last row that are accessed.
  static constexpr int64_t kOverlap = L::kCount / kParts - 1;

  // A column and, for complex T, also i times that column, padded with zeros to a whole vector.
  class Column {
   public:
    explicit Column(int64_t rows) : x(Chunks(rows) * L::kCount), ix(kIsComplex<T> ? x.size() : 0) {}
    T operator[](int64_t i) const {
      if constexpr (kIsComplex<T>) {
        return T(x[2 * i], x[2 * i + 1]);
      } else {
        return x[i];
      }
    }
    void Set(int64_t i, T value) {
      if constexpr (kIsComplex<T>) {
        x[2 * i] = ix[2 * i + 1] = value.real();
        x[2 * i + 1] = value.imag();
        ix[2 * i] = -value.imag();
      } else {
        x[i] = value;
      }
    }
    // Clears the padding of the last vector of this number of rows.
    void Pad(int64_t rows) {
      for (int64_t i = rows * kParts; i < Chunks(rows) * L::kCount; ++i) {
        x[i] = 0;
        if (kIsComplex<T>) ix[i] = 0;
      }
    }
    std::vector<R> x, ix;
  };
  struct Reflector {
    explicit Reflector(int64_t rows) : v(rows) {}
    Column v;
    T tau = 0;
  };

  // Works on blocks of at most b rows with leading dimension `ld`.
  HostBulge(int64_t b, int64_t ld)
      : ld_(ld), y_(b), i_y_(b), z_(b), next_(b), own_(b), scratch_(b) {}

  // Computes the reflector h that maps `rows` elements at x to a multiple of e_0, and overwrites x
  // with the result.
  void Make(int64_t rows, T* x, Reflector* h) {
    std::copy_n(x, rows, scratch_.begin());
    MakeReflector(rows, scratch_.data(), &h->tau);
    x[0] = scratch_[0];
    std::fill(x + 1, x + rows, T(0));
    h->v.Set(0, 1);
    for (int64_t i = 1; i < rows; ++i) h->v.Set(i, scratch_[i]);
    h->v.Pad(rows);
  }

  // E := U^H E H, E rows x columns. U clears the first column of E H below its first element, and
  // overwrites H.
  void OffDiagonal(int64_t rows, int64_t columns, T* e, Reflector* h) {
    const int64_t chunks = Chunks(rows);
    const Column& v = h->v;
    for (int64_t q = 0; q < chunks; ++q) {
      Vector re = {}, im = {}, x;
      for (int64_t c = 0; c < columns; ++c) {
        L::Load(Reals(e + c * ld_) + q * L::kCount, x);
        re += x * v.x[kParts * c];
        if constexpr (kIsComplex<T>) im += x * v.x[2 * c + 1];
      }
      L::Store(re, &y_.x[q * L::kCount]);
      if constexpr (kIsComplex<T>) L::Store(im, &i_y_.x[q * L::kCount]);
    }
    for (int64_t i = 0; i < rows; ++i) z_.Set(i, h->tau * Product(i));
    z_.Pad(rows);
    SubtractConj(chunks, z_, 1, e);
    Make(rows, e, &next_);
    const Column& u = next_.v;
    const T tau = Conj(next_.tau);
    for (int64_t c = 1; c < columns; ++c) {
      R* x = Reals(e + c * ld_);
      const R fr = v.x[kParts * c], fi = kIsComplex<T> ? v.x[kParts * c + kParts - 1] : 0;
      Vector re = {}, im = {}, a, b;
      for (int64_t q = 0; q < chunks * L::kCount; q += L::kCount) {
        L::Load(x + q, a);
        L::Load(&z_.x[q], b);
        a -= fr * b;
        if constexpr (kIsComplex<T>) {
          L::Load(&z_.ix[q], b);
          a += fi * b;
        }
        L::Store(a, x + q);
        L::Load(&u.x[q], b);
        re += a * b;
        if constexpr (kIsComplex<T>) {
          L::Load(&u.ix[q], b);
          im += a * b;
        }
      }
      SubtractConj(chunks, u, Conj(tau * Number(L::Sum(re), L::Sum(im))), e + c * ld_);
    }
    std::swap(*h, next_);
  }

  // D := H^H D H for Hermitian D, in its lower triangle.
  void Diagonal(int64_t rows, T* d, const Reflector& h) {
    const int64_t chunks = Chunks(rows);
    const Column& v = h.v;
    // D v, column by column, with the elements below the diagonal and their mirror images.
    std::fill_n(y_.x.begin(), chunks * L::kCount, R(0));
    if (kIsComplex<T>) std::fill_n(i_y_.x.begin(), chunks * L::kCount, R(0));
    for (int64_t c = 0; c < rows; ++c) {
      const R* x = Reals(d + c * ld_);
      const R vr = v.x[kParts * c], vi = kIsComplex<T> ? v.x[kParts * c + kParts - 1] : 0;
      const int64_t first = kParts * c / L::kCount * L::kCount;
      typename L::Mask mask;
      L::From(kParts * (c + 1) - first, mask);
      Vector re = {}, im = {}, a, b;
      for (int64_t q = first; q < chunks * L::kCount; q += L::kCount) {
        L::Load(x + q, a);
        if (q == first) a = (Vector)((typename L::Mask)a & mask);
        L::Load(&y_.x[q], b);
        b += vr * a;
        L::Store(b, &y_.x[q]);
        L::Load(&v.x[q], b);
        re += a * b;
        if constexpr (kIsComplex<T>) {
          L::Load(&i_y_.x[q], b);
          b += vi * a;
          L::Store(b, &i_y_.x[q]);
          L::Load(&v.ix[q], b);
          im -= a * b;
        }
      }
      own_[c] = std::real(d[c * ld_ + c]) * v[c] + Number(L::Sum(re), L::Sum(im));
    }
    R along = 0;  // v^H D v
    for (int64_t i = 0; i < rows; ++i) {
      own_[i] += Product(i);
      along += std::real(Conj(v[i]) * own_[i]);
    }
    const R half = std::norm(h.tau) * along / 2;
    for (int64_t i = 0; i < rows; ++i) z_.Set(i, h.tau * own_[i] - half * v[i]);
    z_.Pad(rows);
    // D - z v^H - v z^H, z = tau D v - |tau|^2 / 2 (v^H D v) v.
    for (int64_t c = 0; c < rows; ++c) {
      R* x = Reals(d + c * ld_);
      const T fv = v[c], fz = z_[c];
      const int64_t first = kParts * c / L::kCount * L::kCount;
      typename L::Mask mask;
      L::From(kParts * c - first, mask);
      Vector a, b, change;
      for (int64_t q = first; q < chunks * L::kCount; q += L::kCount) {
        L::Load(&z_.x[q], b);
        change = std::real(fv) * b;
        L::Load(&v.x[q], b);
        change += std::real(fz) * b;
        if constexpr (kIsComplex<T>) {
          L::Load(&z_.ix[q], b);
          change -= std::imag(fv) * b;
          L::Load(&v.ix[q], b);
          change -= std::imag(fz) * b;
        }
        if (q == first) change = (Vector)((typename L::Mask)change & mask);
        L::Load(x + q, a);
        a -= change;
        L::Store(a, x + q);
      }
      d[c * ld_ + c] = std::real(d[c * ld_ + c]);
    }
  }

 private:
  static int64_t Chunks(int64_t rows) { return (rows * kParts + L::kCount - 1) / L::kCount; }
  static R* Reals(T* x) { return reinterpret_cast<R*>(x); }
  static T Number(R re, [[maybe_unused]] R im) {
    if constexpr (kIsComplex<T>) {
      return T(re, im);
    } else {
      return re;
    }
  }
  // Combines the sums with the real and with the imaginary parts of the factors.
  T Product(int64_t i) const {
    if constexpr (kIsComplex<T>) {
      return T(y_.x[2 * i] - i_y_.x[2 * i + 1], y_.x[2 * i + 1] + i_y_.x[2 * i]);
    } else {
      return y_.x[i];
    }
  }
  // x -= conj(f) z
  static void SubtractConj(int64_t chunks, const Column& z, T f, T* to) {
    R* x = Reals(to);
    Vector a, b;
    for (int64_t q = 0; q < chunks * L::kCount; q += L::kCount) {
      L::Load(x + q, a);
      L::Load(&z.x[q], b);
      a -= std::real(f) * b;
      if constexpr (kIsComplex<T>) {
        L::Load(&z.ix[q], b);
        a += std::imag(f) * b;
      }
      L::Store(a, x + q);
    }
  }

  const int64_t ld_;
  Column y_, i_y_, z_;
  Reflector next_;
  std::vector<T> own_, scratch_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_EIGEN_BULGE_H_
