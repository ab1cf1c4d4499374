"""jaxmg.tree: matrices without rows or columns, complex leaves and a real dtype, large entries."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from jaxmg import tree

pytestmark = cases.needs_transformations

_EMPTY = {
    "svd": (tree.svd, ((0, 3), (3, 0), (2, 0, 3))),
    "inv": (tree.inv, ((0, 0), (0, 2, 2), (3, 0, 0))),
    "qr": (tree.qr, ((0, 3), (3, 0))),
    "complete qr": (lambda a, **o: tree.qr(a, "complete", **o), ((3, 0),)),
    "eigh": (tree.eigh, ((0, 0),)),
    "cholesky": (tree.cholesky, ((0, 0),)),
    "map": (lambda a, **o: tree.map(jnp.abs, a, **o), ((0, 3), (4, 0), (0, 0, 2))),
    "orthogonalize": (tree.orthogonalize, ((0, 3), (3, 0))),
    "exact": (lambda a, **o: tree.orthogonalize(a, method="exact", **o), ((0, 3), (3, 0))),
    "root": (lambda a, **o: tree.inverse_pth_root(a, 4, **o), ((0, 0),)),
    "root by newton": (lambda a, **o: tree.inverse_pth_root(a, 4, method="newton", **o), ((0, 0),)),
    "iteration": (lambda a, **o: tree.orthogonal_iteration(a, a, **o), ((0, 0),)),
}
_CASES = [
    (name, ranks, kind)
    for name in _EMPTY
    for ranks in (4, 1, 2, 8)
    for kind in (AxisType.Auto, AxisType.Explicit)
]


@pytest.mark.core("svd")
@pytest.mark.parametrize(
    "name, ranks, kind", cases.broad(_CASES, lambda *case: case[1:] == (4, AxisType.Auto))
)
def test_matrices_without_rows_or_columns(name, ranks, kind):
    function, shapes = _EMPTY[name]
    mesh = cases.line(ranks, kind=kind)
    leaves = [*(np.zeros(shape, "float32") for shape in shapes), 2 * np.eye(2, dtype="float32")]
    alone = [jax.eval_shape(lambda a: function(a, mesh=cases.line(1)), leaf) for leaf in leaves]
    results = function(leaves, mesh=mesh)
    for result, expected in zip(results, alone, strict=True):
        for x, y in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
            assert x.shape == y.shape and x.dtype == y.dtype and np.isfinite(x).all()
    (last,) = function(leaves[-1:], mesh=mesh)
    for x, y in zip(jax.tree.leaves(results[-1]), jax.tree.leaves(last), strict=True):
        np.testing.assert_array_equal(x, y)


_DTYPES = [
    (method, leaf, dtype, ranks)
    for method in ("polar-express", "newton-schulz")
    for leaf in ("complex128", "complex64")
    for dtype in ("float64", "float32", "bfloat16", "float16")
    for ranks in (2, 1, 8)
]


@pytest.mark.parametrize(
    "method, leaf, dtype, ranks",
    cases.broad(
        _DTYPES,
        lambda *case: case == ("polar-express", "complex128", "bfloat16", 2),
    ),
)
def test_complex_leaves_stay_complex_with_a_real_dtype(method, leaf, dtype, ranks):
    a = cases.normal(cases.rng(4), (4, 3), leaf)
    found = np.asarray(
        tree.orthogonalize(a, 8, method, dtype=jnp.dtype(dtype), mesh=cases.line(ranks))
    )
    assert found.dtype == leaf
    evaluate = "complex128" if dtype == "float64" else "complex64"
    as_complex = tree.orthogonalize(a, 8, method, dtype=evaluate, mesh=cases.line(ranks))
    np.testing.assert_array_equal(found, as_complex)
    if method == "polar-express":
        u, _, vh = np.linalg.svd(a, full_matrices=False)
        limit = 1e-5 if "complex64" in (evaluate, leaf) else 1e-13
        np.testing.assert_allclose(found, u @ vh, rtol=0, atol=limit)


@pytest.mark.parametrize(
    "leaf, dtype",
    [
        ("float32", "bfloat16"),
        *(
            pytest.param(*case, marks=pytest.mark.extended)
            for case in [
                ("complex64", "bfloat16"),
                ("complex64", None),
                ("bfloat16", None),
                ("float32", "float16"),
                ("complex128", "float32"),
            ]
        ),
    ],
)
def test_entries_near_the_largest_number(leaf, dtype):
    random, shape = cases.rng(5), (4, 3)
    a = random.uniform(1, 2, shape) * random.choice([-1, 1], shape)
    if "complex" in leaf:
        a = a + 1j * random.uniform(1, 2, shape) * random.choice([-1, 1], shape)
    small = jnp.asarray(a).astype(leaf)
    largest = jnp.finfo(leaf).max
    power = 2.0 ** (jnp.finfo(leaf).maxexp - 1)
    small = small.at[0, 0].set(float(largest) / power)
    large = np.asarray(jnp.asarray(small, cases.wide(a).dtype) * power).astype(small.dtype)
    assert np.isfinite(large.astype(a.dtype)).all() and large[0, 0] == largest

    def evaluate(a):
        evaluate = dtype and jnp.dtype(dtype)
        result = tree.orthogonalize(a, 6, "polar-express", dtype=evaluate, mesh=cases.line(2))
        return cases.wide(np.asarray(result))

    limit = 0.1 if "bfloat16" in (leaf, dtype) else 0.01 if dtype == "float16" else 1e-5
    np.testing.assert_allclose(evaluate(large), evaluate(np.asarray(small)), rtol=0, atol=limit)


@pytest.mark.extended
def test_infinity_does_not_become_the_largest_number():
    a = np.eye(3, dtype="float32")
    a[0, 1] = np.inf
    assert np.isnan(tree.orthogonalize(a, dtype=jnp.bfloat16, mesh=cases.line(2))).any()
