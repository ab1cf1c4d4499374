#include "xla_ffi/engine/svd/gesvd_vectors.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "xla_ffi/engine/core/host_copy.h"
#include "xla_ffi/engine/core/stage.h"

namespace jaxmg {
namespace {

int64_t BlockOf(int64_t count, int ranks) { return (count + ranks - 1) / ranks; }

// Host memory for numbers that are copied to and from the device.
template <typename T>
struct HostNumbers {
  HostNumbers(int64_t n, int64_t count, int ranks)
      : w(pieces.Reserve<Real<T>>(n)),
        s(pieces.Reserve<Real<T>>(count)),
        signs(pieces.Reserve<Real<T>>(count)),
        order(pieces.Reserve<int32_t>(count)),
        sums(pieces.Reserve<double>(kSquareSums * ranks)) {}

  Pieces pieces;
  Piece<Real<T>> w, s, signs;
  Piece<int32_t> order;
  Piece<double> sums;
};

}  // namespace

template <typename T>
GesvdVectorsSpace<T>::GesvdVectorsSpace(const Sizes& sizes, const SingularVectors<T>& wanted,
                                        const Ranks& ranks)
    : eigenvalues{sizes.n - wanted.subset.last, sizes.n - wanted.subset.first},
      h_in_vh(wanted.u == nullptr && wanted.vh_block >= sizes.block),
      polar(in_polar, sizes, true, wanted.in_double, ranks) {
  const int64_t n = sizes.n, block = sizes.block, count = wanted.subset.count();
  w = own.Reserve<Real<T>>(n);
  signs = own.Reserve<Real<T>>(count);
  order = own.Reserve<int32_t>(count);
  sums = own.Reserve<double>(kSquareSums * (1 + ranks.size));
  h = own.Reserve<T>(h_in_vh ? 0 : n * block);
  const RowBlocks<T> of_v = {n, count, block, nullptr};
  const RowBlocks<T> gram = {count, count, BlockOf(count, ranks.size), nullptr};
  const RowBlocks<T> of_vh = {count, n, wanted.vh_block, nullptr};
  v = in_products.Reserve<T>(block * count);
  corrected = in_products.Reserve<T>(block * count);
  stage = in_products.Reserve<T>(
      std::max({GramSpace(ranks, of_v, gram), RowsTimesRowsSpace(ranks, gram),
                RowsTimesRowsSpace(ranks, of_v), AdjointOfSpace(ranks, of_v, of_vh)}));
  const auto bytes = static_cast<int64_t>(std::max(in_polar.bytes(), in_products.bytes()));
  elements = (bytes + sizeof(T) - 1) / sizeof(T);
  host_bytes =
      std::max<int64_t>(HostNumbers<T>(n, count, ranks.size).pieces.bytes(), polar.host_bytes);
}

namespace {

template <typename T>
class Program {
  using R = Real<T>;

 public:
  Program(const RankContext& context, const Operand<T>& operand, const SingularVectors<T>& wanted)
      : context_(context),
        operand_(operand),
        wanted_(wanted),
        space_(operand.sizes(), wanted, RanksOf(context)),
        of_host_(operand.n, wanted.subset.count(), context.comm.size()),
        own_(space_.own),
        in_polar_(space_.in_polar),
        in_products_(space_.in_products) {}

  Status Prepare() {
    JAXMG_RETURN_IF_ERROR(
        CopyIfApart(device(), operand_.source, operand_.a, operand_.block * operand_.n));
    JAXMG_RETURN_IF_ERROR(own_.Allocate(device()));
    JAXMG_RETURN_IF_ERROR(device().AllocateOnHost(space_.host_bytes, &host_));
    h_ = space_.h_in_vh ? wanted_.vh : own_.Get(space_.h);
    of_h_ = {operand_.m, operand_.n, operand_.block, operand_.tile, h_, operand_.status};
    const bool all = count() == operand_.n;
    v_of_h_ = all ? h_ : wanted_.u;
    problem_.emplace(context_, of_h_, space_.eigenvalues, own_.Get(space_.w), v_of_h_,
                     space_.elements);
    JAXMG_RETURN_IF_ERROR(problem_->Prepare());
    JAXMG_RETURN_IF_ERROR(device().ReserveHandles());
    in_polar_.Use(problem_->workspace());
    in_products_.Use(problem_->workspace());
    return polar().Prepare();
  }

