// Outcome: reduces the ranks' own outcomes to one status, and to one logarithm and sign of the
// determinant, on all ranks. A routine chooses whether its results are NaN for any nonzero status
// or only for a negative one. Used by the engine's and the vendors' routines.
#ifndef JAXMG_XLA_FFI_ENGINE_CORE_OUTCOME_H_
#define JAXMG_XLA_FFI_ENGINE_CORE_OUTCOME_H_

#include <cstdint>

#include "xla_ffi/engine/core/gather.h"
#include "xla_ffi/engine/core/matrix.h"
#include "xla_ffi/engine/core/plan.h"

namespace jaxmg {

// A rank's record consists of an info, a digest of the operands that must be equal on all ranks,
// and this rank's terms of the logarithm and of the sign. `records` is device memory for this
// rank's record, the records of all ranks, and a copy of the status in which 0 replaces positive
// values.
template <typename T>
class Outcome {
 public:
  static size_t Bytes(int ranks) { return RecordsBytes(ranks); }

  // If `gathers`, only the root works, and the other ranks send it their records.
  Outcome(const RankContext& context, bool gathers, void* records, int32_t* status)
      : context_(context), gathers_(gathers), records_(records), status_(status) {}

  int32_t* status() const { return status_; }
  int32_t* info() const { return static_cast<int32_t*>(records_); }
  int32_t* digest() const { return info() + 1; }
  Real<T>* log_det() const { return reinterpret_cast<Real<T>*>(info() + kRecordLogDet); }
  T* sign() const { return reinterpret_cast<T*>(info() + kRecordSign); }
  // Whether this rank works on the matrix.
  bool works() const { return !gathers_ || context_.comm.rank() == kRoot; }

  // Sets this rank's record to no info, no logarithm and sign 1.
  Status Init() const {
    constexpr bool kSingle = sizeof(Real<T>) == sizeof(float);
    // The upper word of 1.0 as a double, or its only word as a float. The real part comes first.
    return device().status().InitRecord(device(), Stream::kMain, info(),
                                        kRecordSign + (kSingle ? 0 : 1),
                                        kSingle ? 0x3f800000 : 0x3ff00000);
  }

  // If only the root works, sends the other ranks' records to it. Set adds the root's own record.
  Status GatherRecords() const {
    if (!works()) return context_.comm.Send(Stream::kMain, kRoot, mine());
    for (int rank = 1; rank < context_.comm.size(); ++rank) {
      JAXMG_RETURN_IF_ERROR(context_.comm.Recv(Stream::kMain, rank, RecordOf(rank)));
    }
    return Status::Ok();
  }

  // Reduces the ranks' records to *status.
  Status Set() const {
    if (works()) {
      JAXMG_RETURN_IF_ERROR(Collect());
      JAXMG_RETURN_IF_ERROR(device().status().ReduceInfo(Stream::kMain, collected(), kRecordWords,
                                                         context_.comm.size(), status_));
    }
    return Spread(status_, 1);
  }

  // As Set, for routines that have results for a singular matrix and call PoisonIfNegative.
  Status SetAndKeepNegative() const {
    JAXMG_RETURN_IF_ERROR(Set());
    return works() ? device().status().KeepNegative(Stream::kMain, status_, failure())
                   : Status::Ok();
  }

  // Sets *log_det, unless it is null, to the sum of the ranks' logarithms, or to NaN if the status
  // is not 0. Call after Set.
  Status SetLogDet(Real<T>* log_det) const {
    if (log_det == nullptr) return Status::Ok();
    if (works()) {
      const auto* terms = reinterpret_cast<const Real<T>*>(collected() + kRecordLogDet);
      JAXMG_RETURN_IF_ERROR(device().status().SumReals(
          Stream::kMain, terms, kRecordBytes / sizeof(Real<T>), context_.comm.size(), log_det));
    }
    JAXMG_RETURN_IF_ERROR(PoisonIfFailed(1, 1, log_det));
    return Spread(log_det, 1);
  }

  // Combines Set, SetLogDet and PoisonIfFailed in one operation. The latter applies to the `count`
  // elements of x.
  Status ConcludeOrFail(Real<T>* log_det, T* x, int64_t count) const {
    return Conclude(nullptr, log_det, nullptr, x, count);
  }
  // As ConcludeOrFail, for routines whose results are NaN only if the status is negative. Also sets
  // *sign to the product of the ranks' signs. Call instead of SetAndKeepNegative.
  Status ConcludeDeterminant(Real<T>* log_abs, T* sign, T* x, int64_t count) const {
    return Conclude(failure(), log_abs, sign, x, count);
  }

  // Fills results of this rank with NaN if the status is not 0. For routines that have no result
  // after a failure.
  template <typename U>
  Status PoisonIfFailed(int64_t m, int64_t n, U* data) const {
    if (!works()) return Status::Ok();
    return device().status().PoisonIf(Stream::kMain, status_, m, n, data, m);
  }

  // Fills results of this rank with NaN if the status is negative. Call after SetAndKeepNegative.
  template <typename U>
  Status PoisonIfNegative(int64_t m, int64_t n, U* data) const {
    if (!works()) return Status::Ok();
    return device().status().PoisonIf(Stream::kMain, failure(), m, n, data, m);
  }

  // Broadcasts a result of the root to all ranks if only the root works.
  template <typename U>
  Status Spread(U* data, int64_t count) const {
    if (!gathers_ || count == 0) return Status::Ok();
    return Broadcast(context_.comm, Stream::kMain, kRoot, Block(data, count, count, 1));
  }

 private:
  Device& device() const { return context_.device; }
  Bytes2D mine() const {
    return Block(static_cast<char*>(records_), kRecordBytes, kRecordBytes, 1);
  }
  Bytes2D RecordOf(int rank) const {
    return Block(static_cast<char*>(records_) + (1 + rank) * kRecordBytes, kRecordBytes,
                 kRecordBytes, 1);
  }

  Status Conclude(int32_t* failure, Real<T>* log_det, T* sign, T* x, int64_t count) const {
    if (works()) {
      JAXMG_RETURN_IF_ERROR(Collect());
      JAXMG_RETURN_IF_ERROR(device().status().Conclude(
          Stream::kMain, Conclusion<T>{collected(), context_.comm.size(), status_, failure, log_det,
                                       sign, x, count}));
    }
    JAXMG_RETURN_IF_ERROR(Spread(status_, 1));
    if (log_det != nullptr) JAXMG_RETURN_IF_ERROR(Spread(log_det, 1));
    if (sign != nullptr) JAXMG_RETURN_IF_ERROR(Spread(sign, 1));
    return Spread(x, count);
  }

  // The records of all ranks, after Collect. A single rank uses its own record.
  const int32_t* collected() const {
    return context_.comm.size() == 1 ? info() : static_cast<int32_t*>(RecordOf(0).data);
  }
  Status Collect() const {
    if (context_.comm.size() == 1) return Status::Ok();
    if (gathers_) return device().Copy(Stream::kMain, RecordOf(kRoot), mine());
    return AllGather(context_.comm, device(), Stream::kMain, mine().data, RecordOf(0).data,
                     kRecordBytes);
  }

  // The status, or 0 if it is positive.
  int32_t* failure() const { return static_cast<int32_t*>(RecordOf(context_.comm.size()).data); }

  const RankContext& context_;
  const bool gathers_;
  void* const records_;
  int32_t* const status_;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_CORE_OUTCOME_H_
