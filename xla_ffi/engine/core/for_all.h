// Routines that one rank runs for all ranks of its process, whose memory it shares. It copies their
// blocks to a matrix of its own, runs the routine for one rank on this matrix, and copies the
// results to all of them. The ranks exchange nothing, and the results have the same bits as on one
// rank.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_FOR_ALL_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_FOR_ALL_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "xla_ffi/engine/core/frame.h"

namespace jaxmg {

// Returns whether one rank solves with, or inverts, a matrix of this order for all. `tile` is the
// caller's width; a caller that sets one gets tiles on all ranks.
template <typename T>
bool SolvesForAll(int64_t n, int64_t tile, const Tuning& tuning) {
  return tile == 0 && n <= tuning.whole_solve_order;
}

// Columns of `rows` elements in contiguous blocks, rank by rank, and copies to and from one matrix.
template <typename T>
struct BlocksOfAll {
  int64_t rows, columns, block;

  int64_t first(size_t rank) const { return std::min(static_cast<int64_t>(rank) * block, columns); }
  // The number of a rank's columns, without padding.
  int64_t count(size_t rank) const { return std::min(block, columns - first(rank)); }

  Status Gather(Device& device, const std::vector<const T*>& parts, T* whole) const {
    return Copy(parts, [&](const T* part, int64_t first, int64_t count) {
      return device.Copy(Stream::kMain, Block(whole + first * rows, rows, rows, count),
                         Block(part, rows, rows, count));
    });
  }
  Status Scatter(Device& device, const T* whole, const std::vector<T*>& parts) const {
    return Copy(parts, [&](T* part, int64_t first, int64_t count) {
      return device.Copy(Stream::kMain, Block(part, rows, rows, count),
                         Block(whole + first * rows, rows, rows, count));
    });
  }

 private:
  template <typename Parts, typename F>
  Status Copy(const Parts& parts, const F& copy) const {
    if (rows == 0) return Status::Ok();
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      if (count(rank) > 0) JAXMG_RETURN_IF_ERROR(copy(parts[rank], first(rank), count(rank)));
    }
    return Status::Ok();
  }
};

// Returns [get(part) for part in parts].
template <typename Part, typename F>
auto OfAll(const std::vector<Part>& parts, const F& get) {
  std::vector<decltype(get(parts[0]))> all;
  all.reserve(parts.size());
  for (const Part& part : parts) all.push_back(get(part));
  return all;
}

// Copies the first rank's result to the other ranks.
template <typename T>
Status CopyToAll(Device& device, int64_t count, const std::vector<T*>& results) {
  for (size_t rank = 1; rank < results.size(); ++rank) {
    JAXMG_RETURN_IF_ERROR(CopyIfApart<T>(device, results[0], results[rank], count));
  }
  return Status::Ok();
}

// Returns whether the operands of all ranks are equal bit for bit.
template <typename T>
bool AllAlike(int64_t count, const std::vector<const T*>& operands) {
  for (size_t rank = 1; rank < operands.size(); ++rank) {
    if (count > 0 && operands[rank] != operands[0] &&
        std::memcmp(operands[rank], operands[0], count * sizeof(T)) != 0) {
      return false;
    }
  }
  return true;
}

// The ranks' operands as the operand of one rank.
template <typename T>
class OperandOfAll {
 public:
  explicit OperandOfAll(std::vector<Operand<T>> operands)
      : operands_(std::move(operands)), whole_(operands_[0]) {
    whole_.block = whole_.m;
    whole_.source = nullptr;
  }