  Status Work() {
    const Outcome<T>& outcome = problem_->frame().outcome();
    int exponent = 0;
    bool finite = true;
    const int64_t n = operand_.n;
    const int64_t band = device().tuning().eigen.band_width;
    AnnounceWork(device(),
                 PolarWork(n) + 2 * ProductWork(n, n, count()) +
                     EigenWork(n, band, context_.comm.size(), space_.eigenvalues.count()));
    JAXMG_RETURN_IF_ERROR(polar().Compute(&exponent, &finite));
    if (finite) {
      JAXMG_RETURN_IF_ERROR(problem_->Solve());
      JAXMG_RETURN_IF_ERROR(Sort(exponent));
      JAXMG_RETURN_IF_ERROR(Correct());
      JAXMG_RETURN_IF_ERROR(FormVectors());
    } else {
      JAXMG_RETURN_IF_ERROR(device().FillInt32(Stream::kMain, outcome.info(), 1, kNotFinite));
      JAXMG_RETURN_IF_ERROR(outcome.Set());
    }
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(count(), operand_.block, u()));
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(operand_.n, wanted_.vh_block, wanted_.vh));
    JAXMG_RETURN_IF_ERROR(outcome.PoisonIfFailed(count(), 1, wanted_.s));
    return WaitAllSent(context_.comm, Stream::kMain);
  }

 private:
  Device& device() { return context_.device; }
  MatrixKernels<T>& matrix() { return context_.device.template matrix<T>(); }
  int64_t count() const { return wanted_.subset.count(); }
  T* u() const { return wanted_.u == nullptr ? operand_.a : wanted_.u; }
  int64_t rows() const {
    return RowBlocks<T>{operand_.n, 1, operand_.block, nullptr}.rows(context_.comm.rank());
  }
  RowBlocks<T> OfV(T* data) const { return {operand_.n, count(), operand_.block, data}; }
  RowBlocks<T> OfGram() const {
    return {count(), count(), BlockOf(count(), context_.comm.size()), h_};
  }
  T* stage() const { return in_products_.Get(space_.stage); }
  template <typename U>
  U* on_host(const Piece<U>& piece) const {
    return reinterpret_cast<U*>(static_cast<char*>(host_->data()) + piece.offset);
  }
  template <typename U>
  Status ToDevice(const Piece<U>& from, U* to) {
    return device().Copy(Stream::kMain, Block(to, count(), count(), 1),
                         Block(on_host(from), count(), count(), 1));
  }
  Polar<T> polar() {
    return {context_, operand_.sizes(), space_.polar, in_polar_, operand_.a, h_, host_->data()};
  }

  // v_ := V, ordered by descending |w|. Also sets s and the signs of w in this order.
  Status Sort(int exponent) {
    const int64_t n = operand_.n;
    R *w = on_host(of_host_.w), *s = on_host(of_host_.s), *signs = on_host(of_host_.signs);
    JAXMG_RETURN_IF_ERROR(
        CopyToHost(device(), Block(w, n, n, 1), Block(own_.Get(space_.w), n, n, 1)));
    const R* part = w + space_.eigenvalues.first;
    int32_t* order = on_host(of_host_.order);
    std::iota(order, order + count(), 0);
    // After a failure the eigenvalues may be NaN, which sorting doesn't allow.
    if (std::all_of(part, part + count(), [](R x) { return std::isfinite(x); })) {
      std::stable_sort(order, order + count(),
                       [&](int32_t i, int32_t j) { return std::abs(part[i]) > std::abs(part[j]); });
    }
    for (int64_t i = 0; i < count(); ++i) {
      s[i] = std::ldexp(std::abs(part[order[i]]), exponent);
      signs[i] = part[order[i]] < 0 ? R(-1) : R(1);
    }
    JAXMG_RETURN_IF_ERROR(ToDevice(of_host_.s, wanted_.s));
    JAXMG_RETURN_IF_ERROR(ToDevice(of_host_.signs, own_.Get(space_.signs)));
    JAXMG_RETURN_IF_ERROR(ToDevice(of_host_.order, own_.Get(space_.order)));
    v_ = in_products_.Get(space_.v);
    return matrix().TakeRows(Stream::kMain, count(), rows(), own_.Get(space_.order), nullptr,
                             v_of_h_, count(), v_, count());
  }

