"""Updates of a Cholesky factor: that of A + V V^H or A - V V^H, its batches and derivative."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import blocks, checks, ffi, programs, results
from jaxmg._kept import leaves
from jaxmg._layouts import layouts, meshes, shardings
from jaxmg._matrices import hermitian, products
from jaxmg._plugin import plugins
from jaxmg._stacks import batching
from jaxmg._transform import derivatives

NATIVE = "factor_update"
_NAME = "CholeskyFactor.update"


def update(factor, v, sign):
    """Computes `CholeskyFactor.update`."""
    leaves.check(_NAME, factor, factor.n)
    checks.usable(_NAME, "factor", factor.tiles, factor.overflow, factor.status)
    if factor.count is not None and getattr(v, "ndim", 0) in (1, 2):
        v = _before(factor.count, v)
    of = _Update(factor.layout, factor.n, factor.tile, factor.overflow is not None, _sign(sign) < 0)
    overflow = () if factor.overflow is None else (factor.overflow,)
    arrays = (factor.tiles, *overflow, factor.status, v)
    empty = getattr(v, "size", None) == 0
    if empty or layouts.traced(arrays):
        of.check(arrays)
    if empty:
        return factor
    tiles, *overflow, log_det, status = of.differentiable(*arrays)
    return dataclasses.replace(
        factor, tiles=tiles, overflow=overflow[0] if overflow else None, _log_det=log_det,
        status=status,
    )  # fmt: skip


def _before(count, v):
    """Returns V with zeros in the rows from ``count`` on, which are not A's (`growing`)."""
    with _compat.entered_by(count):
        row = jnp.arange(v.shape[0]).reshape(-1, *[1] * (v.ndim - 1))
        return jnp.where(row < count, v, jnp.zeros((), v.dtype))


def _sign(sign):
    try:
        value = 0 if isinstance(sign, bool) else checks.index(sign)
    except TypeError:
        value = 0
    if value not in (1, -1):
        raise ValueError(f"{_NAME}: sign must be 1 (A + V V^H) or -1 (A - V V^H); got {sign!r}")
    return value


@dataclasses.dataclass(frozen=True)
class _Update(batching.Batchable):
    """An update as a function of the factor's tiles, its overflow, its status, and V. It returns
    the new tiles, the new overflow, the log-determinant and the status."""

    layout: layouts.Layout
    n: int
    tile: int
    overflows: bool
    downdate: bool

    def __call__(self, *arrays):
        return tuple(_run(arrays, self))

    def batched(self, settled, size, marks, *arrays):
        placement = batching.make_placement(self.layout, arrays, marks, self._specs())
        if batching.is_alone(self.layout):
            return batching.spread(
                self.layout, _OnDevice(self), size, marks, *arrays, placement=placement
            )
        return batching.in_turn(self, marks, *arrays, placement=placement)

    def check(self, arrays):
        """Raises an error if these arrays are not a factor and V."""
        meshes.refuse_manual_axes(_NAME)
        tiles, v = arrays[0], arrays[-1]
        checks.array(_NAME, "factor", tiles, checks.ALL)
        checks.factor(_NAME, tiles, (self.n, self.n), self.layout.ranks)
        checks.array(_NAME, "v", v, checks.ALL)
        if v.ndim not in (1, 2) or v.shape[0] != self.n:
            raise ValueError(
                f"{_NAME}: v must have shape ({self.n},) or ({self.n}, k) for a factor of order "
                f"{self.n}; it has shape {tuple(v.shape)}"
            )
        if v.dtype != tiles.dtype:
            raise TypeError(
                f"{_NAME}: v must have the factor's dtype, {tiles.dtype}; it has {v.dtype}. "
                "Convert it with .astype(...)"
            )

    def differentiable(self, *arrays):
        """Calls the update, with a derivative: the tangent of a factor is that of A (`kept`)."""
        return derivatives.differentiable(
            lambda *arrays: batching.batchable(self, *arrays), self._rule, *arrays
        )

    def _rule(self, primals, tangents):
        values = self.differentiable(*primals)
        a_dot, v_dot = tangents[0], tangents[-1]
        moved = None
        if v_dot is not None:
            v, v_dot = results.columns(primals[-1]), results.columns(v_dot)
            moved = _symmetric_product(self.layout, -v if self.downdate else v, v_dot)
            moved = shardings.constrain_like(moved, values[0])
        moved = derivatives.sum_of(a_dot, moved)
        still = derivatives.still(values)
        return values, still if moved is None else (moved, *still[1:])

    def _specs(self):
        rows = self.layout.row_spec
        return (rows, *((rows,) if self.overflows else ()), P(), P())

    def call(self):
        """Returns the key of the cache of programs."""
        return programs.Call(
            NATIVE, _program, self.layout, (self.n, self.n), self.tile, "native", self._specs(),
            (("downdate", self.downdate),), overflow=self.tile * self.overflows,
        )  # fmt: skip


