"""Dense linear algebra on matrices that are sharded over several GPUs or CPU devices.

`potrs` solves, `potri` inverts, `syevd` and `eigh` diagonalise, and `sygvd` solves generalized
eigenproblems. `cho_factor` returns a factor for repeated use by `cho_solve` and the factor's
methods. `gesv`, `getri`, `lu_factor` and `lu_solve` do the same for any square matrix. `geqrf`
computes the QR decomposition of any (m, n) matrix, and `least_squares` solves with it. Each
function takes a JAX array, infers its sharding, and runs eagerly or under ``jit``. The
``*_shardmap_ctx`` functions take local blocks inside ``shard_map``. `plan` computes the memory of a
call, and `progress` shows how far a long call is. NumPy arrays and `Tiles` may be larger than the
devices' memory. `jaxmg.linalg` has the names of ``jax.numpy.linalg`` and ``jax.scipy.linalg``, and
`jaxmg.tree` takes pytrees of matrices.

Importing this package touches no device, plugin or configuration: the first call does. There is no
``__version__``, because NetKet 3.22 would take it for the version of another project's package with
this name; use ``importlib.metadata.version("jaxmg")``.
"""

from typing import TYPE_CHECKING

from jaxmg import _names
from jaxmg import linalg as linalg
from jaxmg import tree as tree
from jaxmg._cholesky.cho_factor import cho_factor, cho_solve
from jaxmg._cholesky.factor import CholeskyFactor
from jaxmg._cholesky.gaussian import gaussian_log_likelihood
from jaxmg._cholesky.potri import potri, potri_shardmap_ctx, potri_symmetrize
from jaxmg._cholesky.potrs import potrs, potrs_jit_ctx, potrs_shardmap_ctx
from jaxmg._cholesky.refined_factor import RefinedFactor
from jaxmg._eigen.eigh import eigh, eigvalsh
from jaxmg._eigen.syevd import syevd, syevd_jit_ctx, syevd_shardmap_ctx
from jaxmg._eigen.sygvd import sygvd, sygvd_shardmap_ctx
from jaxmg._host.factor import HostCholeskyFactor
from jaxmg._host.lu import HostLUFactor
from jaxmg._host.plans import HostPlan
from jaxmg._host.pool import PinnedMemory, pinned
from jaxmg._host.tiles import Tiles
from jaxmg._ldl.factor import LDLFactor
from jaxmg._lu.factor import LUFactor
from jaxmg._lu.gesv import gesv, gesv_shardmap_ctx
from jaxmg._lu.getri import getri, getri_shardmap_ctx
from jaxmg._lu.lu_factor import lu_factor
from jaxmg._lu.lu_solve import lu_solve
from jaxmg._lu.refined_factor import RefinedLUFactor
from jaxmg._plugin.progress import Progress, progress
from jaxmg._qr.factor import QRFactor
from jaxmg._qr.gels import least_squares
from jaxmg._qr.geqrf import geqrf
from jaxmg._qr.qr import qr
from jaxmg._routines.cyclic import cyclic_1d, get_cols_cyclic, plot_block_to_cyclic, verify_cyclic
from jaxmg._routines.exports import export_checks, register_handlers
from jaxmg._routines.from_portable import from_portable
from jaxmg._routines.jaxmg_1_4 import device_supports_vmm, gesvd, polar
from jaxmg._routines.jaxmg_1_4 import gesvd_shardmap_ctx as gesvd_shardmap_ctx
from jaxmg._routines.jaxmg_1_4 import least_squares_shardmap_ctx as least_squares_shardmap_ctx
from jaxmg._routines.jaxmg_1_4 import lu_solve_shardmap_ctx as lu_solve_shardmap_ctx
from jaxmg._routines.jaxmg_1_4 import polar_shardmap_ctx as polar_shardmap_ctx
from jaxmg._routines.jaxmg_1_4 import qr_shardmap_ctx as qr_shardmap_ctx
from jaxmg._routines.padding import calculate_padding, pad_rows, unpad_rows
from jaxmg._routines.plan import Plan, plan

__all__ = [
    "CholeskyFactor",
    "HostCholeskyFactor",
    "HostLUFactor",
    "HostPlan",
    "LDLFactor",
    "LUFactor",
    "PinnedMemory",
    "Plan",
    "Progress",
    "QRFactor",
    "RefinedFactor",
    "RefinedLUFactor",
    "Tiles",
    "calculate_padding",
    "cho_factor",
    "cho_solve",
    "cyclic_1d",
    "device_supports_vmm",
    "eigh",
    "eigvalsh",
    "export_checks",
    "from_portable",
    "gaussian_log_likelihood",
    "geqrf",
    "gesv",
    "gesv_shardmap_ctx",
    "gesvd",
    "get_cols_cyclic",
    "getri",
    "getri_shardmap_ctx",
    "least_squares",
    "lu_factor",
    "lu_solve",
    "pad_rows",
    "pinned",
    "plan",
    "plot_block_to_cyclic",
    "polar",
    "potri",
    "potri_shardmap_ctx",
    "potri_symmetrize",
    "potrs",
    "potrs_jit_ctx",
    "potrs_shardmap_ctx",
    "progress",
    "qr",
    "register_handlers",
    "syevd",
    "syevd_jit_ctx",
    "syevd_shardmap_ctx",
    "sygvd",
    "sygvd_shardmap_ctx",
    "unpad_rows",
    "verify_cyclic",
]


if not TYPE_CHECKING:  # with it type checkers would accept any attribute

    def __getattr__(name):
        raise _names.missing(__name__, name)
