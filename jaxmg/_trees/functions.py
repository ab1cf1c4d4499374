"""Functions that `jaxmg.tree` maps, of one matrix or of a stack of matrices of one shape.

Each is hashable and equals another one with the same options, so that a tree is compiled once.
`compute_stack` computes a stack with the families' `stacks`. `result` returns the shapes and
dtypes of the results for a matrix, without tracing it.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._call import checks
from jaxmg._cholesky import stacks as cholesky_stacks
from jaxmg._eigen import stacks as eigen_stacks
from jaxmg._lu import stacks as lu_stacks
from jaxmg._qr import stacks as qr_stacks
from jaxmg._stacks import choice, library, native, products, scaling, sections
from jaxmg._svd import stacks as svd_stacks
from jaxmg._trees import homes, iterations


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of `jax.numpy.linalg` with options."""

    name: str
    options: tuple

    def __call__(self, a):
        options = dict(self.options)
        if self.name == "svd" and options["compute_uv"]:
            if a.shape[-2] == a.shape[-1] or not options["full_matrices"]:
                return self._named(a, svd_stacks.decompose_by_jax(a))
        return getattr(library, self.name)(a, **options)

    def result(self, matrix):
        of_jax = functools.partial(getattr(jnp.linalg, self.name), **dict(self.options))
        return jax.eval_shape(of_jax, matrix)

    @_compat.default_promotion()
    def compute_stack(self, platform, stack):
        options = dict(self.options)
        if not stack.size:
            return self(stack)
        if self.name == "inv":
            return lu_stacks.inverse(platform, stack)
        m, n = stack.shape[-2:]
        if self.name == "qr" and (options["mode"] != "complete" or m <= n):
            if options["mode"] == "r":
                return qr_stacks.upper_factor(platform, stack)
            return self._named(stack, qr_stacks.reduced_qr(platform, stack))
        if self.name == "cholesky":
            return self._cholesky(platform, stack, **options)
        if self.name == "eigh":
            return self._eigh(platform, stack, **options)
        if self.name == "svd" and not options["compute_uv"]:
            return svd_stacks.singular_values(platform, stack)
        if self.name == "svd" and (m == n or not options["full_matrices"]):
            return self._named(stack, svd_stacks.svd(platform, stack))
        return self(stack)

    def _named(self, stack, values):
        """Returns the values as the named tuple that JAX's function returns."""
        return type(self.result(jax.ShapeDtypeStruct(stack.shape[-2:], stack.dtype)))(*values)

    def _cholesky(self, platform, stack, upper, symmetrize_input):
        if cholesky_stacks.CHOLESKY.choose(platform, stack) == choice.JAX:
            return self(stack)
        lower = cholesky_stacks.cholesky(
            platform, stack + (_adjoint(stack) - stack) / 2 if symmetrize_input else stack
        )
        return _adjoint(lower) if upper else lower

    def _eigh(self, platform, stack, UPLO, symmetrize_input):
        if eigen_stacks.EIGH.choose(platform, stack) == choice.JAX:
            return self(stack)
        if symmetrize_input:
            stack = (stack + _adjoint(stack)) / 2
        elif UPLO == "U":
            stack = _adjoint(stack)
        return self._named(stack, eigen_stacks.eigh(platform, stack))


def _adjoint(a):
    return jnp.swapaxes(a, -1, -2).conj()


@dataclasses.dataclass(frozen=True)
class InSingle:
    """A function that computes with bfloat16 and float16 in float32. Matrices among its results are
    rounded to the dtype of the operand; eigenvalues and singular values stay float32."""

    of: Any

    def __call__(self, a):
        return _rounded(self.of(_widened(a)), a.dtype, 2)

    def result(self, matrix):
        wide = jax.ShapeDtypeStruct(matrix.shape, _wide_dtype(matrix.dtype))
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(
                x.shape, matrix.dtype if len(x.shape) == 2 and x.dtype == wide.dtype else x.dtype
            ),
            self.of.result(wide),
        )

    def compute_stack(self, platform, stack):
        return _rounded(self.of.compute_stack(platform, _widened(stack)), stack.dtype, 3)


def _wide_dtype(dtype):
    return jnp.dtype(jnp.float32) if str(dtype) in checks.HALVES else dtype


def _widened(a):
    return a.astype(_wide_dtype(a.dtype))


def _rounded(results, dtype, ndim):
    wide = _wide_dtype(dtype)
    return jax.tree.map(
        lambda x: x.astype(dtype) if x.ndim == ndim and x.dtype == wide else x, results
    )


class _Like:
    """A function whose result has the shape and dtype of its operand."""

    def result(self, matrix):
        return matrix


@dataclasses.dataclass(frozen=True)
class _ExactlyOrthogonal(_Like):
    """Computes U V^H of the singular value decomposition."""

    def __call__(self, g):
        return self.compute_stack("", g[None])[0]

    @_compat.default_promotion()
    def compute_stack(self, platform, stack):
        return svd_stacks.polar(platform, stack) if stack.size else stack


