"""What operations on stacks pass to the native code, and what it refuses."""

import inspect

import jax
import numpy as np
import pytest

from jaxmg._plugin import plugins
from jaxmg._stacks import native

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="calls the plugin of CPU devices"
)


def _number(value):
    """Returns the value as an attribute: integers become 64-bit, booleans stay."""
    return np.int64(value) if type(value) is int else value


_POLES, _VECTORS = (3, 4), (3, 2, 4, 2)
_EXPONENTS_OF_STACK = jax.ShapeDtypeStruct((3,), np.int32)
_MATRICES = (3, 4, 4)
# Arguments for the functions of native.py, by the names of their parameters.
_OPERANDS = {
    "a": _MATRICES, "b": (3, 4, 2), "x": _MATRICES, "reflectors": _MATRICES, "tau": _POLES,
}  # fmt: skip
_VALUES = {
    "coefficients": (1.0, 2.0, 3.0), "epsilon": 0.5, "p": 2, "lower": True, "hermitian": True,
}  # fmt: skip


def _recorded_calls():
    """Returns the calls that the functions of native.py make: {handler: (shapes of operands,
    results, attributes)}."""
    calls = {}

    def record(name, results, *operands, aliases=None, **attributes):
        results = results if isinstance(results, (list, tuple)) else [results]
        own = [x if x.dtype == np.int32 else x.shape for x in results]
        calls[f"jaxmg_{name}"] = [x.shape for x in operands], own, attributes
        values = [np.zeros(x.shape, x.dtype) for x in results]
        return values if len(values) > 1 else values[0]

    for function in vars(native).values():
        if inspect.isfunction(function) and not function.__name__.startswith("_"):
            if function.__module__ == native.__name__ and function is not native.call:
                _call_on_samples(function, record)
    return calls


def _call_on_samples(function, record):
    arguments = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in _OPERANDS:
            arguments[name] = np.ones(_OPERANDS[name])
        elif parameter.default is parameter.empty:
            arguments[name] = _VALUES[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "call", record)
        function(**arguments)


# Handlers for stacks on one device -> (shapes of operands, shapes of results, attributes). The
# rows are of handlers that other modules call.
_STACKED = _recorded_calls() | {
    "jaxmg_stacked_merge": (
        [_POLES, _POLES, _POLES, (3,)], [_POLES, _POLES, _VECTORS], {"gap_exponent": -90}
    ),
    "jaxmg_stacked_product": ([(3, 2, 5), (3, 5, 4)], [(3, 2, 4)], {"left": 0, "right": 0}),
    "jaxmg_stacked_split": ([(5, 2, 4)], [(1, 2, 4), (3, 2, 4), (1, 2, 4)], {}),
    "jaxmg_stacked_tridiagonal": ([_POLES, (3, 3)], [_POLES, _MATRICES], {}),
}  # fmt: skip


def test_these_are_all_operations():
    assert _STACKED.keys() == {f"jaxmg_{name}" for name in native.HANDLERS}


def _call_stacked(name, operands=None, results=None, dtype=np.float64, **attributes):
    plugins.load("cpu")
    usual, usual_results, own = _STACKED[name]
    results = [
        jax.ShapeDtypeStruct(x, dtype) if isinstance(x, tuple) else x
        for x in results or usual_results
    ]
    values = {key: _number(value) for key, value in (own | attributes).items() if value is not None}
    call = jax.ffi.ffi_call(name, results)
    arrays = [np.arange(np.prod(x)).reshape(x).astype(dtype) + 1 for x in operands or usual]
    with jax.default_device(jax.local_devices()[0]):
        return jax.block_until_ready(jax.jit(lambda *arrays: call(*arrays, **values))(*arrays))


@pytest.mark.parametrize("name", _STACKED)
def test_a_stacked_operation_takes_exactly_its_attributes(name):
    _call_stacked(name)
    for attribute in _STACKED[name][2]:
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"attribute '{attribute}' is missing"):
            _call_stacked(name, **{attribute: None})
    with pytest.raises(jax.errors.JaxRuntimeError, match="attribute 'novel' is unknown"):
        _call_stacked(name, novel=1)


