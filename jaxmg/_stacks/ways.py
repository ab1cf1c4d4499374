"""The ways in which a device computes its share of a batch, a stack of matrices (count, m, n).
`choice` selects one."""

import collections.abc
import functools
import typing

import jax

from jaxmg._call import plugins
from jaxmg._factors import scaling
from jaxmg._stacks import choice, library, lu, polar_svd, products, qr, sections
from jaxmg._stacks import cholesky as definite
from jaxmg._stacks import eigh as stages
from jaxmg._stacks.choice import JAX, TURNS


def _in_turn(function):
    """Applies ``function`` to one matrix after the other: libraries have other routines for one."""
    return functools.partial(jax.lax.map, function)


_Ways: typing.TypeAlias = dict[str, collections.abc.Callable[..., typing.Any]]


_CHOLESKY: _Ways = {
    JAX: scaling.homogeneous(definite.factor_by_jax, 0.5, reads=scaling.lower),
    "plugin": scaling.homogeneous(definite.factor_by_plugin, 0.5, reads=scaling.lower),
    "lapack": scaling.homogeneous(definite.factor_by_lapack, 0.5, reads=scaling.lower),
}


def _qr_by_jax(a):
    """Scales columns, because LAPACK's Q of huge complex numbers isn't orthogonal."""
    a, up = scaling.scaled(a, -2)
    q, r = library.qr(a)
    return q, scaling.times(r, up)


def _r_by_jax(a):
    return _qr_by_jax(a)[1]


_QR: _Ways = {
    JAX: _qr_by_jax,
    TURNS: _in_turn(_qr_by_jax),
    "blocked": qr.reduced,
    "lapack": qr.reduced_by_lapack,
}
_R: _Ways = {
    JAX: _r_by_jax,
    TURNS: _in_turn(_r_by_jax),
    "blocked": qr.upper,
    "lapack": qr.upper_by_lapack,
}
_INV: _Ways = {
    JAX: library.inv,
    TURNS: _in_turn(library.inv),
    "plugin": scaling.homogeneous(lu.inverse_by_plugin, -1),
    "small": scaling.homogeneous(lu.inverse_of_small, -1),
}
_SOLVE: _Ways = {
    JAX: library.solve,
    TURNS: lambda a, b: jax.lax.map(lambda one: library.solve(*one), (a, b)),
    "plugin": scaling.homogeneous(lu.solve_by_plugin, -1, columns=True),
    "lapack": scaling.homogeneous(lu.solve_by_lapack, -1, columns=True),
    "small": scaling.homogeneous(lu.solve_small, -1, columns=True),
}


_EIGH: _Ways = {
    JAX: library.eigh_lower,
    TURNS: _in_turn(library.eigh_lower),
    "stages": stages.decompose_lower,
}
_SVD: _Ways = {
    JAX: polar_svd.decompose_by_jax,
    "polar": polar_svd.decompose,
    "polar and stages": polar_svd.decompose_by_stages,
    "plugin": polar_svd.decompose_by_plugin,
}
_VALUES: _Ways = {JAX: polar_svd.values_by_jax, "plugin": polar_svd.values_by_plugin}
_POLAR: _Ways = {JAX: polar_svd.unitary_by_jax, "qdwh": polar_svd.unitary}


def cholesky(platform, a):
    """Computes L of Hermitian matrices; reads the lower triangles."""
    plugins.load(platform)  # the derivative multiplies with it
    return choice.function(_CHOLESKY, platform, "cholesky", a)(a)


def reduced_qr(platform, a):
    """Computes (Q, R), with LAPACK's signs."""
    q, r = choice.function(_QR, platform, "qr", a)(a)
    return q, r


def upper_factor(platform, a):
    """Computes only R of `reduced_qr`."""
    return choice.function(_R, platform, "qr", a)(a)


def inverse(platform, a):
    """Computes the inverse by LU."""
    return choice.function(_INV, platform, "inv", a)(a)


def solve(platform, a, b):
    """Computes A^-1 B by LU, for b (count, n, nrhs)."""
    return choice.function(_SOLVE, platform, "solve", a)(a, b)


def eigh(platform, a):
    """Computes (w, V) of Hermitian matrices; reads the lower triangles."""
    w, v = choice.function(_EIGH, platform, "eigh", a)(a)
    return w, v


def svd(platform, a):
    """Computes the reduced (U, s, V^H)."""
    u, s, vh = choice.function(_SVD, platform, "svd", a)(a)
    return u, s, vh


def singular_values(platform, a):
    """Computes only the singular values."""
    if choice.choose(platform, "svd", a) in _VALUES:
        return choice.function(_VALUES, platform, "svd", a)(a)
    return svd(platform, a)[1]


def polar(platform, a):
    """Computes the U of A = U H, or A = H U."""
    return choice.function(_POLAR, platform, "polar", a)(a)


def polar_factors(platform, a, side="right"):
    """Computes (U, H) of A = U H, or of A = H U if ``side`` is "left"."""

    def factors(a):
        u = polar(platform, a)
        pair = (sections.adjoint(u), a) if side == "right" else (a, sections.adjoint(u))
        h = multiply(platform, *pair)
        return u, (h + sections.adjoint(h)) / 2

    return scaling.homogeneous(factors, 0, 1)(a)


def multiply(platform, *stacks):
    """Computes the product of the stacks, by the plugin on GPUs."""
    by_plugin = choice.multiplies_by_plugin(platform)
    return functools.reduce(products.multiply if by_plugin else sections.multiply, stacks)
