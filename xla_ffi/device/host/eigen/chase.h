// ChaseKernels on the host. Included only by device.cc.
#ifndef JAXMG_XLA_FFI_DEVICE_HOST_EIGEN_CHASE_H_
#define JAXMG_XLA_FFI_DEVICE_HOST_EIGEN_CHASE_H_

#include <algorithm>
#include <complex>
#include <cstdint>
#include <vector>

#include "xla_ffi/device/blas.h"
#include "xla_ffi/device/eigen/chase_groups.h"
#include "xla_ffi/device/eigen/chase_kernels.h"
#include "xla_ffi/device/host/eigen/bulge.h"

namespace jaxmg {

template <typename T>
class HostChase : public ChaseKernels<T> {
  using R = Real<T>;
  using Bulge = HostBulge<T>;
  using Reflector = typename Bulge::Reflector;

 public:
  explicit HostChase(Blas<T>& blas) : blas_(blas) {}

  Status Chase(Stream stream, int64_t n, int64_t b, T* band, int64_t ldb, int64_t first,
               int64_t sweeps, T* v, int64_t ldv, T* tau, int64_t ldtau) override {
    // With such short columns, accesses would extend beyond the last one, so this works on a padded
    // copy.
    if (ldb <= Bulge::kOverlap) {
      constexpr int64_t kRoom = Bulge::kOverlap + 1;
      std::vector<T> copy(n * kRoom);
      for (int64_t j = 0; j < n; ++j) std::copy_n(band + j * ldb, ldb, &copy[j * kRoom]);
      JAXMG_RETURN_IF_ERROR(
          Chase(stream, n, b, copy.data(), kRoom, first, sweeps, v, ldv, tau, ldtau));
      for (int64_t j = 0; j < n; ++j) std::copy_n(&copy[j * kRoom], ldb, band + j * ldb);
      return Status::Ok();
    }
    const int64_t rows = std::min(b, n), end = first + sweeps;
    Bulge bulge(rows, ldb - 1);
    auto at = [&](int64_t i, int64_t j) { return band + i + j * (ldb - 1); };
    // A pipeline runs as many sweeps as have their data in a cache of this size. Each stays one
    // step behind the previous one, the minimum distance: the last row of its blocks is the first
    // of the next step.
    constexpr int64_t kCache = int64_t{256} << 10;
    const int64_t room = kCache / (2 * rows * rows * static_cast<int64_t>(sizeof(T)));
    const int64_t at_once = std::clamp<int64_t>(room, 1, 64);
    std::vector<Reflector> reflectors(std::min(at_once, sweeps), Reflector(rows));
    for (int64_t begin = first; begin < end; begin += at_once) {
      const int64_t count = std::min(at_once, end - begin);
      for (int64_t time = 0; time < Steps(n, b, begin) + count - 1; ++time) {
        for (int64_t k = 0; k < count; ++k) {
          const int64_t s = begin + k, j = time - k, row = s + 1 + j * b;
          if (j < 0 || row >= n) continue;
          Reflector* h = &reflectors[k];
          const int64_t height = std::min(b, n - row);
          if (j == 0) {
            bulge.Make(height, at(row, s), h);
          } else {
            bulge.OffDiagonal(height, b, at(row, row - b), h);
          }
          bulge.Diagonal(height, at(row, row), *h);
          if (v == nullptr) continue;
          T* to = v + (s - first) * ldv + row - first - 1;
          for (int64_t i = 0; i < height; ++i) to[i] = h->v[i];
          tau[j + (s - first) * ldtau] = h->tau;
        }
      }
    }
    return Status::Ok();
  }

  Status TakeTridiagonal(Stream, int64_t n, const T* band, int64_t ldb, R* d, R* e) override {
    for (int64_t i = 0; i < n; ++i) d[i] = std::real(band[i * ldb]);
    for (int64_t i = 0; i + 1 < n; ++i) e[i] = std::real(band[i * ldb + 1]);
    return Status::Ok();
  }

  Status ExpandReflectors(Stream stream, int64_t n, int64_t b, int64_t first, int64_t sweeps,
                          const T* v, int64_t ldv, const T* tau, int64_t ldtau, T* blocks,
                          T* weighted) override {
    const int64_t height = b + sweeps;
    std::vector<T> t(sweeps * sweeps), gram(sweeps * sweeps);
    for (int64_t j = 0; first + 1 + j * b < n; ++j) {
      T* block = blocks + j * height * sweeps;
      std::fill_n(block, height * sweeps, T(0));
      for (int64_t k = 0; k < sweeps; ++k) {
        const int64_t row = first + k + 1 + j * b;
        if (row >= n) break;
        std::copy_n(v + k * ldv + k + j * b, std::min(b, n - row), block + k * height + k);
      }
      // W = V T as in LAPACK's xLARFT: T(0 : k, k) = -tau_k T(0 : k, 0 : k) (V^H v_k).
      JAXMG_RETURN_IF_ERROR(blas_.Gemm(stream, Op::kConjTrans, Op::kNone, sweeps, sweeps, height, 1,
                                       block, height, block, height, 0, gram.data(), sweeps));
      std::fill(t.begin(), t.end(), T(0));
      for (int64_t k = 0; k < sweeps && first + k + 1 + j * b < n; ++k) {
        const T factor = tau[j + k * ldtau];
        T* column = &t[k * sweeps];
        for (int64_t l = 0; l < k; ++l) {
          const T product = factor * gram[l + k * sweeps];
          for (int64_t i = 0; i <= l; ++i) column[i] -= t[i + l * sweeps] * product;
        }
        column[k] = factor;
      }
      JAXMG_RETURN_IF_ERROR(blas_.Gemm(stream, Op::kNone, Op::kNone, height, sweeps, sweeps, 1,
                                       block, height, t.data(), sweeps, 0,
                                       weighted + j * height * sweeps, height));
    }
    return Status::Ok();
  }

  Status ApplyGroups(Stream stream, const SweepGroups& groups, int64_t columns, int64_t at_once,
                     const T* blocks, const T* weighted, T* z, int64_t ldz, T* products) override {
    const int64_t height = groups.height(), width = groups.width;
    return ForBlocksAtOnce(groups, columns, at_once, [&](const BlocksAtOnce& some) {
      for (int64_t i = 0; i < some.count; ++i) {
        const int64_t block = groups.block(some.g + i, some.j + i);
        T* piece = z + groups.row(some.g + i, some.j + i) * ldz + some.column;
        JAXMG_RETURN_IF_ERROR(blas_.Gemm(stream, Op::kNone, Op::kNone, some.wide, width, some.rows,
                                         1, piece, ldz, blocks + block, height, 0, products,
                                         some.wide));
        JAXMG_RETURN_IF_ERROR(blas_.Gemm(stream, Op::kNone, Op::kConjTrans, some.wide, some.rows,
                                         width, -1, products, some.wide, weighted + block, height,
                                         1, piece, ldz));
      }
      return Status::Ok();
    });
  }

 private:
  static int64_t Steps(int64_t n, int64_t b, int64_t sweep) { return (n - 1 - sweep + b - 1) / b; }

  Blas<T>& blas_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_HOST_EIGEN_CHASE_H_
