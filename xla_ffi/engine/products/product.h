// The products of products.h as a routine.
#ifndef JAXMG_XLA_FFI_ENGINE_PRODUCTS_PRODUCT_H_
#define JAXMG_XLA_FFI_ENGINE_PRODUCTS_PRODUCT_H_

#include "xla_ffi/engine/products/products.h"

namespace jaxmg {

enum class ProductKind { kRowsTimesRows, kRowsTimesAdjoint, kAdjointTimesRows, kGram, kAdjointOf };
inline constexpr int kNumProductKinds = 5;

template <typename T>
struct Product {
  ProductKind kind;
  RowBlocks<T> x;
  RowBlocks<T> y;  // not used by kGram and kAdjointOf
  RowBlocks<T> c;
  ProductTerms<T> terms = {};
  Factor factor = Factor::kGeneral;  // of kRowsTimesRows
};

// Returns the number of elements of workspace.
template <typename T>
int64_t ProductSpace(const Ranks& ranks, const Product<T>& product);

// Every rank calls it with the same sizes; all return the same Status, as in routines.h.
template <typename T>
Status ProductRoutine(const RankContext& context, const Product<T>& product);

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_ENGINE_PRODUCTS_PRODUCT_H_
