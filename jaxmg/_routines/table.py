"""The table of routines, one row per routine. It determines the names of handlers and functions.

A new routine is a module of its family with its record and its public functions, and a row here.
"""

from jaxmg._cholesky import cho_factor, potri, potrs, refinement, updates, upper_factor
from jaxmg._cholesky import operations as cholesky_operations
from jaxmg._eigen import eigh, syevd, sygvd
from jaxmg._ldl import ldl_factor
from jaxmg._ldl import operations as ldl_operations
from jaxmg._linalg import first
from jaxmg._lu import gesv, getri, lu_factor
from jaxmg._lu import operations as lu_operations
from jaxmg._lu import packed as packed_lu
from jaxmg._matrices import product_calls
from jaxmg._plugin import plugins
from jaxmg._qr import gels, geqrf, tall_qr
from jaxmg._qr import operations as qr_operations
from jaxmg._routines import cyclic
from jaxmg._stacks import native
from jaxmg._svd import gesvd, polar

ROUTINES = (
    potrs.POTRS,
    potri.POTRI,
    gesv.GESV,
    getri.GETRI,
    syevd.SYEVD,
    sygvd.SYGVD,
    eigh.SYEVX,
    eigh.SYGVX,
    cho_factor.POTRF,
    cho_factor.CHO_SOLVE,
    upper_factor.FROM_UPPER,
    lu_factor.GETRF,
    packed_lu.FROM_PACKED,
    ldl_factor.HETRF,
    geqrf.GEQRF,
    gels.GELS,
)
# Native routines without a record: operations on factors, and services that routines use.
_OTHERS = (
    *(operation.native for operation in cholesky_operations.OPERATIONS),
    *(operation.native for operation in lu_operations.OPERATIONS),
    *(operation.native for operation in ldl_operations.OPERATIONS),
    *(operation.native for operation in qr_operations.OPERATIONS),
    updates.NATIVE,
    *refinement.SERVICES,
    cyclic.NATIVE,
    gesvd.NATIVE,
    first.NATIVE,
    tall_qr.NATIVE,
    polar.NATIVE,
    product_calls.NATIVE,
    *native.HANDLERS,
)

# The FFI targets that the package calls.
HANDLERS = tuple(
    f"jaxmg_{native}"
    for native in (*(routine.native for routine in ROUTINES if routine.outputs), *_OTHERS)
)
plugins.require(HANDLERS)
# The routines that `jaxmg.plan` accepts.
PLANS = {routine.name: routine for routine in ROUTINES if routine.plans}
# JAXMg 1.4 has these under this name too.
_JIT_FORMS = ("potrs", "syevd")
# The public functions of the records; names in ``jaxmg.__all__``.
FUNCTIONS = tuple(
    dict.fromkeys(
        name
        for routine in ROUTINES
        if "." not in routine.name
        for name in (
            routine.name,
            *((f"{routine.name}_shardmap_ctx",) if routine.traced_outputs else ()),
            *((f"{routine.name}_jit_ctx",) if routine.name in _JIT_FORMS else ()),
        )
    )
)
