"""The operations on an `LDLFactor`, with their derivatives.

The engine factors P A P^* = L T L^*. Its tiles of L are all of full width, so that a rank has up to
a tile more rows than of A. The tangent of a factor has the rows of dA, and zeros below them on each
rank.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg._call import checks, results
from jaxmg._kept import operations
from jaxmg._layouts import layouts, meshes, shardings
from jaxmg._matrices import hermitian
from jaxmg._transform import derivatives

# Values of the attribute ``operation``: solve with A or with its adjoint.
SOLVE, SOLVE_ADJOINT = 0, 2


@dataclasses.dataclass(frozen=True)
class Inertia(results.Result):
    """The numbers of positive, negative and zero eigenvalues: (3,), int32."""

    def native(self, call, a, *b):
        return jax.ShapeDtypeStruct((3,), jnp.int32)

    def empty(self, a, *b, local):
        return jnp.zeros((3,), jnp.int32)


# The order of the identity's columns with which `_Inverse` solves at a time.
_COLUMNS = 512


@dataclasses.dataclass(frozen=True, eq=False)
class _Inverse(operations.Operation):
    """The inverse by rows: solutions for some columns of the identity at a time. Each rank keeps
    its own rows of them."""

    def on_rank(self, call, coordinates, tiles, *others):
        layout, n = call.layout, tiles.shape[1]
        size, count = min(n, _COLUMNS), -(-n // layout.ranks)
        rank = coordinates.reshape(2)[0]
        row = jnp.arange(n, dtype=jnp.int32)[:, None]

        def step(i, inverse):
            first = jnp.minimum(i * size, n - size)
            columns = (row == first + jnp.arange(size, dtype=jnp.int32)).astype(tiles.dtype)
            x = APPLY.on_rank(call, coordinates, tiles, *others, columns)
            own = hermitian.own_rows(layout, rank, x)
            return jax.lax.dynamic_update_slice(inverse, own, (jnp.int32(0), first))

        steps = -(-n // size)
        inverse = jax.lax.fori_loop(
            jnp.int32(0), jnp.int32(steps), step, jnp.zeros((count, n), tiles.dtype)
        )
        return self.result.part(inverse, layout, inverse)


# The replicated arrays are T's factors and both kinds of pivots; of INERTIA, T.
APPLY = operations.Operation("ldl_solve", results.Solution("x"), shared=3)
INVERT = _Inverse("ldl_solve", results.ZeroPadded("a_inv"), shared=3)
INERTIA = operations.Operation("ldl_inertia", Inertia("inertia"), shared=1)

# L^T by rows, as an LU factor's.
ROWS = operations.Operation("lu_rows", results.Matrix("lower"), in_place=True)

# Those with a native routine of their own.
OPERATIONS = (APPLY, INERTIA)


def rows_of_rank(n, ranks, tile):
    """Returns the number of rows of L's tiles on each rank, as the engine's LdlTiles."""
    tiles = -(-n // tile)
    return -(-tiles // ranks) * tile


@dataclasses.dataclass(frozen=True)
class LDL(operations.Factor):
    """An LDL factor without its arrays.

    Attributes:
        hermitian: whether A is Hermitian; otherwise it is symmetric.
    """

    hermitian: bool

    def check(self, operation, *arrays):
        if self.layout.inside:
            return
        meshes.refuse_manual_axes(self.routine)
        tiles, *others = arrays
        checks.array(self.routine, "factor", tiles, checks.ALL)
        checks.usable(self.routine, "factor", *others[: operation.shared])
        rows = rows_of_rank(self.n, self.layout.ranks, self.tile) * self.layout.ranks
        if tiles.ndim != 2 or (self.n and tiles.shape != (rows, self.n)):
            raise ValueError(
                f"{self.routine}: the tiles of the factor have shape {tuple(tiles.shape)}, but "
                f"those of a factor of order {self.n} on {self.layout.ranks} ranks have shape "
                f"({rows}, {self.n}). Map over a batch of factors with jax.vmap, or select one "
                "factor of it with jax.tree.map"
            )
        a = jax.ShapeDtypeStruct(self.shape, tiles.dtype)
        for array in others[operation.shared :]:
            checks.right_hand_side(self.routine, a, array, checks.ALL)

    def apply(self, operation, *arrays):
        """Solves with A or its adjoint for the last array."""
        if layouts.traced(arrays):
            self.check(APPLY, *arrays)
        return _Apply(self, operation)(*arrays)

    def inertia(self, *arrays):
        """Counts the eigenvalues; the arrays are the tiles and T."""
        return self.constant(functools.partial(self.run, INERTIA), *arrays)

    def constant(self, function, *arrays):
        """Calls a function of the factor's arrays that has no derivative."""

        def refuse(primals, tangents):
            raise NotImplementedError(f"{self.routine} has no derivative")

        return self.differentiable(function, refuse, arrays)

    def invert(self, *arrays):
        """Computes the inverse of A."""
        run = functools.partial(self.run, INVERT, operation=SOLVE, hermitian=self.hermitian)
        return self.differentiable(run, self._invert_rule, arrays)

    def rows(self, *arrays):
        """Returns L^T; the only array is the tiles."""
        return self.constant(functools.partial(self.run, ROWS, m=self.n), *arrays)

    def slogdet(self, sign, log_det, *arrays):
        """Returns ``sign`` and ``log_det``, those of det(A), with their derivatives."""
        return self.differentiable(
            lambda *arrays: arrays[-2:], self._slogdet_rule, (*arrays, sign, log_det)
        )

    def _invert_rule(self, primals, tangents):
        layout, inverse = self.layout, self.invert(*primals)
        rows = hermitian.rows(layout, inverse)
        half = hermitian.times(layout, rows, self._rows_of_tangent(tangents[0]))
        tangent = -hermitian.times(layout, half, rows)
        return inverse, hermitian.laid_out_like(layout, tangent, inverse)

    def _slogdet_rule(self, primals, tangents):
        """d log(det(A)) = trace(A^-1 dA), whose imaginary part rotates the sign."""
        *factor, sign, log_det = primals
        rows = hermitian.rows(self.layout, self.invert(*factor))
        trace = _trace(self.layout, rows, self._rows_of_tangent(tangents[0]), self.hermitian)
        values = self.slogdet(sign, log_det, *factor)
        turned = 1j * trace.imag * values[0] if jnp.iscomplexobj(sign) else jnp.zeros_like(sign)
        return values, tuple(
            shardings.constrain_like(dot.astype(x.dtype), x)
            for dot, x in ((turned, sign), (trace.real, log_det))
        )

    def _rows_of_tangent(self, a_dot):
        return _padded(self.layout, a_dot, -(-self.n // self.layout.ranks))


def tangent(factor, a_dot):
    """Returns the tangent of a factor, given the tangent of A."""
    if factor.n:
        count = factor.tiles.shape[0] // factor.layout.ranks
        tiles = _padded(factor.layout, hermitian.rows(factor.layout, a_dot), count)
        tiles = shardings.constrain_like(tiles, factor.tiles)
    else:
        tiles = factor.tiles
    return dataclasses.replace(derivatives.still(factor), tiles=tiles)


@hermitian.on_mesh_with(3)
def _trace(layout, inverse, a_dot, is_hermitian):
    """Returns the trace of A^-1 dA for the inverse of a Hermitian or symmetric A, all by rows."""

    def local(rank, inverse, a_dot):
        turned = inverse.conj() if is_hermitian else inverse
        return hermitian.sum_over_ranks(layout, jnp.sum(turned * a_dot))

    return hermitian.over_ranks(layout, local, (inverse, a_dot), (), P())


@hermitian.on_mesh_with(2)
def _padded(layout, rows, count):
    """Pads each rank's rows with zeros to ``count`` rows, or cuts them."""

    def local(rank, rows):
        extra = count - len(rows)
        return rows[:count] if extra < 0 else jnp.pad(rows, ((0, extra), (0, 0)))

    return hermitian.over_ranks(layout, local, (rows,))


@dataclasses.dataclass(frozen=True)
class _Apply(operations.Apply):
    """APPLY as a linear function of the right-hand sides."""

    of: LDL
    operation: int

    @property
    def native(self):
        attributes = (("operation", self.operation), ("hermitian", self.of.hermitian))
        return operations.FactorCall(self.of, APPLY, attributes)

    @property
    def adjoint(self):
        return dataclasses.replace(self, operation=SOLVE + SOLVE_ADJOINT - self.operation)

    def rule(self, primals, tangents):
        """The tangent of op(A)^-1 b is op(A)^-1 (db - op(dA) x)."""
        *factor, b = primals
        a_dot, b_dot = tangents[0], tangents[-1]
        x, layout = self(*primals), self.of.layout
        moved = b_dot
        if a_dot is not None:
            rows = self.of._rows_of_tangent(a_dot)
            solves = self.operation == SOLVE
            product = hermitian.general_product if solves else hermitian.general_adjoint_product
            change = -hermitian.multiply_right_hand_sides(product, layout, rows, x)
            moved = derivatives.sum_of(b_dot, change)
        return x, jnp.zeros_like(x) if moved is None else self(*factor, moved)