  // v_ := V - V (V^H V - I) / 2 if V isn't orthonormal to rounding. The host waits here, so the
  // copies that Sort enqueued from host memory are complete afterwards.
  Status Correct() {
    const RowBlocks<T> gram = OfGram();
    const int rank = context_.comm.rank(), ranks = context_.comm.size();
    double *mine = own_.Get(space_.sums), *all = mine + kSquareSums;
    double* sums = on_host(of_host_.sums);
    const int64_t terms = kSquareSums * ranks;
    JAXMG_RETURN_IF_ERROR(Gram<T>(context_, {}, OfV(v_), gram, stage()));
    JAXMG_RETURN_IF_ERROR(matrix().AddToDiagonal(Stream::kMain, count(), gram.rows(rank),
                                                 -gram.begin(rank), R(-1), gram.data, count()));
    JAXMG_RETURN_IF_ERROR(matrix().SquareSums(Stream::kMain, false, count(), gram.rows(rank),
                                              gram.data, count(), mine));
    JAXMG_RETURN_IF_ERROR(
        AllGather(context_.comm, device(), Stream::kMain, mine, all, kSquareSums * sizeof(double)));
    JAXMG_RETURN_IF_ERROR(
        CopyToHost(device(), Block(sums, terms, terms, 1), Block(all, terms, terms, 1)));
    const double apart = std::sqrt(std::accumulate(sums, sums + terms, 0.0));
    const double eps = std::numeric_limits<R>::epsilon();
    if (!(apart > 10 * eps * std::sqrt(static_cast<double>(count())))) return Status::Ok();
    T* corrected = in_products_.Get(space_.corrected);
    JAXMG_RETURN_IF_ERROR(device().CopyWithin(Stream::kMain,
                                              Block(corrected, count(), count(), rows()),
                                              Block(v_, count(), count(), rows())));
    JAXMG_RETURN_IF_ERROR(
        RowsTimesRows<T>(context_, {R(-0.5), 1}, OfV(v_), gram, OfV(corrected), stage()));
    v_ = corrected;
    return Status::Ok();
  }

  Status FormVectors() {
    const int64_t n = operand_.n;
    const bool in_place = wanted_.u == nullptr;
    T* product = in_place ? h_ : wanted_.u;
    const RowBlocks<T> q = {n, n, operand_.block, operand_.a};
    JAXMG_RETURN_IF_ERROR(RowsTimesRows<T>(context_, {}, q, OfV(v_), OfV(product), stage()));
    JAXMG_RETURN_IF_ERROR(matrix().ScaleRowsAndColumns(
        Stream::kMain, false, count(), rows(), own_.Get(space_.signs), nullptr, product, count()));
    if (in_place) {
      JAXMG_RETURN_IF_ERROR(device().CopyWithin(Stream::kMain, Block(operand_.a, n, n, rows()),
                                                Block(product, n, n, rows())));
    }
    return AdjointOf<T>(context_, Op::kConjTrans, OfV(v_),
                        {count(), n, wanted_.vh_block, wanted_.vh}, stage());
  }

  const RankContext& context_;
  const Operand<T>& operand_;
  const SingularVectors<T>& wanted_;
  const GesvdVectorsSpace<T> space_;
  const HostNumbers<T> of_host_;
  Workspace own_, in_polar_, in_products_;
  std::unique_ptr<Buffer> host_;
  T *h_ = nullptr, *v_of_h_ = nullptr, *v_ = nullptr;
  Operand<T> of_h_ = {};
  std::optional<Eigenproblem<T>> problem_;
};

}  // namespace

template <typename T>
Status GesvdVectorsRoutine(const RankContext& context, const Operand<T>& operand,
                           const SingularVectors<T>& wanted) {
  Program<T> program(context, operand, wanted);
  return RunOnAllRanks(
      context.comm, [&] { return program.Prepare(); }, [&] { return program.Work(); });
}

#define JAXMG_INSTANTIATE(T)                                                 \
  template struct GesvdVectorsSpace<T>;                                      \
  template Status GesvdVectorsRoutine(const RankContext&, const Operand<T>&, \
                                      const SingularVectors<T>&);
JAXMG_FOR_EACH_DTYPE(JAXMG_INSTANTIATE)
#undef JAXMG_INSTANTIATE

}  // namespace jaxmg
