"""The names and arguments of jax.numpy.linalg, jax.scipy.linalg and scipy.linalg."""

import inspect
import types

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import pytest
import scipy
import scipy.linalg

from jaxmg import linalg

MODULES = {"jax.numpy": jnp.linalg, "jax.scipy": jax.scipy.linalg, "scipy": scipy.linalg}
# The versions of which the tables below have all names.
_WHOLE = {"jax.numpy": (0, 12), "jax.scipy": (0, 12), "scipy": (1, 18)}

# What to use in place of names that jaxmg.linalg doesn't have -> the names.
_INSTEAD = {
    "the operation on sharded arrays, which XLA distributes": """
        cross diagonal khatri_rao matmul matrix_transpose multi_dot outer tensordot trace vecdot""",
    "norm, with two axes or with one": "matrix_norm vector_norm",
    "reshape, and solve or inv": "tensorinv tensorsolve",
    "pinv": "pinvh",
    "JAX's or SciPy's on one device: of matrices that aren't Hermitian": """
        cdf2rdf eig eigvals hessenberg matrix_balance ordqz qz rsf2csf schur""",
    "JAX's or SciPy's, and device_put: the matrix is given by few numbers": """
        block_diag circulant companion convolution_matrix dft diagsvd fiedler fiedler_companion
        hadamard hankel helmert hilbert invhilbert invpascal leslie pascal toeplitz""",
    "special solvers: banded, tridiagonal, circulant or Toeplitz matrices": """
        bandwidth cho_solve_banded cholesky_banded eig_banded eigh_tridiagonal eigvals_banded
        eigvalsh_tridiagonal matmul_toeplitz solve_banded solve_circulant solve_toeplitz
        solveh_banded""",
    "funm of a Hermitian matrix": """
        coshm cosm fractional_matrix_power signm sinhm sinm tanhm tanm""",
    "jax.jvp of expm": "expm_cond expm_frechet",
    "solve of the Kronecker sums, or SciPy's": """
        solve_continuous_are solve_continuous_lyapunov solve_discrete_are solve_discrete_lyapunov
        solve_lyapunov solve_sylvester""",
    "qr of the appended rows, or of the matrix": "qr_delete qr_insert qr_update rq",
    "svd of a product with singular vectors": "cossin orthogonal_procrustes subspace_angles",
    "check=True of jaxmg's routines": "ishermitian issymmetric",
    "svd_lowrank": "clarkson_woodruff_transform",
    "SciPy's: of LAPACK itself": "find_best_blas_type get_blas_funcs get_lapack_funcs",
    "NaN and LAPACK's status: nothing raises": "LinAlgError LinAlgWarning",
}
INSTEAD = {name: why for why, names in _INSTEAD.items() for name in names.split()}

# (module, function) -> arguments that ours doesn't have, and why. Arguments that both have are in
# the same position, unless the function is one of jax.numpy.linalg with other arguments.
_NUMPYS = "the arguments are those of jax.numpy.linalg"
_ABSENT = {
    ("scipy", "eigh"): ("driver subset_by_index subset_by_value", "jaxmg.eigh has the subset"),
    ("scipy", "eigvalsh"): (
        "b check_finite driver lower overwrite_a overwrite_b subset_by_index subset_by_value type",
        _NUMPYS + "; linalg.eigh has eigvals_only",
    ),
    ("scipy", "inv"): ("assume_a lower", "the structure is detected"),
    ("scipy", "lstsq"): ("check_finite cond lapack_driver overwrite_a overwrite_b", _NUMPYS),
    ("scipy", "lu"): ("p_indices", "JAX has none; lu_factor has pivots"),
    ("scipy", "norm"): ("a check_finite", _NUMPYS),
    ("scipy", "pinv"): ("atol check_finite return_rank", _NUMPYS),
    ("scipy", "solve"): ("transposed", "JAX has none; lu_solve has trans"),
    ("scipy", "svdvals"): ("a check_finite overwrite_a", _NUMPYS),
}
# Functions whose arguments have other positions than these modules', and defaults that differ.
_MOVED = {
    "eigh": ("jax.scipy", "scipy"), "qr": ("jax.scipy", "scipy"), "svd": ("jax.scipy", "scipy"),
    "eigvalsh": ("scipy",), "lstsq": ("scipy",), "norm": ("scipy",), "svdvals": ("scipy",),
    # ``debug`` of JAX is in front of ``check_finite``.
    "solve": ("scipy",), "solve_triangular": ("scipy",),
}  # fmt: skip
_OTHER_DEFAULTS = {
    ("cholesky", "lower"), ("eigh", "lower"),  # None: the arguments of jax.numpy.linalg decide
    ("qr", "mode"), ("qr", "lwork"),  # "reduced", as in jax.numpy.linalg; SciPy deprecates lwork
    ("solve", "assume_a"),  # None, as in SciPy, detects the structure
}  # fmt: skip
_OWN = ("mesh", "matrix_specs", "in_specs")


