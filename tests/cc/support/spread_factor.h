// SpreadFactor: memory for the factor of a matrix in host memory as in a job of several processes,
// each of which has one or two ranks and only their tile columns.
#ifndef JAXMG_TESTS_CC_SUPPORT_SPREAD_FACTOR_H_
#define JAXMG_TESTS_CC_SUPPORT_SPREAD_FACTOR_H_

#include <cstdint>
#include <vector>

#include "xla_ffi/engine/offload/host_matrix.h"

namespace jaxmg::testing {

template <typename T>
class SpreadFactor {
 public:
  // `memory` has as many elements as the matrix.
  SpreadFactor(const HostShape& shape, T* memory) : shape_(shape) {
    for (int i = 0; i <= Process(shape.ranks - 1); ++i) {
      factors_.emplace_back();
      for (int64_t j = 0; j < shape.blocks(); ++j) {
        const int64_t rows = shape.whole ? shape.n : shape.rows(j);
        factors_[i].push_back({memory, rows});
        const Tiles tiles = shape.tiles(j);
        for (int64_t p = 0; p < tiles.nonempty(); ++p) {
          if (Process(tiles.owner(p)) == i) memory += tiles.width(p) * rows;
        }
      }
    }
  }

  int Process(int rank) const { return rank / (1 + static_cast<int>(shape_.n % 2)); }

  // Returns the matrix as a rank's process knows it.
  HostMatrix Of(int rank, HostMatrix host) const {
    host.factor = factors_[Process(rank)];
    host.shape.spread = true;
    int count = 0;
    for (int i = 0; i < shape_.ranks; ++i) {
      host.local.push_back(Process(i) == Process(rank) ? count++ : -1);
    }
    return host;
  }

  void SetPageable() {
    for (auto& factor : factors_) {
      for (HostBlock& block : factor) block.pageable = true;
    }
  }

 private:
  const HostShape shape_;
  std::vector<std::vector<HostBlock>> factors_;  // by process
};

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_SPREAD_FACTOR_H_
