"""Errors about values that aren't arrays, unusual dtypes, batches, and missing names."""

import copy
import inspect
import pickle

import cases
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jaxmg
from jaxmg import _compat, linalg

_EYE = np.eye(4, dtype=np.float32)
_B = np.ones(4, np.float32)
_LIST = _EYE.tolist()


@pytest.mark.parametrize(
    "call, message",
    {
        "a": (lambda: linalg.solve(_LIST, _B), r"linalg.solve: a .* list. .* np.asarray\(a\)"),
        "b": (lambda: jaxmg.potrs(_EYE, _LIST), r"potrs: b .* got list. .* np.asarray\(b\)"),
        "b, integers": (
            lambda: linalg.solve(_EYE.astype(int), [1.0] * 4),
            r"linalg.solve: b must be a JAX or NumPy array; got list. .* np.asarray\(b\)",
        ),
        "null_space": (lambda: linalg.null_space(_LIST), r"null_space: A .*; got list"),
        "sqrtm": (lambda: linalg.sqrtm(_LIST), r"sqrtm: A .*; got list"),
        "svd_lowrank": (lambda: linalg.svd_lowrank(_LIST, 1), r"svd_lowrank: a .*; got list"),
        "lu_solve": (lambda: linalg.lu_solve((_LIST, [0]), _B), r"lu_solve: lu .*; got list"),
        "lstsq": (lambda: linalg.lstsq(_LIST, _B, damp=0.1), r"lstsq: a .*; got list"),
        "None": (
            lambda: linalg.det(None),
            "linalg.det: a must be .* array; got NoneType(?!.*asarray)",
        ),
    }.values(),
)
def test_no_array(call, message):
    with pytest.raises(TypeError, match=message):
        call()


_OTHER_NAMES = {
    name: parameters[0]
    for name in linalg.__all__
    if inspect.isfunction(getattr(linalg, name))
    and (parameters := list(inspect.signature(getattr(linalg, name)).parameters))[0] != "a"
    # Two take a pair, one takes lists, and two take operators.
    and name not in ("cho_solve", "lu_solve", "norm", "cg", "eigsh")
}


@pytest.mark.parametrize("name", _OTHER_NAMES)
def test_errors_have_the_name_of_the_argument(name):
    options = {"func": jnp.exp} if name == "funm" else {}
    called, argument = getattr(linalg, name), _OTHER_NAMES[name]
    for value, what in (
        (_LIST, f"must be a JAX or NumPy array; got list. Convert it with np.asarray({argument})"),
        (_EYE.astype(object), "has dtype object; the supported dtypes are "),
        *([(_EYE[0], "must be a ")] if name != "matrix_rank" else ()),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            called(value, **options)
        assert str(caught.value).startswith(f"linalg.{name}: {argument} {what}")


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: linalg.matrix_rank(_LIST, hermitian=True), "linalg.matrix_rank: M must be a JAX"),
        (lambda: linalg.matrix_rank(_EYE[:2], hermitian=True), r"linalg.matrix_rank: .*; got \(2,"),
        (lambda: linalg.matrix_rank(jax.random.key(0)), "linalg.matrix_rank: M has dtype key"),
        (lambda: linalg.norm(_LIST, 2, (-2, -1)), "linalg.norm: x must be a JAX or NumPy array"),
        (lambda: linalg.cond(_EYE[0], 1), "linalg.cond: x must be a square matrix"),
    ],
)
def test_errors_of_options_name_it_too(call, message):
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        call()


_DTYPES = {
    "text": _EYE.astype(str),
    "object": _EYE.astype(object),
    "long": _EYE.astype(np.longdouble),
    "8 bits": _EYE.astype(ml_dtypes.float8_e4m3fn),
    "time": _EYE.astype("m8[s]"),
    "record": np.zeros((4, 4), [("x", "f4")]),
    "4 bits": _EYE.astype(ml_dtypes.int4),
}


@pytest.mark.parametrize("kind", _DTYPES)
def test_dtypes_that_jax_does_not_promote(kind):
    odd = _DTYPES[kind]
    for name, call in {
        "solve: a": lambda: linalg.solve(odd, _B),
        "solve: b": lambda: linalg.solve(_EYE, odd),
        "lstsq: a": lambda: linalg.lstsq(odd, _B),
        "lstsq: b": lambda: linalg.lstsq(_EYE, odd, damp=0.5),
        "svd: a": lambda: linalg.svd(odd),
        "norm: x": lambda: linalg.norm(odd),
    }.items():
        if (kind, name) in (("4 bits", "svd: a"), ("4 bits", "norm: x"), ("8 bits", "norm: x")):
            continue  # JAX promotes or accepts these
        with pytest.raises(TypeError, match=f"^linalg.{name} has dtype .*; the supported dtypes"):
            call()


@pytest.mark.parametrize("dtype", ["int8", "bool", "float16"])
def test_dtypes_that_jax_promotes(dtype):
    x = linalg.solve(_EYE.astype(dtype), _B)
    assert x.dtype == np.float32 and (x == 1).all()


_STACK = np.broadcast_to(_EYE, (2, 3, 4, 4))


@cases.needs_transformations
@pytest.mark.parametrize("b", [(2, 3, 5, 1), (5,), (3, 5), (3, 4)], ids=str)
@pytest.mark.parametrize(
    "function", [jaxmg.potrs, jaxmg.gesv, jaxmg.least_squares, linalg.solve, linalg.lstsq]
)
def test_shapes_of_batches(function, b):
    """Errors contain the shapes that were passed."""
    with pytest.raises(ValueError, match="b must have shape") as caught:
        function(_STACK, np.ones(b, np.float32))
    assert str(caught.value).endswith(f"for a of shape (2, 3, 4, 4); it has shape {b}")


