// The kernels of kernels.cu. Their names in the fatbin are jaxmg_ and what stands here, and a
// letter for the dtype where they have one: jaxmg_mirror_lower_d.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_KERNELS_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_KERNELS_H_

namespace jaxmg {

enum class Kernel {
  kAdd,
  kAddLogDet,
  kApplyGroups,
  kArrangeColumns,
  kAscend,
  kChase,
  kCheckFactor,
  kCheckFinite,
  kClearIf,
  kConjTranspose,
  kConjugate,
  kCopyColumns,
  kDigest,
  kExpandReflectors,
  kFactorPanel,
  kFillInt32,
  kFromReal,
  kIdentity,
  kInitInfo,
  kLoadInverse,
  kMirrorLower,
  kMultiplyBfloats,
  kMultiplyHalves,
  kPackBand,
  kPoisonIf,
  kPowersOfTwo,
  kReduceInfo,
  kRefineZ,
  kRotateColumns,
  kRowLargest,
  kScale,
  kSecularRoots,
  kSecularVectors,
  kSetSyevdInfo,
  kSolveRowsAlone,
  kSolveRowsInTeams,
  kSplit,
  kStoreInverse,
  kSumReals,
  kTakeTridiagonal,
  kUnpackReflectors,
};

// In that order. `letters`: of the dtypes that they are for.
struct KernelName {
  const char *name, *letters;
};
inline constexpr KernelName kKernels[] = {
    {"add", "sdcz"},
    {"add_log_det", "sdcz"},
    {"apply_groups", "dz"},
    {"arrange_columns", "sd"},
    {"ascend", "sdcz"},
    {"chase", "sdcz"},
    {"check_factor", "sdcz"},
    {"check_finite", "sdcz"},
    {"clear_if", "sdcz"},
    {"conj_transpose", "sdcz"},
    {"conjugate", "sdcz"},
    {"copy_columns", ""},
    {"digest", ""},
    {"expand_reflectors", "sdcz"},
    {"factor_panel", "sdcz"},
    {"fill_int32", ""},
    {"from_real", "sdcz"},
    {"identity", "sdcz"},
    {"init_info", ""},
    {"load_inverse", "sdcz"},
    {"mirror_lower", "sdcz"},
    {"multiply_bfloats", ""},
    {"multiply_halves", ""},
    {"pack_band", "sdcz"},
    {"poison_if", "sdcz"},
    {"powers_of_two", ""},
    {"reduce_info", ""},
    {"refine_z", "sd"},
    {"rotate_columns", "sd"},
    {"row_largest", "sc"},
    {"scale", "sc"},
    {"secular_roots", "sd"},
    {"secular_vectors", "sd"},
    {"set_syevd_info", ""},
    {"solve_rows", "sdcz"},
    {"solve_rows_in_teams", "sdcz"},
    {"split", "sc"},
    {"store_inverse", "sdcz"},
    {"sum_reals", "sdcz"},
    {"take_tridiagonal", "sdcz"},
    {"unpack_reflectors", "sdcz"},
};
inline constexpr int kNumKernels = static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]));

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_KERNELS_H_
