"""Error messages for names that this package lacks or has elsewhere."""

import importlib

_VERSION = (
    "jaxmg has no __version__, because NetKet 3.22 would take it for the version of another "
    "project's package with this name. Use importlib.metadata.version('jaxmg')"
)
# Submodules that `import jaxmg` leaves out.
_SUBMODULES = ("launch", "lineax", "optax")
_GENERAL = (
    "eigenvalues of matrices that aren't Hermitian are not supported; jaxmg.linalg.eigh takes "
    "Hermitian matrices, jax.numpy.linalg.eig any, on one device"
)
_SCHUR = "it is not supported; jax.scipy.linalg has it, on one device"
_WITH_WORK = (
    "jaxmg.{0} does this, under jit too; jaxmg.{0}_shardmap_ctx, outside of a shard_map, returns "
    "the work array too"
)
_OPTIMIZER = (
    "jaxmg.optax.scale_by_{0} is the part of it on matrices; put it into optax.chain, before "
    "optax.scale_by_learning_rate"
)
# Names of LAPACK, ScaLAPACK, SciPy, PyTorch and optimizers for functions that have another name
# here, or none.
_OTHER_NAMES = {
    "potrf": "jaxmg.cho_factor does this",
    "posv": "jaxmg.potrs does this",
    "getrf": "jaxmg.lu_factor does this",
    "getrs": "jaxmg.lu_solve does this",
    "trsm": "jaxmg.linalg.solve_triangular does this",
    "trtrs": "jaxmg.linalg.solve_triangular does this",
    "gels": "jaxmg.least_squares does this",
    "gelsd": "jaxmg.linalg.lstsq does this",
    "gesdd": "jaxmg.linalg.svd does this",
    "orgqr": "jaxmg.linalg.householder_product does this",
    "ormqr": "jaxmg.linalg.qr_multiply does this",
    "heevd": "jaxmg.syevd does this",
    "syev": "jaxmg.syevd does this",
    "heev": "jaxmg.syevd does this",
    "hegvd": "jaxmg.sygvd does this",
    "sygv": "jaxmg.sygvd does this",
    "cholesky_solve": "jaxmg.cho_solve does this",
    "eig": _GENERAL,
    "eigvals": _GENERAL,
    "geev": _GENERAL,
    "schur": _SCHUR,
    "hessenberg": _SCHUR,
    "ldl": "it is not supported; jaxmg.linalg.solve(..., assume_a='her') solves with such a matrix",
    "gesv_jit_ctx": _WITH_WORK.format("gesv"),
    "sygvd_jit_ctx": _WITH_WORK.format("sygvd"),
    "getri_jit_ctx": "jaxmg.getri(a, return_status=True) does this, under jit too",
    "potri_jit_ctx": "jaxmg.potri(a, return_status=True) does this, under jit too",
    "toeplitz": "jax.scipy.linalg has it",
    "block_diag": "jax.scipy.linalg has it",
    "multi_dot": "jax.numpy.linalg has it",
    "tensorinv": "jax.numpy.linalg has it",
    "tensorsolve": "jax.numpy.linalg has it",
    "matmul": "jax.numpy multiplies sharded arrays, A @ B",
    "muon": _OPTIMIZER.format("muon"),
    "shampoo": _OPTIMIZER.format("shampoo"),
    "soap": _OPTIMIZER.format("soap"),
    "LinAlgError": "singular matrices raise no error; check the status, or results for NaN",
}


def missing(module, name):
    """Returns the AttributeError for an attribute that a public module doesn't have."""
    if name == "__version__" and module == "jaxmg":
        return AttributeError(_VERSION)
    message = f"module {module!r} has no attribute {name!r}"
    hint = "" if name.startswith("_") else _hint(module, name)
    return AttributeError(f"{message}: {hint}" if hint else message, name=name)


def _hint(module, name):
    if module == "jaxmg" and name in _SUBMODULES:
        return f"import it first, with `import jaxmg.{name}`"
    for other in ("jaxmg", "jaxmg.linalg", "jaxmg.tree"):
        if other != module and name in importlib.import_module(other).__all__:
            return f"it is {other}.{name}"
    return _OTHER_NAMES.get(name, "")


# By class of factor: attributes that people try, and what to use instead.
_UPPER = "upper() gives U of A = U^H U, and L is its adjoint"
_PACKED = "packed() gives (lu, pivots), as LAPACK's getrf does"
_OF_FACTORS = {
    "CholeskyFactor": {
        "L": _UPPER, "U": _UPPER, "lower": _UPPER, "factor": _UPPER, "R": _UPPER,
        "det": "logdet() gives the logarithm of the determinant",
        "slogdet": "logdet() gives the logarithm of the determinant, whose sign is 1",
        "inverse": "inv() gives the inverse",
        "info": "status is LAPACK's info",
    },
    "LUFactor": {
        "L": _PACKED, "U": _PACKED, "P": _PACKED, "lu": _PACKED, "LU": _PACKED, "piv": _PACKED,
        "inverse": "inv() gives the inverse",
        "info": "status is LAPACK's info",
    },
    "QRFactor": {
        "Q": "q() gives Q",
        "R": "r is R",
        "info": "status says whether A was finite",
        "inv": "solve(b) solves least squares; LUFactor has an inverse",
        "det": "diagonal() gives R's diagonal; LUFactor has the determinant",
        "upper": "r is R",
    },
}  # fmt: skip


def missing_of_factor(factor, name):
    """Returns the AttributeError for an attribute that a factor doesn't have."""
    kind = type(factor).__name__
    hint = _OF_FACTORS.get(kind, {}).get(name, "")
    message = f"{kind!r} object has no attribute {name!r}"
    return AttributeError(f"{message}: {hint}" if hint else message, name=name)