@cases.needs_transformations
def test_shapes_of_batches_of_two_matrices():
    message = r"a's shape, \(2, 3, 4, 4\); it has shape \(2, 3, 5, 5\)"
    with pytest.raises(ValueError, match=message):
        jaxmg.sygvd(_STACK, np.ones((2, 3, 5, 5), np.float32))


def test_second_matrix_by_position():
    message = r"UPLO.*; got an array of shape \(4, 4\). .* jaxmg.eigvalsh\(a, b\)"
    with pytest.raises(TypeError, match=message):
        linalg.eigvalsh(_EYE, _EYE)


@pytest.mark.parametrize(
    "of, name, hint",
    [
        (jaxmg, "svd", "it is jaxmg.linalg.svd"),
        (jaxmg, "orthogonalize", "it is jaxmg.tree.orthogonalize"),
        (jaxmg, "lineax", "import it first, with `import jaxmg.lineax`"),
        (jaxmg, "optax", "import it first, with `import jaxmg.optax`"),
        (jaxmg, "muon", "jaxmg.optax.scale_by_muon is the part of it on matrices; .*"),
        (jaxmg, "getrf", "jaxmg.lu_factor does this"),
        (jaxmg, "gesv_jit_ctx", "jaxmg.gesv does this, under jit too; jaxmg.gesv_shardmap_ctx, .*"),
        (jaxmg, "getri_jit_ctx", r"jaxmg.getri\(a, return_status=True\) does this, under jit too"),
        (jaxmg, "potri_jit_ctx", r"jaxmg.potri\(a, return_status=True\) does this, under jit too"),
        (jaxmg, "sygvd_jit_ctx", "jaxmg.sygvd does this, .*; jaxmg.sygvd_shardmap_ctx, .*"),
        (linalg, "eig", "eigenvalues of matrices that aren't Hermitian are not supported; .*"),
        (linalg, "potrs", "it is jaxmg.potrs"),
        (jaxmg.tree, "svdvals", "it is jaxmg.linalg.svdvals"),
    ],
)
def test_names_that_a_module_does_not_have(of, name, hint):
    if name in ("lineax", "optax") and hasattr(jaxmg, name):
        pytest.skip(f"jaxmg.{name} is imported")
    message = f"^module '{of.__name__}' has no attribute '{name}': {hint}$"
    with pytest.raises(AttributeError, match=message) as caught:
        getattr(of, name)
    assert caught.value.name == name


@pytest.mark.parametrize("of", [jaxmg, linalg, jaxmg.tree])
def test_names_that_nobody_has(of):
    assert not hasattr(of, "__version__") and getattr(of, "_missing", None) is None
    with pytest.raises(AttributeError, match=f"^module '{of.__name__}' has no attribute 'xyz'$"):
        of.xyz  # noqa: B018
    assert set(of.__all__) <= set(dir(of))


@pytest.mark.parametrize(
    "make, name, hint",
    [
        (jaxmg.cho_factor, "L", r"upper\(\) gives U"),
        (jaxmg.lu_factor, "piv", r"packed\(\) gives"),
        (jaxmg.geqrf, "Q", r"q\(\) gives Q"),
    ],
)
def test_names_that_a_factor_does_not_have(make, name, hint):
    factor = make(_EYE)
    message = f"^'{type(factor).__name__}' object has no attribute '{name}': {hint}"
    with pytest.raises(AttributeError, match=message):
        getattr(factor, name)
    assert not hasattr(factor, "xyz") and name not in dir(factor)
    with pytest.raises(AttributeError, match="has no attribute 'xyz'$"):
        factor.xyz  # noqa: B018
    for again in (copy.copy(factor), copy.deepcopy(factor), pickle.loads(pickle.dumps(factor))):
        assert jax.tree.all(jax.tree.map(jnp.array_equal, factor, again))


@pytest.mark.skipif(_compat.TRANSFORMS, reason="JAX 0.10 and newer have derivatives and batches")
@pytest.mark.parametrize("transform", ["grad", "jitted grad", "jvp", "vmap"])
@pytest.mark.parametrize("name", ["solve", "svdvals", "expm", "pinv"])
def test_transformations_need_jax_0_10(name, transform):
    others = (_B,) if name == "solve" else ()

    def total(a):
        return getattr(linalg, name)(a, *others).sum()

    of = {
        "grad": jax.grad(total),
        "jitted grad": jax.jit(jax.grad(total)),
        "jvp": lambda a: jax.jvp(total, (a,), (a,)),
        "vmap": lambda a: jax.vmap(total)(a[None]),
    }[transform]
    word = "batched" if transform == "vmap" else "differentiated"
    message = rf"linalg\.{name}: \w is (being )?{word} .* with JAX 0\.10 and newer"
    with pytest.raises(NotImplementedError, match=message):
        of(jnp.asarray(_EYE))


@pytest.mark.skipif(_compat.TRANSFORMS, reason="JAX 0.10 and newer have derivatives and batches")
@pytest.mark.parametrize("name", ["inv", "svdvals"])
def test_batches_need_jax_0_10(name):
    with pytest.raises(ValueError, match=r"shape \(1, 4, 4\)\. Batches need JAX 0\.10 or newer"):
        getattr(linalg, name)(_EYE[None])