  // Allocates the matrix and copies the ranks' rows to it.
  Status Take(Device& device) {
    const size_t bytes = whole_.m * whole_.n * sizeof(T);
    JAXMG_RETURN_IF_ERROR(device.Allocate(bytes, &memory_));
    whole_.a = memory_->template as<T>();
    const auto sources = OfAll(operands_, [](const Operand<T>& operand) {
      return operand.source != nullptr ? operand.source : operand.a;
    });
    return rows().Gather(device, sources, whole_.a);
  }
  // Copies the results in the matrix to the ranks' blocks. Padding rows get the values of the
  // source.
  Status Return(Device& device) const {
    for (size_t rank = 0; rank < operands_.size(); ++rank) {
      const Operand<T>& each = operands_[rank];
      const int64_t begin = rows().count(rank) * each.n, end = each.block * each.n;
      if (each.source == nullptr) continue;
      JAXMG_RETURN_IF_ERROR(CopyIfApart(device, each.source + begin, each.a + begin, end - begin));
    }
    return rows().Scatter(device, whole_.a,
                          OfAll(operands_, [](const Operand<T>& operand) { return operand.a; }));
  }
  // Copies the status to all ranks.
  Status ReturnStatus(Device& device) const {
    return CopyToAll<int32_t>(
        device, 1, OfAll(operands_, [](const Operand<T>& operand) { return operand.status; }));
  }

  const Operand<T>& operand() const { return whole_; }

 private:
  BlocksOfAll<T> rows() const { return {whole_.n, whole_.m, operands_[0].block}; }

  const std::vector<Operand<T>> operands_;
  Operand<T> whole_;
  std::unique_ptr<Buffer> memory_;
};

// Runs a routine whose result overwrites the operand.
template <typename T>
Status InPlaceForAll(const RankContext& alone, const std::vector<Operand<T>>& operands,
                     Status (*routine)(const RankContext&, const Operand<T>&)) {
  OperandOfAll<T> all(operands);
  JAXMG_RETURN_IF_ERROR(all.Take(alone.device));
  JAXMG_RETURN_IF_ERROR(routine(alone, all.operand()));
  JAXMG_RETURN_IF_ERROR(all.Return(alone.device));
  return all.ReturnStatus(alone.device);
}

// A rank's part of a call that solves. `Solution` is Solution or GeneralSolution.
template <typename T, typename Solution>
struct SolveOfAll {
  Operand<T> operand;
  Solution solution;
};

// Runs a routine that solves for right-hand sides that all ranks have. `log_dets` and `signs`: the
// routine's other results, by rank; `signs` is empty if there are none.
template <typename T, typename Solution>
Status SolveForAll(const RankContext& alone, const std::vector<SolveOfAll<T, Solution>>& parts,
                   Status (*routine)(const RankContext&, const Operand<T>&, const Solution&),
                   const std::vector<Real<T>*>& log_dets, const std::vector<T*>& signs) {
  using Part = SolveOfAll<T, Solution>;
  Device& device = alone.device;
  const Solution& first = parts[0].solution;
  OperandOfAll<T> all(OfAll(parts, [](const Part& part) { return part.operand; }));
  const int64_t count = all.operand().n * first.nrhs;
  const auto xs = OfAll(parts, [](const Part& part) { return part.solution.x; });
  const bool alike =
      !first.check_b || AllAlike<T>(count, OfAll(parts, [](const Part& part) -> const T* {
                                      return part.solution.b != nullptr ? part.solution.b
                                                                        : part.solution.x;
                                    }));
  JAXMG_RETURN_IF_ERROR(all.Take(device));
  JAXMG_RETURN_IF_ERROR(routine(alone, all.operand(), first));
  if (!alike) {
    int32_t* status = all.operand().status;
    *status = std::min(*status, kDifferentOperands);
    JAXMG_RETURN_IF_ERROR(
        device.status().PoisonIf(Stream::kMain, status, count, 1, first.x, count));
    JAXMG_RETURN_IF_ERROR(device.status().PoisonIf(Stream::kMain, status, 1, 1, log_dets[0], 1));
    if (!signs.empty()) {
      JAXMG_RETURN_IF_ERROR(device.status().PoisonIf(Stream::kMain, status, 1, 1, signs[0], 1));
    }
  }
  JAXMG_RETURN_IF_ERROR(CopyToAll<T>(device, count, xs));
  JAXMG_RETURN_IF_ERROR(CopyToAll<Real<T>>(device, 1, log_dets));
  if (!signs.empty()) JAXMG_RETURN_IF_ERROR(CopyToAll<T>(device, 1, signs));
  return all.ReturnStatus(device);
}

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_FOR_ALL_H_
