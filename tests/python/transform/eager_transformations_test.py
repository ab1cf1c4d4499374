"""Transformations of eager calls without ``mesh=``: the arrays below the tracers carry the
placement."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmg

pytestmark = cases.needs_transformations

_N, _SIZE = 6, 3
_A = np.stack([cases.positive_definite("well", _N, "float64") * (i + 1) for i in range(_SIZE)])
_B = np.arange(1.0, 1 + _SIZE * _N).reshape(_SIZE, _N)

_FUNCTIONS = {
    "potrs": (lambda a, b: jaxmg.potrs(a, b), jnp.linalg.solve),
    "potrs_refine": (lambda a, b: jaxmg.potrs(a, b, refine="float32"), jnp.linalg.solve),
    "cho_factor_refine": (
        lambda a, b: jaxmg.cho_factor(a, refine="float32").solve(b),
        jnp.linalg.solve,
    ),
    "potri": (lambda a, b: jaxmg.potri(a), lambda a, b: jnp.linalg.inv(a)),
    "eigvalsh": (lambda a, b: jaxmg.eigvalsh(a), lambda a, b: jnp.linalg.eigvalsh(a)),
    "inv": (lambda a, b: jaxmg.linalg.inv(a), lambda a, b: jnp.linalg.inv(a)),
    "solve": (lambda a, b: jaxmg.linalg.solve(a, b), jnp.linalg.solve),
    "cholesky": (lambda a, b: jaxmg.linalg.cholesky(a), lambda a, b: jnp.linalg.cholesky(a)),
    "expm": (lambda a, b: jaxmg.linalg.expm(a / 4), lambda a, b: jax.scipy.linalg.expm(a / 4)),
    "sqrtm": (lambda a, b: jaxmg.linalg.sqrtm(a @ a), lambda a, b: a),
}


def _number(function):
    """Returns a function that reduces a symmetric matrix's result to a number, so that its
    derivative is symmetric too."""
    return lambda a, b: jnp.sum(jnp.sin(function((a + a.T) / 2, b)))


_TRANSFORMATIONS = {
    "vmap": jax.vmap,
    "vmap_grad": lambda f: jax.vmap(jax.grad(_number(f))),
    "grad_vmap": lambda f: jax.grad(lambda a, b: jnp.sum(jax.vmap(_number(f))(a, b))),
    "jvp_vmap": lambda f: lambda a, b: jax.jvp(jax.vmap(_number(f)), (a, b), (a, b))[1],
    "vmap_vmap": lambda f: lambda a, b: jax.vmap(jax.vmap(f))(a[None], b[None])[0],
}


def _placed(where):
    if where == "device":
        return [jax.device_put(x, jax.local_devices()[-1]) for x in (_A, _B)]
    mesh = cases.line(2)
    return [cases.shard(_A, mesh, None, "r", None), cases.shard(_B, mesh)]


@pytest.mark.extended
@pytest.mark.parametrize(
    "name, transformation, where",
    cases.broad(
        [
            (name, transformation, where)
            for name in _FUNCTIONS
            for transformation in _TRANSFORMATIONS
            for where in ("device", "rows")
        ],
        lambda name, transformation, where: (
            where == "device"
            and (name, transformation)
            in {
                ("eigvalsh", "vmap_grad"),
                ("eigvalsh", "grad_vmap"),
                ("inv", "vmap"),
                ("solve", "vmap_grad"),
            }
        ),
    ),
)
@cases.one_process("arrays are those of one process")
def test_arrays_say_where_they_are(name, transformation, where):
    function, reference = _FUNCTIONS[name]
    transform = _TRANSFORMATIONS[transformation]
    arrays = _placed(where)
    found = jax.block_until_ready(transform(function)(*arrays))
    assert found.devices() <= arrays[0].devices()
    expected = transform(reference)(_A, _B)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


_OF_TWO = {
    "solve": (jaxmg.linalg.solve, jnp.linalg.solve),
    "lu_solve": (
        lambda a, b: jaxmg.linalg.lu_solve(jaxmg.linalg.lu_factor(a), b), jnp.linalg.solve,
    ),
    "solve_triangular": (jaxmg.linalg.solve_triangular, jax.scipy.linalg.solve_triangular),
    "gesv": (jaxmg.gesv, jnp.linalg.solve),
}  # fmt: skip


@pytest.mark.extended
@pytest.mark.parametrize(
    "name, argument, transformation, shared",
    cases.broad(
        [
            (name, argument, transformation, shared)
            for name in _OF_TWO
            for argument in (0, 1)
            for transformation in ("grad", "jvp")
            for shared in (False, True)
        ],
        lambda *case: case == ("solve", 1, "jvp", False),
    ),
)
@cases.one_process("arrays are those of one process")
def test_a_derivative_in_a_batch_of_one_of_two_arguments(name, argument, transformation, shared):
    """The other argument is in the batch but isn't differentiated; or all elements share the
    matrix."""
    a, b = _placed("device")
    a, axes = (a[0], (None, 0)) if shared else (a, 0)

    def derivative(function):
        def total(a, b):
            return jnp.sum(jnp.sin(function(a, b)))

        def pushed(a, b):
            def element(x):
                return total(*(x if i == argument else y for i, y in enumerate((a, b))))

            x = (a, b)[argument]
            return jax.jvp(element, (x,), (x * x,))[1]

        return pushed if transformation == "jvp" else jax.grad(total, argument)

    found, expected = (jax.vmap(derivative(f), axes)(a, b) for f in _OF_TWO[name])
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.extended
def test_a_batch_by_leading_dimensions_with_refine():
    factor = jaxmg.cho_factor(_placed("device")[0], refine="float32")
    x = jax.vmap(lambda factor, b: factor.solve(b))(factor, jnp.asarray(_B))
    np.testing.assert_allclose(x, np.linalg.solve(_A, _B[..., None])[..., 0], rtol=1e-10)


@pytest.mark.parametrize("function", [jaxmg.linalg.inv, jaxmg.potri, jaxmg.linalg.expm])
def test_a_jit_hides_where_arrays_are(function):
    """The placement is hidden also for a constant, since the jit may compute with it on other
    devices."""
    cases.line(2)
    constant = jnp.asarray(_A)
    error = "inside jit the mesh of [aA] can't be seen"
    with pytest.raises(ValueError, match=error):
        jax.jit(jax.vmap(function))(_A)
    with pytest.raises(ValueError, match=error):
        jax.jit(lambda y: y + jnp.sum(jax.vmap(function)(constant)))(1.0)
    with pytest.raises(ValueError, match=error):
        jax.vmap(jax.jit(function))(_A)