_ODD = (3, 5)


@pytest.mark.parametrize(
    "name, operands, results, message",
    [
        ("jaxmg_stacked_merge", [_POLES, _ODD, _POLES, (3,)], None, "poles and z must be"),
        ("jaxmg_stacked_merge", [_POLES, _POLES, _POLES, (2,)], None, "poles and z must be"),
        ("jaxmg_stacked_merge", [_ODD, _ODD, _ODD, (3,)], [_ODD, _ODD, (3, 5, 5)], "with even k"),
        ("jaxmg_stacked_merge", None, [_POLES, _POLES, (3, 2, 4)], "poles and z must be"),
        ("jaxmg_stacked_cholesky", [(3, 4, 5)], None, "a must be"),
        ("jaxmg_stacked_cholesky", [(4, 4)], None, "a must be"),
        ("jaxmg_stacked_inv32", [(3, 4, 5)], None, "a must be"),
        ("jaxmg_stacked_inv32", [(1, 33, 33)], [(1, 33, 33)], "n <= 32"),
        ("jaxmg_stacked_solve32", [_MATRICES, (2, 4, 2)], None, "a must be"),
        ("jaxmg_stacked_solve32", [_MATRICES, (3, 4, 5)], [(3, 4, 5)], "nrhs <= 4"),
        ("jaxmg_stacked_solve32", None, [(3, 4, 3)], "a must be"),
        ("jaxmg_stacked_trtri", None, [(2, 4, 4)], "a must be"),
        ("jaxmg_stacked_lauum", [(4,)], [(4,)], "a must be"),
        ("jaxmg_stacked_ormtr", [(3, 4, 5), _POLES, (3, 4, 2)], None, "reflectors must be"),
        ("jaxmg_stacked_ormtr", [_MATRICES, (3, 3), (3, 4, 2)], None, "reflectors must be"),
        ("jaxmg_stacked_ormtr", [_MATRICES, _POLES, (3, 2, 4)], [(3, 2, 4)], "reflectors must be"),
        ("jaxmg_stacked_ormtr", [_MATRICES, _POLES, (3, 4)], [(3, 4)], "reflectors must be"),
        ("jaxmg_stacked_ormtr", [(3, 1, 1), (3, 1), (3, 1, 2)], [(3, 1, 2)], "n > 1"),
        ("jaxmg_stacked_ormtr", None, [(3, 4, 3)], "reflectors must be"),
        ("jaxmg_stacked_polar", [(3, 4, 5)], None, "a must be"),
        (
            "jaxmg_stacked_polar",
            None,
            [_MATRICES, _MATRICES, _EXPONENTS_OF_STACK],
            "a must be .* H ",
        ),
        ("jaxmg_stacked_root", [(3, 4, 5)], [(3, 4, 5)], "a must be"),
        ("jaxmg_stacked_root", None, [(2, 4, 4)], "a must be"),
        ("jaxmg_stacked_scale", [(10,)], None, "a must be"),
        (
            "jaxmg_stacked_scale",
            [(3, 2, 5)],
            [(3, 2, 5), jax.ShapeDtypeStruct((2,), np.int32)],
            "the exponents",
        ),
        ("jaxmg_stacked_unit", [(5,)], [(5,)], "a must be"),
        ("jaxmg_stacked_unit", [(3, 2, 5)], [(3, 5, 3)], "shape and dtype"),
        ("jaxmg_stacked_split", None, [(1, 2, 4), (3, 2, 4)], "x has 320 bytes, but its parts"),
        (
            "jaxmg_stacked_split",
            None,
            [jax.ShapeDtypeStruct((10, 2, 4), np.float32)],
            "part 0 must",
        ),
        ("jaxmg_stacked_sytrd", [(4,)], None, "a must be"),
        ("jaxmg_stacked_sytrd", [(3, 4, 5)], None, "a must be"),
        ("jaxmg_stacked_sytrd", [(3, 1, 1)], [(3, 1, 1), (3, 1), (3, 0), (3, 1)], "n > 1"),
        ("jaxmg_stacked_sytrd", None, [_MATRICES, _POLES, _POLES, _POLES], "a must be"),
        ("jaxmg_stacked_trsm", [(3, 4, 5), (3, 4, 2)], None, "a must be"),
        ("jaxmg_stacked_trsm", [_MATRICES, (2, 4, 2)], None, "a must be"),
        ("jaxmg_stacked_trsm", [_MATRICES, (3, 4)], None, "a must be"),
        ("jaxmg_stacked_trsm", None, [(3, 4, 3)], "a must be"),
        ("jaxmg_stacked_ldl", [(3, 4, 5)], None, "a must be"),
        ("jaxmg_stacked_ldl", [(4,)], None, "a must be"),
        ("jaxmg_stacked_sysv", [(3, 4, 5), (3, 4, 2)], None, "a must be"),
        ("jaxmg_stacked_sysv", [_MATRICES, (2, 4, 2)], None, "a must be"),
        ("jaxmg_stacked_lu", [(3, 4, 5)], None, "a must be"),
        ("jaxmg_stacked_lu", [(4, 4)], None, "a must be"),
        ("jaxmg_stacked_polynomials", [(5,)], [(5,)], "x must be"),
        ("jaxmg_stacked_polynomials", [(3, 2, 5)], [(3, 2, 4)], "x must be"),
        ("jaxmg_stacked_product", [(3, 2, 5), (3, 4, 4)], None, r"op\(x\) must be"),
        ("jaxmg_stacked_product", [(3, 2, 5), (2, 5, 4)], None, r"op\(x\) must be"),
        ("jaxmg_stacked_product", [(2, 5), (3, 5, 4)], None, r"op\(x\) must be"),
        ("jaxmg_stacked_product", None, [(3, 4, 2)], r"op\(x\) must be"),
        ("jaxmg_stacked_qr", [(5,)], [(5,), (5,)], "a must be"),
        ("jaxmg_stacked_qr", [(3, 5, 4)], [(3, 4, 4), (3, 5, 4)], "a must be"),
        ("jaxmg_stacked_qr", [(3, 5, 4)], [(3, 5, 4), (3, 5, 5)], "a must be"),
        ("jaxmg_stacked_svd", [(5,)], [(5,), (5,), (5,), (5,)], "a must be"),
        ("jaxmg_stacked_svd", [(3, 5, 4)], [(3, 5, 4), (3, 5, 4), (3, 4, 5), (3, 4)], "a must be"),
        ("jaxmg_stacked_tridiagonal", [_POLES, _POLES], None, "d must be"),
        ("jaxmg_stacked_tridiagonal", [(1, 33), (1, 32)], [(1, 33), (1, 33, 33)], "n <= 32"),
    ],
)
def test_stacks_that_do_not_fit(name, operands, results, message):
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        _call_stacked(name, operands, results)


