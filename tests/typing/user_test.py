"""What type checkers are told, by user.py's assertions, is what comes out."""

import pathlib
import runpy
import types
import typing

import jax
import jax.numpy as jnp
from absl.testing import parameterized
from jax import Array

_ONE = jnp.ones(1)


def is_a(value, kind):
    """Whether ``value`` is of a type as user.py writes them."""
    if kind is typing.Any or kind is None:
        return kind is not None or value is None
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if hasattr(origin, "__value__"):  # an alias, as NDArray of NumPy 2.5
        return is_a(value, origin.__value__)
    if origin in (typing.Union, types.UnionType):
        return any(is_a(value, part) for part in parts)
    if origin is tuple and parts[-1] is not Ellipsis:
        fits = isinstance(value, tuple) and len(value) == len(parts)
        return fits and all(map(is_a, value, parts))
    if origin in (tuple, list):
        return isinstance(value, origin) and all(is_a(item, parts[0]) for item in value)
    return isinstance(value, origin or kind)


class IsA(parameterized.TestCase):
    """The measure itself."""

    @parameterized.named_parameters(
        ("array", _ONE, Array, True),
        ("pair", (_ONE, _ONE), tuple[Array, Array], True),
        ("any_number", (_ONE, _ONE), tuple[Array, ...], True),
        ("union", (_ONE, _ONE), Array | tuple[Array, Array], True),
        ("optional", None, Array | None, True),
        ("list_of_tuples", [(1, 2)], list[tuple[int, int]], True),
        ("tuple_for_array", (_ONE, _ONE), Array, False),
        ("too_few", (_ONE, _ONE), tuple[Array, Array, Array], False),
        ("other_items", (1, 2), tuple[Array, Array], False),
        ("none", None, Array, False),
    )
    def test_is_a(self, value, kind, expected):
        self.assertEqual(is_a(value, kind), expected)


def test_results_are_of_the_types_that_are_asserted(monkeypatch):
    asserted = []

    def assert_type(value, kind):
        assert is_a(value, kind), f"{value!r} is not of type {kind}"
        asserted.append(kind)
        return value

    monkeypatch.setattr(typing, "assert_type", assert_type)
    user = runpy.run_path(pathlib.Path(__file__).with_name("user.py"))
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("r",))
    a, b = jnp.eye(8), jnp.ones(8)
    user["results"](a, b, mesh, flag=True)
    assert len(asserted) > 40
