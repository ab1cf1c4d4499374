// Tuning: the parameters of algorithms on a device. tunings.h has the values, which are measured.
#ifndef JAXMG_XLA_FFI_DEVICE_TUNING_H_
#define JAXMG_XLA_FFI_DEVICE_TUNING_H_

#include <cstdint>

namespace jaxmg {

// The fields of the device itself come first, then a struct for each family of algorithms, with the
// name of its folder in engine/. Orders are for real dtypes, if nothing else is said.
struct Tuning {
  // Whether ranks read panels in the owner's memory. All ranks must be able to access it, and
  // panels must be solved in place.
  bool borrow_panels = false;
  // Whether panels pass from rank to rank piece by piece, instead of going from their owner to all
  // ranks.
  bool chain = false;
  // The default tile width, which is reduced if a rank would get fewer tiles than least_tiles. More
  // tiles balance the work better, but each is a step of the critical path.
  int64_t usual_tile = 256;
  int64_t least_tiles = 4;
  // The size of a chunk in a redistribution. On the host a chunk should stay in a cache until the
  // receiver copies it; between GPUs its transfer should take longer than the latency of a copy.
  int64_t exchange_bytes = int64_t{512} << 10;
  // The bytes of columns that are repeatedly multiplied from the left together, so that they stay
  // in a cache. 0: all columns at once.
  int64_t resident_bytes = 0;
  // The maximum number of right-hand sides for which substitution with a triangle is one launch of
  // our own kernel (cuda/cholesky/triangular.cuh); 0: the library's TRSM and TRSV.
  int64_t few_right_hand_sides = 0;
  // The orders up to which several ranks gather a matrix on one of them, to solve and to invert, if
  // the caller gives no tile width. gather_to_solve is multiplied by 3/5 for complex dtypes, which
  // have more operations per element.
  int64_t gather_to_solve = 0;
  int64_t gather_to_invert = 0;
  // The order up to which one rank solves a linear system, or inverts a matrix, for all with the
  // device's solver of a whole matrix (matrix_solver.h), because it is faster than the ranks
  // together, which share its processors; only if all ranks are in one process. 0: none.
  int64_t whole_solve_order = 0;

  struct Products {
    // The order from which kChosen means kF16x3, which is then faster than float32 products and
    // equally accurate; 0: never. Multiplied by 3/5 for complex64.
    int64_t parts_order = 0;
    // Whether products of parts can scale their factors (kScaledF16x3).
    bool scales = true;
  } products;

  struct Cholesky {
    // 0: one TRSM solves a panel in place. Otherwise a panel is solved out of place in pieces of
    // this number of columns: a product subtracts the earlier pieces, and SolveRight solves the
    // piece.
    int64_t panel_block = 0;
    // The maximum number of contiguous columns in one product of a trailing update; their rows of
    // the panel are gathered first. 0: one product per tile, without gathering.
    int64_t group_columns = 0;
    // The total width of the panels in one update of the trailing matrix, if panels are out of
    // place and tiles are narrower. Larger values make products deeper and need more workspace.
    int64_t update_depth = 0;
    // The order up to which one rank factors a matrix as a single tile, if the caller gives no tile
    // width. Multiplied by 3/5 for complex dtypes.
    int64_t whole_order = 0;
    // The order of the diagonal blocks whose inverses are used in substitution: on a GPU products
    // take less time than a TRSV. 0: no inverses.
    int64_t inverse_order = 0;
    // The order of the blocks of an update (engine/cholesky/update.h): wide ones are fewer steps,
    // narrow ones fewer operations.
    int64_t update_block = 64;
  } cholesky;

  // Matrices in host memory (engine/offload).
  struct Offload {
    // The most columns of a streamed panel. Deeper products take longer than the transfer of their
    // panel by a larger margin, and need more memory.
    int64_t chunk = 256;
    // The most columns of a block column on each rank; 0: as many as fit. Wide ones need fewer
    // transfers, but the products of their own factorization are less deep.
    int64_t columns = 0;
  } offload;