def test_stages_of_eigenproblems_are_of_real_numbers():
    for name in ("jaxmg_stacked_merge", "jaxmg_stacked_sytrd", "jaxmg_stacked_tridiagonal"):
        with pytest.raises(jax.errors.JaxRuntimeError, match="must be float32 or float64"):
            _call_stacked(name, dtype=np.complex128)


def test_stacked_operations_with_attributes_that_do_not_fit():
    message = "coefficients must be triples; there are 4"
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        _call_stacked("jaxmg_stacked_polynomials", coefficients=np.ones(4))
    for name, value in (("p", 0), ("epsilon", np.zeros(2))):
        with pytest.raises(jax.errors.JaxRuntimeError, match="at least 1, and epsilon"):
            _call_stacked("jaxmg_stacked_root", **{name: value})
    with pytest.raises(jax.errors.JaxRuntimeError, match="step .*1 to"):
        _call_stacked("jaxmg_stacked_scale", step=0)
    with pytest.raises(jax.errors.JaxRuntimeError, match="is no array of float64 numbers"):
        _call_stacked("jaxmg_stacked_polynomials", coefficients=np.ones(3, np.int64))
    with pytest.raises(jax.errors.JaxRuntimeError, match="there is no operation 3"):
        _call_stacked("jaxmg_stacked_product", left=3)
