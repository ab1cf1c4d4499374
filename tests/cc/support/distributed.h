// Shared by the tests of factorizations of general matrices: a matrix whose columns are distributed
// in tiles over the ranks.
#ifndef JAXMG_TESTS_CC_SUPPORT_DISTRIBUTED_H_
#define JAXMG_TESTS_CC_SUPPORT_DISTRIBUTED_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cc/support/problem.h"
#include "xla_ffi/engine/core/matrix.h"

namespace jaxmg::testing {

// The shape of a matrix of `rows` rows, and the distribution of its columns in tiles over the
// ranks.
struct Shape {
  int64_t rows, columns;
  int ranks;
  int64_t tile;
};

// Each rank's tiles, contiguous, and memory for the last one as an overflow tile.
template <typename T>
struct Distributed {
  Distributed(const Shape& shape, const std::vector<T>& whole)
      : shape(shape),
        block((shape.columns + shape.ranks - 1) / shape.ranks),
        tiles(shape.columns, block, shape.ranks, shape.tile) {
    for (int rank = 0; rank < shape.ranks; ++rank) {
      data.emplace_back(tiles.slots() * tiles.width() * shape.rows, NaN<T>());
      overflow.emplace_back(tiles.width() * shape.rows, NaN<T>());
    }
    ForEachTile([&](const Matrix<T>& matrix, int64_t p) {
      std::copy_n(whole.data() + tiles.offset(p) * shape.rows, tiles.width(p) * shape.rows,
                  matrix.tile(p));
    });
  }

  Matrix<T> matrix(int rank) {
    return {tiles, rank, shape.rows, data[rank].data(), overflow[rank].data()};
  }

  std::vector<T> Gather() {
    std::vector<T> whole(shape.rows * shape.columns);
    ForEachTile([&](const Matrix<T>& matrix, int64_t p) {
      std::copy_n(matrix.tile(p), tiles.width(p) * shape.rows,
                  whole.data() + tiles.offset(p) * shape.rows);
    });
    return whole;
  }

  template <typename F>
  void ForEachTile(const F& f) {
    for (int rank = 0; rank < shape.ranks; ++rank) {
      for (int64_t p = rank; p < tiles.nonempty(); p += shape.ranks) f(matrix(rank), p);
    }
  }

  const Shape shape;
  const int64_t block;
  const Tiles tiles;
  std::vector<std::vector<T>> data, overflow;
};

template <typename T>
std::vector<T> RandomMatrix(int64_t count, int64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> a(count);
  for (T& x : a) x = Random<T>(random);
  return a;
}

template <typename T>
std::string Name(const Shape& shape) {
  std::ostringstream text;
  text << shape.rows << " x " << shape.columns << " ranks " << shape.ranks << " tile " << shape.tile
       << ": ";
  return text.str();
}

}  // namespace jaxmg::testing

#endif  // JAXMG_TESTS_CC_SUPPORT_DISTRIBUTED_H_