  struct Lu {
    // As Cholesky's, for general matrices; multiplied by 3/5 for complex128 alone. In float32,
    // whole_order_float32 replaces it if it is larger.
    int64_t whole_order = 0;
    int64_t whole_order_float32 = 0;
    // The orders up to which the library factors a whole matrix faster than the device's own
    // panels, in single and in double precision.
    int64_t library_order = 0;
    int64_t library_order_double = 0;
    // The order from which one rank solves in double precision in tiles of twice the usual width;
    // 0: never. Multiplied by 3/5 for complex matrices.
    int64_t wide_order = 0;
    // The orders below which several ranks solve in double precision in tiles of a quarter and of
    // half the usual width, because they wait for panels; 0: never. Multiplied by 3/5 for complex
    // matrices.
    int64_t quarter_order = 0;
    int64_t half_order = 0;
    // The order up to which one rank inverts factors out of place, whatever the caller's tile
    // width.
    int64_t whole_inverse_order = 0;
    // The memory in which a device moves rows of L's columns, with all interchanges of a column at
    // once; 0: it needs none.
    int64_t swap_bytes = 0;
    // The maximum number of right-hand sides for which a single rank solves with a factor of
    // several tiles in one launch (few_right_hand_sides); 0: always tile by tile.
    int64_t right_hand_sides_at_once = 0;
  } lu;

  struct Ldl {
    // The default tile width. Products are as deep as the columns before a tile, whatever its
    // width, so narrow tiles cost little; wide ones need more operations and memory.
    int64_t tile = 64;
  } ldl;

  struct Qr {
    // The default tile width, if it is less than the usual one; 0: the usual one. Several ranks use
    // half of it below order wide_order, because they wait for a tile column, whose own products
    // are small.
    int64_t tile = 0;
    int64_t wide_order = 0;
    // One rank decomposes for all ranks (see whole_solve_order) matrices of up to whole_columns
    // columns that aren't tall, and all matrices of up to whole_elements elements. 0: none.
    int64_t whole_columns = 0;
    int64_t whole_elements = 0;
    // Tall matrices: whether one rank computes small results that all ranks need and sends them to
    // the others, because LAPACK calls of several host devices slow each other down. Otherwise each
    // rank computes them.
    bool small_on_one = false;
  } qr;

  struct Svd {
    // The order up to which one rank computes the decomposition for all, as whole_solve_order says.
    int64_t whole_order = 0;
  } svd;

  struct Eigen {
    // The orders from which several ranks share an eigenproblem instead of leaving it to one of
    // them (0: never): for real dtypes with eigenvectors, for real ones without, and for complex
    // ones. stages_alone, and without eigenvectors stages_alone_values, are the orders from which a
    // single rank uses the engine's stages instead of the device's own solver.
    int64_t spread = 0;
    int64_t spread_values = 0;
    int64_t spread_complex = 0;
    int64_t stages_alone = 0;
    int64_t stages_alone_values = 0;
    void ShareFrom(int64_t order) {
      spread = spread_values = spread_complex = order;
      stages_alone = stages_alone_values = order;
    }
    // The number of subdiagonals of the intermediate band matrix, also for complex128.
    int64_t band_width = 32;
    int64_t band_width_complex128 = 32;
    // The columns of the blocks in which a single rank reduces its matrix to a band. Only the part
    // below a block's diagonal is updated. This halves the operations of updates, but splits each
    // product with the matrix into two. 0: the whole matrix at once.
    int64_t triangle_columns = 0;
    // sweep_group is the number of sweeps whose reflectors are applied at once: larger groups make
    // products deeper, but take 1 + sweep_group / band_width times the operations. sweep_bundle is
    // the number of sweeps that are chased and sent at once; a device that chases many sweeps
    // concurrently needs many.
    int64_t sweep_group = 16;
    int64_t sweep_bundle = 16;
    // The approximate workspace of Syevd in multiples of the matrix, with and without eigenvectors.
    double syevd_matrices = 2;
    double syevd_value_matrices = 0;
  } eigen;
};

}  // namespace jaxmg

#endif  // JAXMG_XLA_FFI_DEVICE_TUNING_H_
