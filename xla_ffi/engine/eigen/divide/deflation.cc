#include "xla_ffi/engine/eigen/divide/deflation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace jaxmg {
namespace {

enum Group : int8_t { kTop, kAll, kBottom, kGroups };

// Scans the columns of one merge.
template <typename R>
class Scan {
 public:
  Scan(int64_t n, int64_t split, R rho, const R* d, const R* z, const MergeTables<R>& tables)
      : n_(n), tables_(tables), d_(d, d + n), z_(z, z + n), group_(n) {
    found_.rho = rho;
    for (int64_t i = 0; i < n; ++i) group_[i] = i < split ? kTop : kBottom;
    kept_.reserve(n);
    deflated_.reserve(n);
  }

  Deflation<R> Run() {
    constexpr R kEps = std::numeric_limits<R>::epsilon() / 2;
    R largest_d = 0, largest_z = 0;
    for (int64_t i = 0; i < n_; ++i) {
      largest_d = std::max(largest_d, std::abs(d_[i]));
      largest_z = std::max(largest_z, std::abs(z_[i]));
    }
    tolerance_ = 8 * kEps * std::max(largest_d, largest_z);
    std::vector<int32_t> ascending;
    SortRuns(n_, d_.data(), &ascending);
    if (!(found_.rho * largest_z > tolerance_)) {
      deflated_ = ascending;
    } else {
      for (int32_t column : ascending) Visit(column);
      kept_.push_back(pending_);
    }
    Store();
    return found_;
  }

 private:
  // Columns are scanned with ascending d. A column that takes part is pending until the next one
  // that takes part is known: if their d are close, a rotation makes the z of the first one vanish.
  void Visit(int32_t column) {
    if (!(found_.rho * std::abs(z_[column]) > tolerance_)) {
      deflated_.push_back(column);
      return;
    }
    if (pending_ >= 0) {
      const R norm = std::hypot(z_[pending_], z_[column]);
      const R c = z_[column] / norm, s = -z_[pending_] / norm;
      if (std::abs((d_[column] - d_[pending_]) * c * s) <= tolerance_) {
        Rotate(pending_, column, c, s);
        z_[column] = norm;
        deflated_.push_back(pending_);
      } else {
        kept_.push_back(pending_);
      }
    }
    pending_ = column;
  }

  void Rotate(int32_t x, int32_t y, R c, R s) {
    if (rotations_ == 0 || tables_.second[rotations_ - 1] != x) {
      tables_.starts[found_.chains++] = static_cast<int32_t>(rotations_);
    }
    tables_.first[rotations_] = x;
    tables_.second[rotations_] = y;
    tables_.c[rotations_] = c;
    tables_.s[rotations_] = s;
    ++rotations_;
    const R dx = d_[x], dy = d_[y];
    d_[x] = c * c * dx + s * s * dy;
    d_[y] = s * s * dx + c * c * dy;
    if (group_[x] != group_[y]) group_[y] = kAll;
  }

  void Store() {
    if (found_.chains > 0) tables_.starts[found_.chains] = static_cast<int32_t>(rotations_);
    const int64_t k = found_.k = kept_.size();
    int64_t count[kGroups] = {};
    for (int64_t i = 0; i < k; ++i) {
      tables_.d[i] = d_[kept_[i]];
      tables_.z[i] = z_[kept_[i]];
      ++count[group_[kept_[i]]];
    }
    found_.top = count[kTop];
    found_.bottom = count[kTop] + count[kAll];
    int64_t next[kGroups] = {0, found_.top, found_.bottom};
    for (int64_t i = 0; i < k; ++i) {
      const int64_t g = next[group_[kept_[i]]]++;
      tables_.order[g] = static_cast<int32_t>(i);
      tables_.columns[g] = kept_[i];
      tables_.grouped[g] = tables_.d[i];
    }
    // Sorts again, because rotations change d by up to the tolerance, which may exceed the distance
    // to a neighbour.
    std::stable_sort(deflated_.begin(), deflated_.end(),
                     [this](int32_t a, int32_t b) { return d_[a] < d_[b]; });
    for (int64_t i = k; i < n_; ++i) {
      tables_.columns[i] = deflated_[i - k];
      tables_.deflated[i - k] = d_[deflated_[i - k]];
    }
  }

  const int64_t n_;
  const MergeTables<R>& tables_;
  std::vector<R> d_, z_;
  std::vector<int8_t> group_;
  std::vector<int32_t> kept_, deflated_;
  R tolerance_ = 0;
  int32_t pending_ = -1;
  int64_t rotations_ = 0;
  Deflation<R> found_;
};

}  // namespace

template <typename R>
MergeTables<R>::MergeTables(void* data, int64_t n) {
  R* reals = static_cast<R*>(data);
  for (R** array : {&d, &z, &grouped, &deflated, &c, &s}) {
    *array = reals;
    reals += n;
  }
  int32_t* integers = reinterpret_cast<int32_t*>(reals);
  for (int32_t** array : {&first, &second, &starts, &order, &columns}) {
    *array = integers;
    integers += n;
  }
}

template <typename R>
void SortRuns(int64_t n, const R* values, std::vector<int32_t>* order) {
  order->resize(n);
  std::iota(order->begin(), order->end(), 0);
  std::vector<int64_t> bounds = {0};
  for (int64_t i = 1; i < n; ++i) {
    if (values[i] < values[i - 1]) bounds.push_back(i);
  }
  bounds.push_back(n);
  auto less = [values](int32_t a, int32_t b) { return values[a] < values[b]; };
  std::vector<int32_t> merged(n);
  while (bounds.size() > 2) {
    std::vector<int64_t> fewer = {0};
    for (size_t i = 0; i + 1 < bounds.size(); i += 2) {
      const auto at = [&](size_t bound) { return order->begin() + bounds[bound]; };
      const size_t end = std::min(i + 2, bounds.size() - 1);
      std::merge(at(i), at(i + 1), at(i + 1), at(end), merged.begin() + bounds[i], less);
      fewer.push_back(bounds[end]);
    }
    order->swap(merged);
    bounds.swap(fewer);
  }
}

template <typename R>
Deflation<R> Deflate(int64_t n, int64_t split, R rho, const R* d, const R* z,
                     const MergeTables<R>& tables) {
  return Scan<R>(n, split, rho, d, z, tables).Run();
}

#define JAXMG_INSTANTIATE(R)                                        \
  template struct MergeTables<R>;                                   \
  template void SortRuns(int64_t, const R*, std::vector<int32_t>*); \
  template Deflation<R> Deflate(int64_t, int64_t, R, const R*, const R*, const MergeTables<R>&);
JAXMG_INSTANTIATE(float)
JAXMG_INSTANTIATE(double)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