def _version(module):
    text = scipy.__version__ if module == "scipy" else jax.__version__
    return tuple(map(int, text.split(".")[:2]))


def _needs_version(module):
    """Skips a test unless the tables are of this version, or of a newer JAX."""
    version, whole = _version(module), _WHOLE[module]
    if version > whole or (version < whole and module == "scipy"):
        pytest.skip(f"the tables are of {module} {'.'.join(map(str, whole))}")


def _names(module):
    known = getattr(MODULES[module], "__all__", dir(MODULES[module]))
    return {
        name
        for name in known
        if not name.startswith("_")
        and not isinstance(getattr(MODULES[module], name), types.ModuleType)
    }


def _functions(module):
    both = set(linalg.__all__) & _names(module)
    return {name: inspect.signature(getattr(MODULES[module], name)).parameters for name in both}


@pytest.mark.parametrize("module", MODULES)
def test_each_name_is_ours_or_in_the_table(module):
    _needs_version(module)
    assert not _names(module) - set(linalg.__all__) - set(INSTEAD)


def test_the_table_has_no_other_names():
    assert not set(INSTEAD) & set(linalg.__all__)
    if all(_version(module) >= _WHOLE[module] for module in MODULES):
        assert set(INSTEAD) <= set().union(*map(_names, MODULES))


@pytest.mark.parametrize("module", MODULES)
def test_arguments(module):
    _needs_version(module)
    for name, theirs in _functions(module).items():
        ours = inspect.signature(getattr(linalg, name)).parameters
        absent = _ABSENT.get((module, name), ("", ""))[0].split()
        missing = sorted(set(theirs) - set(ours))
        if _version(module) == _WHOLE[module]:
            assert missing == absent, (module, name)
        else:
            assert set(missing) <= set(absent), (module, name)
        for position, (argument, parameter) in enumerate(theirs.items()):
            if argument not in ours:
                continue
            if (name, argument) not in _OTHER_DEFAULTS and _version(module) == _WHOLE[module]:
                assert ours[argument].default == parameter.default, (module, name, argument)
            positional = parameter.kind is not parameter.KEYWORD_ONLY
            if positional and module not in _MOVED.get(name, ()):
                assert [*ours].index(argument) == position, (module, name, argument)


def test_keywords_of_scipy():
    """Those that JAX ignores are ignored."""
    a, plain = np.diag(np.arange(1.0, 5)) + 0.1, {}
    for name, options in {
        "svd": {"overwrite_a": True, "check_finite": False, "lapack_driver": "gesvd"},
        "qr": {"overwrite_a": True, "check_finite": False, "lwork": 8, "mode": "economic"},
        "eigh": {"overwrite_a": True, "check_finite": False, "turbo": False},
    }.items():
        found, expected = (getattr(linalg, name)(a, **o) for o in (options, plain))
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_array_equal(x, y)