EXACTLY_ORTHOGONAL = InSingle(_ExactlyOrthogonal())


@dataclasses.dataclass(frozen=True)
class Orthogonal(_Like):
    """`iterations.orthogonal` with these options."""

    coefficients: tuple
    safe: bool
    dtype: Any  # None: the matrix's dtype
    scale: iterations.Scale | None = None

    def __call__(self, g, multiply=sections.multiply):
        dtype = self.dtype or g.dtype
        return iterations.orthogonal(g, self.coefficients, self.safe, dtype, self.scale, multiply)

    @_compat.default_promotion()
    def compute_stack(self, platform, stack):
        if not stack.size or not choice.multiplies_by_plugin(platform):
            return jax.vmap(self)(stack)
        return _orthogonal_by_plugin(self, platform, stack)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
@_compat.default_promotion()
def _orthogonal_by_plugin(options, platform, stack):
    """Computes `Orthogonal` of each matrix, with one operation for all polynomials."""
    dtype = options.dtype or stack.dtype
    wide = jnp.promote_types(stack.dtype, jnp.float32)
    x = native.normalize(stack.astype(wide))
    if options.scale is not None:
        values = functools.partial(svd_stacks.singular_values, platform)
        x = options.scale(x, stack.astype(wide), products.multiply, values)
    x = iterations.rounded(x, options.safe, dtype)
    polynomials = iterations.polynomials(options.coefficients, options.safe)
    return native.map_singular_values(x, polynomials).astype(stack.dtype)


@_orthogonal_by_plugin.defjvp
@_compat.default_promotion()
def _(options, platform, primals, tangents):
    """JVP rule: differentiates the polynomials computed by products."""
    dtype = options.dtype or primals[0].dtype
    by_plugin = str(jnp.dtype(dtype)) in checks.DTYPES or jnp.iscomplexobj(primals[0])
    multiply = products.multiply if by_plugin else sections.multiply
    each = functools.partial(options, multiply=multiply)
    _, tangent = jax.jvp(jax.vmap(each), primals, tangents)
    return _orthogonal_by_plugin(options, platform, *primals), tangent


@dataclasses.dataclass(frozen=True)
class InverseRoot(_Like):
    """`iterations.inverse_root` with these options."""

    by: Callable
    p: int
    epsilon: float

    def __call__(self, a, multiply=sections.multiply):
        return iterations.inverse_root(a, self.p, self.epsilon, self.by, multiply)

    @_compat.default_promotion()
    def compute_stack(self, platform, stack):
        if not stack.size or not choice.multiplies_by_plugin(platform):
            return jax.vmap(self)(stack)
        if self.by is iterations.root_by_newton:
            return _root_by_plugin(self, stack)
        return jax.vmap(functools.partial(self, multiply=products.multiply))(stack)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
@_compat.default_promotion()
def _root_by_plugin(options, stack):
    """Computes `InverseRoot` of each matrix by Newton's iteration, in one operation."""
    return native.inverse_root(stack, options.p, options.epsilon)


@_root_by_plugin.defjvp
@_compat.default_promotion()
def _(options, primals, tangents):
    """JVP rule: differentiates the same iteration computed by products."""
    each = functools.partial(options, multiply=products.multiply)
    _, tangent = jax.jvp(jax.vmap(each), primals, tangents)
    return _root_by_plugin(options, *primals), tangent


@dataclasses.dataclass(frozen=True)
class OrthogonalIteration:
    """``steps`` orthogonal iterations for an operand [A Q] or [A; Q]: Q becomes the Q of A Q."""

    steps: int

    def __call__(self, pair):
        return self.compute_stack("", pair[None])[0]

    def result(self, pair):
        return jax.ShapeDtypeStruct((min(pair.shape),) * 2, pair.dtype)

    @_compat.default_promotion()
    def compute_stack(self, platform, stack):
        a, q = jnp.split(stack, 2, axis=-1 if stack.shape[-1] > stack.shape[-2] else -2)
        if not q.size:
            return q
        a, _ = scaling.scaled(a, (-2, -1))
        for _ in range(self.steps):
            q, r = qr_stacks.reduced_qr(platform, choice.multiply(platform, a, q))
            diagonal = jnp.diagonal(r, axis1=-2, axis2=-1).real
            q = q * jnp.where(diagonal < 0, -1, 1).astype(q.dtype)[:, None, :]
        return q


def cost_of_pair(pair):
    """Returns `homes.operations` for one matrix of a pair."""
    n = min(pair.shape)
    return homes.operations(jax.ShapeDtypeStruct((n, n), pair.dtype))


def cost_of_step(matrix):
    """Returns the cost of one step of `jaxmg.tree.orthogonalize`, in the unit of
    `homes.operations`."""
    k, larger = sorted(matrix.shape)
    return homes.operations(matrix) * (2 * larger + k) / max(3 * larger, 1)
