// The kernels of kernels.cu. Their names in the fatbin are jaxmg_ and what stands here, and a
// letter for the dtype where they have one: jaxmg_mirror_lower_d.
#ifndef JAXMG_XLA_FFI_DEVICE_KERNELS_H_
#define JAXMG_XLA_FFI_DEVICE_KERNELS_H_

namespace jaxmg {

enum class Kernel {
  kAdd,
  kAddLogDet,
  kAscend,
  kCheckFactor,
  kCheckFinite,
  kClearIf,
  kConjTranspose,
  kConjugate,
  kIdentity,
  kLoadInverse,
  kMirrorLower,
  kPoisonIf,
  kSolveRowsAlone,
  kSolveRowsInTeams,
  kStoreInverse,
  kSumReals,
  // Those without a dtype.
  kCopyColumns,
  kDigest,
  kFillInt32,
  kInitInfo,
  kReduceInfo,
  kSetSyevdInfo,
};

inline constexpr const char* kTypedKernels[] = {"add",
                                                "add_log_det",
                                                "ascend",
                                                "check_factor",
                                                "check_finite",
                                                "clear_if",
                                                "conj_transpose",
                                                "conjugate",
                                                "identity",
                                                "load_inverse",
                                                "mirror_lower",
                                                "poison_if",
                                                "solve_rows",
                                                "solve_rows_in_teams",
                                                "store_inverse",
                                                "sum_reals"};
inline constexpr const char* kPlainKernels[] = {"copy_columns", "digest",      "fill_int32",
                                                "init_info",    "reduce_info", "set_syevd_info"};
inline constexpr int kNumTypedKernels = static_cast<int>(Kernel::kCopyColumns);
inline constexpr int kNumKernels = static_cast<int>(Kernel::kSetSyevdInfo) + 1;

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_KERNELS_H_
