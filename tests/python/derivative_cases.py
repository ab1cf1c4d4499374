"""Functions and arguments of the tests of derivatives."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jaxmg


def _lower(a):
    return jnp.linalg.cholesky(a, symmetrize_input=False)


def _pair(a, b):
    """Returns (a positive definite metric for ``a``, ``b``)."""
    return a + len(a) * jnp.eye(len(a), dtype=a.dtype), b


def _magnitudes(v):
    """Returns the squared magnitudes of eigenvectors, which don't depend on phases."""
    return jnp.abs(v) ** 2


def _generalized(a, metric):
    lower = jnp.linalg.inv(_lower(metric))
    w, y = jnp.linalg.eigh(lower @ a @ lower.conj().T)
    return w, lower.conj().T @ y


def _factor(a, **where):
    return jaxmg.cho_factor(a, 3, **where)


def _by_index(w, v, indices):
    return w[indices], _magnitudes(v[:, indices])


# Name -> (function of (a, b, options of placement), the same function of (a, b) by JAX only).
FUNCTIONS = {
    "potrs": (lambda a, b, **w: jaxmg.potrs(a, b, 3, **w), jnp.linalg.solve),
    "potrs of a vector": (
        lambda a, b, **w: jaxmg.potrs(a, b[:, 0], 3, **w),
        lambda a, b: jnp.linalg.solve(a, b[:, 0]),
    ),
    "logdet": (
        lambda a, b, **w: jaxmg.potrs(a, b, 3, return_logdet=True, **w),
        lambda a, b: (jnp.linalg.solve(a, b), jnp.linalg.slogdet(a)[1]),
    ),
    "potri": (lambda a, b, **w: jaxmg.potri(a, 3, **w), lambda a, b: jnp.linalg.inv(a)),
    "cho_solve": (lambda a, b, **w: jaxmg.cho_solve(_factor(a, **w), b), jnp.linalg.solve),
    "refined": (
        lambda a, b, **w: jaxmg.potrs(a, b, 3, refine="auto", **w),
        jnp.linalg.solve,
    ),
    "refined factor": (
        lambda a, b, **w: jaxmg.cho_solve(jaxmg.cho_factor(a, 3, refine="auto", **w), b),
        jnp.linalg.solve,
    ),
    "solve_triangular": (
        lambda a, b, **w: [_factor(a, **w).solve_triangular(b, trans) for trans in "NTC"],
        lambda a, b: [
            jnp.linalg.inv(_lower(a)) @ b,
            jnp.linalg.inv(_lower(a)).T @ b,
            jnp.linalg.inv(_lower(a)).conj().T @ b,
        ],
    ),
    "matmul": (
        lambda a, b, **w: [_factor(a, **w).matmul(b, trans) for trans in "NTC"],
        lambda a, b: [_lower(a) @ b, _lower(a).T @ b, _lower(a).conj().T @ b],
    ),
    "diagonal": (
        lambda a, b, **w: _factor(a, **w).diagonal(),
        lambda a, b: jnp.diag(_lower(a)).real,
    ),
    "upper": (lambda a, b, **w: _factor(a, **w).upper(), lambda a, b: _lower(a).conj().T),
    "inv": (lambda a, b, **w: _factor(a, **w).inv(), lambda a, b: jnp.linalg.inv(a)),
    "log_det": (
        lambda a, b, **w: (_factor(a, **w).logdet(), _factor(a, **w).log_det),
        lambda a, b: (jnp.linalg.slogdet(a)[1],) * 2,
    ),
    "from_upper": (
        lambda a, b, **w: jaxmg.CholeskyFactor.from_upper(_lower(a).conj().T, 3, **w).solve(b),
        jnp.linalg.solve,
    ),
    "eigvalsh": (lambda a, b, **w: jaxmg.eigvalsh(a, **w), lambda a, b: jnp.linalg.eigvalsh(a)),
    "eigh": (
        lambda a, b, **w: _by_index(*jaxmg.syevd(a, **w), slice(None)),
        lambda a, b: _by_index(*jnp.linalg.eigh(a), slice(None)),
    ),
    "eigh of a subset": (
        lambda a, b, **w: _by_index(*jaxmg.eigh(a, subset_by_index=(1, 4), **w), slice(None)),
        lambda a, b: _by_index(*jnp.linalg.eigh(a), slice(1, 4)),
    ),
    "sygvd": (
        lambda a, b, **w: _by_index(*jaxmg.eigh(a, _pair(a, b)[0], **w), slice(None)),
        lambda a, b: _by_index(*_generalized(a, _pair(a, b)[0]), slice(None)),
    ),
    "eigvalsh of two": (
        lambda a, b, **w: jaxmg.eigvalsh(_pair(a, b)[0], a, **w),
        lambda a, b: _generalized(_pair(a, b)[0], a)[0],
    ),
}


def make_arguments(n, dtype):
    """Returns ((matrix, right-hand sides), (directions of their derivatives))."""
    random = cases.rng(n, 5)
    matrix = cases.positive_definite("well", n, dtype) + np.diag(np.arange(n)).astype(dtype)
    b = cases.normal(random, (n, 2), dtype)
    return (matrix, b), (cases.normal(random, (n, n), dtype), cases.normal(random, (n, 2), dtype))


def make_functions(name, mesh):
    ours, theirs = FUNCTIONS[name]
    where = {"mesh": mesh, "matrix_specs": P(mesh.axis_names[0], None)}
    return (
        lambda a, b: ours(cases.hermitian_part(a), b, **where),
        cases.precisely(lambda a, b: theirs(cases.hermitian_part(a), b)),
    )


def assert_close(found, expected, dtype):
    __tracebackhide__ = True
    unit = 2000 * float(np.finfo(dtype).eps)

    def compare(x, y):
        x, y = np.asarray(x), np.asarray(y)
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=0, atol=unit * max(1, np.abs(y).max(initial=0)))

    jax.tree.map(compare, found, expected)
