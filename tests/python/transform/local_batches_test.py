"""Batches inside the caller's shard_map, against JAX's own on one device."""

import itertools
import re

import cases
import jax
import jax.numpy as jnp
import local_cases
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmg

pytestmark = cases.needs_transformations


def _batched(name, ranks, check_vma):
    ours, _ = local_cases.make_functions(
        name, local_cases.make_mesh(r=ranks), 7, check_vma, each=jax.vmap, lead=(None,)
    )
    return ours, jax.vmap(
        local_cases.make_functions(name, local_cases.make_mesh(r=ranks), 7, check_vma)[1]
    )


_BATCHES = [
    (name, (1, 2, 4)[i % 3], check_vma, cases.DTYPES[i % 4])
    for i, (name, check_vma) in enumerate(itertools.product(local_cases.FUNCTIONS, [True, False]))
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, ranks, check_vma, dtype",
    cases.broad(_BATCHES, lambda name, *_: name in ("logdet", "syevd")),
)
def test_batches(name, ranks, check_vma, dtype):
    ours, theirs = _batched(name, ranks, check_vma)
    arguments = local_cases.make_batch(7, dtype)
    local_cases.assert_close(jax.jit(ours)(*arguments), theirs(*arguments), dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, ranks, check_vma, dtype",
    cases.broad(_BATCHES, lambda name, _, check_vma, __: (name, check_vma) == ("logdet", False)),
)
def test_gradient_of_batches(name, ranks, check_vma, dtype):
    ours, theirs = _batched(name, ranks, check_vma)
    arguments = local_cases.make_batch(7, dtype)
    found, expected = (
        jax.jit(jax.grad(local_cases.loss_of(f), (0, 1, 2)))(*arguments) for f in (ours, theirs)
    )
    local_cases.assert_close(found, expected, dtype)


@pytest.mark.breadth
@local_cases.TRACKED
@pytest.mark.parametrize("how", ["vmap of grad", "vmap of jit", "vmap of vmap"])
def test_batches_of_other_functions(how, check_vma):
    """Without tracking, JAX differentiates the sum of all ranks' results."""
    ranks = 2

    def evaluate(solve, vmap):
        def loss(a, b):
            x, logdet = solve(a, b)
            return jnp.sum(jnp.sin(x)) + logdet[0]

        if how == "vmap of grad":
            return vmap(jax.grad(loss, (0, 1)))
        return vmap(jax.jit(solve) if how == "vmap of jit" else vmap(solve, (None, 1), 1))

    def local(a, b):
        return jaxmg.potrs_shardmap_ctx(a, b, 3, return_logdet=True)[:2]

    def alone(a, b):
        a = jnp.triu(a) + jnp.conj(jnp.triu(a, 1)).T
        return jnp.linalg.solve(a, b), jnp.linalg.slogdet(a)[1][None]

    by_rows = P(None, "r", None)
    mapped = jax.shard_map(
        evaluate(local, jax.vmap), mesh=local_cases.make_mesh(r=ranks), in_specs=(by_rows, P()),
        out_specs=(by_rows, P()) if how == "vmap of grad" else P(), check_vma=check_vma,
    )  # fmt: skip
    a, _, b = local_cases.make_batch(8, "float64")
    found, expected = jax.jit(mapped)(a, b), evaluate(alone, jax.vmap)(a, b)
    if how == "vmap of grad" and not check_vma:
        expected = ranks * expected[0], expected[1]
    local_cases.assert_close(found, expected, "float64")


@local_cases.TRACKED
def test_right_hand_sides_become_columns(check_vma):
    (a, _, _), (_, _, many) = (
        local_cases.make_arguments(8, "complex128")[0],
        local_cases.make_batch(8, "complex128"),
    )

    def local(a, many):
        return jax.vmap(lambda b: jaxmg.potrs_shardmap_ctx(a, b, 3)[0])(many)

    mapped = jax.shard_map(
        local,
        mesh=local_cases.make_mesh(r=2),
        in_specs=(P("r", None), P()),
        out_specs=P(),
        check_vma=check_vma,
    )
    assert not re.search("scan|while", str(jax.make_jaxpr(mapped)(a, many)))
    local_cases.assert_close(jax.jit(mapped)(a, many), np.linalg.solve(a, many), "complex128")


@pytest.mark.breadth
def test_failures_in_a_batch_are_of_one_matrix():
    """Failures are of one matrix each: one isn't positive definite, and for another one b differs
    between the ranks."""
    a, _, b = local_cases.make_batch(8, "float64")
    a[1, 5, 5] = -1
    b = np.stack([b, b])
    b[1, 2, 0, 0] += 1

    mapped = jax.shard_map(
        lambda a, b: jax.vmap(lambda a, b: jaxmg.potrs_shardmap_ctx(a, b, 3))(a, b[0]),
        mesh=local_cases.make_mesh(r=2), in_specs=(P(None, "r", None), P("r")), out_specs=P(),
        check_vma=False,
    )  # fmt: skip
    x, status = jax.jit(mapped)(a, b)
    np.testing.assert_array_equal(status[:, 0], [0, 6, -2])
    assert np.isfinite(x[0]).all() and np.isnan(x[1:]).all()