@hermitian.on_mesh
def _symmetric_product(layout, v, w):
    """Returns the rows of V W^H + W V^H."""

    def local(rank, v, w):
        own_v, own_w = (hermitian.own_rows(layout, rank, x) for x in (v, w))
        return products.dot(own_v, w.conj(), 1, 1) + products.dot(own_w, v.conj(), 1, 1)

    return hermitian.over_ranks(layout, local, (), (v, w))


@dataclasses.dataclass(frozen=True)
class _OnDevice:
    """The update on a device that holds whole factors, inside a shard_map."""

    of: _Update

    def __call__(self, coordinates, *arrays):
        *factor, v = arrays
        call = self.of.call()
        return _whole(call, _on_rank(call, coordinates, *factor, results.columns(v)))


@programs.cache_plans
def _run(arrays, of):
    of.check(arrays)
    layout = meshes.located(_NAME, of.layout, arrays)
    plugins.load(layout.platform)
    return programs.runner(dataclasses.replace(of, layout=layout).call(), arrays)


def _program(call, *arrays):
    """Computes all results, in a trace."""
    layout, count = call.layout, 2 if call.overflow else 1
    rows = [blocks.split_rows(array, layout) for array in arrays[:count]]
    *others, v = (blocks.replicate(array, layout) for array in arrays[count:])
    in_specs = (*(layout.row_spec for _ in rows), P(), P())
    out_specs = (layout.row_spec, layout.row_spec, P(), P())

    def local(coordinates, *arrays):
        return _on_rank(call, coordinates, *arrays)

    mapped = ffi.over_ranks(layout, local, in_specs, out_specs)
    return _whole(call, mapped(*rows, *others, results.columns(v)))


def _on_rank(call, coordinates, tiles, *others):
    """Returns a rank's part of all results."""
    n, real = tiles.shape[1], jnp.finfo(tiles.dtype).dtype
    overflow, status, v = others if call.overflow else (jnp.zeros((0, n), tiles.dtype), *others)
    tiles, overflow, log_det, new = ffi.call(
        f"jaxmg_{NATIVE}", call.layout, call.tile, call.backend, (coordinates, tiles, overflow, v),
        (
            jax.ShapeDtypeStruct(tiles.shape, tiles.dtype),
            jax.ShapeDtypeStruct((call.overflow, n), tiles.dtype),
            jax.ShapeDtypeStruct((1,), real),
            jax.ShapeDtypeStruct((1,), jnp.int32),
        ),
        differing=2, n=n, **dict(call.attributes),
    )  # fmt: skip
    status = status.reshape(1)
    return tiles, overflow, log_det, jnp.where(status == 0, new, status)


def _whole(call, values):
    """Returns the caller's results."""
    tiles, overflow, log_det, status = values
    return tiles, *((overflow,) if call.overflow else ()), log_det[0], status[0]
