// The kernels of kernels.cu, each with its name and the letters of its dtypes ("": it has none).
// The symbols in the fatbin have the prefix jaxmg_ and, if they depend on the dtype, its letter as
// a suffix: jaxmg_mirror_lower_d.
#ifndef JAXMG_XLA_FFI_DEVICE_CUDA_KERNELS_H_
#define JAXMG_XLA_FFI_DEVICE_CUDA_KERNELS_H_

#define JAXMG_FOR_EACH_KERNEL(F)       \
  F(add, "sdcz")                       \
  F(add_determinant, "sdcz")           \
  F(add_log_det, "sdcz")               \
  F(add_noise, "sdcz")                 \
  F(add_stack_parts, "")               \
  F(add_to_diagonal, "sdcz")           \
  F(apply_groups, "dz")                \
  F(arrange_columns, "sd")             \
  F(ascend, "sdcz")                    \
  F(chase, "sdcz")                     \
  F(check_all_finite, "sdcz")          \
  F(check_factor, "sdcz")              \
  F(check_finite, "sdcz")              \
  F(check_lu_factor, "sdcz")           \
  F(clear_if, "sdcz")                  \
  F(clear_triangle, "sdcz")            \
  F(combine, "sdcz")                   \
  F(combine_stack, "sdcz")             \
  F(compose_moves, "")                 \
  F(conclude, "sdcz")                  \
  F(conj_transpose, "sdcz")            \
  F(conjugate, "sdcz")                 \
  F(convert, "sdcz")                   \
  F(copy_columns, "")                  \
  F(copy_to_parts, "")                 \
  F(count_up, "")                      \
  F(digest, "")                        \
  F(divide_by_root, "sdcz")            \
  F(divide_stack, "sdcz")              \
  F(expand_reflectors, "sdcz")         \
  F(factor_lu_panel_16, "sdcz")        \
  F(factor_lu_panel_32, "sdcz")        \
  F(factor_lu_panel_4, "sdcz")         \
  F(factor_lu_panel_8, "sdcz")         \
  F(factor_panel, "sdcz")              \
  F(factor_panel_in_registers, "sdcz") \
  F(factor_stacked_diagonal, "sdcz")   \
  F(factor_stacked_panel, "sdcz")      \
  F(factor_stacked_qr_panel, "sdcz")   \
  F(fill_int32, "")                    \
  F(form_stacked_reflectors, "sdcz")   \
  F(from_real, "sdcz")                 \
  F(identity, "sdcz")                  \
  F(init_info, "")                     \
  F(invert_small, "sdcz")              \
  F(invert_stacked_diagonal, "sdcz")   \
  F(keep_negative, "")                 \
  F(largest_of_rows, "sdcz")           \
  F(largest_of_stack, "sdcz")          \
  F(load_inverse, "sdcz")              \
  F(make_hermitian, "sdcz")            \
  F(make_stack_hermitian, "sdcz")      \
  F(map_moves, "")                     \
  F(mirror_lower, "sdcz")              \
  F(move_rows, "sdcz")                 \
  F(move_stacked_rows, "sdcz")         \
  F(multiply, "sdcz")                  \
  F(multiply_bfloats, "")              \
  F(multiply_halves, "")               \
  F(multiply_scaled_halves, "")        \
  F(pack_band, "sdcz")                 \
  F(part_scales, "sc")                 \
  F(plan_swaps, "")                    \
  F(poison_if, "sdcz")                 \
  F(powers_of_two, "")                 \
  F(reduce_info, "")                   \
  F(reduce_stack, "sd")                \
  F(refine_stacked_z, "sd")            \
  F(refine_z, "sd")                    \
  F(roots_of_diagonal, "sdcz")         \
  F(rotate_columns, "sd")              \
  F(row_largest, "sc")                 \
  F(scale, "sc")                       \
  F(scale_rows_and_columns, "sdcz")    \
  F(scale_stack, "sdcz")               \
  F(secular_roots, "sd")               \
  F(secular_vectors, "sd")             \
  F(set_syevd_info, "")                \
  F(signs_of_diagonal, "sdcz")         \
  F(solve_columns, "sdcz")             \
  F(solve_rows, "sdcz")                \
  F(solve_rows_in_teams, "sdcz")       \
  F(solve_small, "sdcz")               \
  F(solve_stacked_rows, "sdcz")        \
  F(solve_stacked_triangle, "sdcz")    \
  F(solve_triangle_1, "sdcz")          \
  F(solve_triangle_4, "sdcz")          \
  F(solve_tridiagonal, "sd")           \
  F(sort_poles, "sd")                  \
  F(split, "sc")                       \
  F(square_sums, "sdcz")               \
  F(stacked_roots, "sd")               \
  F(stacked_vectors, "sd")             \
  F(step_lu_panel, "sdcz")             \
  F(store_inverse, "sdcz")             \
  F(sum_reals, "sdcz")                 \
  F(sum_stack, "sdcz")                 \
  F(take_rows, "sdcz")                 \
  F(take_scaled_rows, "sdcz")          \
  F(take_tridiagonal, "sdcz")          \
  F(times_factors, "sdcz")             \
  F(unpack_reflectors, "sdcz")

namespace jaxmg {

// Enumerators have the kernels' names, so that a search for a name finds its definition, its row
// above and its launches.
#define JAXMG_ENUMERATOR(name, letters) name,
enum class Kernel { JAXMG_FOR_EACH_KERNEL(JAXMG_ENUMERATOR) };
#undef JAXMG_ENUMERATOR

// The kernels' rows, in the order of Kernel.
struct KernelName {
  const char *name, *letters;
};
#define JAXMG_ROW(name, letters) {#name, letters},
inline constexpr KernelName kKernels[] = {JAXMG_FOR_EACH_KERNEL(JAXMG_ROW)};
#undef JAXMG_ROW
inline constexpr int kNumKernels = static_cast<int>(sizeof(kKernels) / sizeof(kKernels[0]));

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_CUDA_KERNELS_H_
