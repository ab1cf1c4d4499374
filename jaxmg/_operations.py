"""What the native code does with a kept Cholesky factor: each an `Operation`, declared once."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg import _blocks, _checks, _mesh, _native, _plugin, _programs, _results

# The values of APPLY's attribute ``operation``, with A = L L^H.
SOLVE, FORWARD, BACKWARD, LOWER, LOWER_H = range(5)


@dataclasses.dataclass(frozen=True, eq=False)
class Operation:
    """A native routine that takes a factor, and right-hand sides where its result is like them.

    Attributes:
        native: its name; after "jaxmg_" the FFI target.
        result: what it gives.
        in_place: whether the result takes the memory of the factor's tiles. XLA copies them first
            where the factor is still needed.
    """

    native: str
    result: _results.Result
    in_place: bool = False

    def __call__(self, routine, factor, *b, **attributes):
        """The result for ``factor``, on behalf of ``routine``; the attributes are the handler's."""
        parts = (factor.tiles,) if factor.overflow is None else (factor.tiles, factor.overflow)
        return _run(
            (*parts, *b), self, routine, factor.layout, factor.n, factor.tile, len(parts),
            tuple(attributes.items()),
        )  # fmt: skip

    def program(self, call, tiles, *others):
        """The global result; traced."""
        layout, n, count = call.layout, tiles.shape[1], 1 if call.overflow else 0
        overflow, b = others[:count], others[count:]
        b = tuple(_blocks.replicate(array, layout) for array in b)

        def local(place, tiles, *others):
            others = others if count else (jnp.zeros((0, n), tiles.dtype), *others)
            (value,) = _native.call(
                f"jaxmg_{self.native}", layout, call.tile, call.backend, (place, tiles, *others),
                (self.result.native(call, tiles, *others[1:]),),
                in_place=self.in_place, differing=int(self.result.differs),
                n=n, **dict(call.attributes),
            )  # fmt: skip
            value = self.result.finished(value, place.reshape(2)[0])
            return self.result.part(value, layout, tiles)

        rows = [_blocks.split_rows(array, layout) for array in (tiles, *overflow)]
        in_specs = (*(layout.row_spec for _ in rows), *(P() for _ in b))
        out_specs = layout.row_spec if self.result.differs else P()
        mapped = _native.over_ranks(layout, local, in_specs, out_specs)
        return (self.result.whole(mapped(*rows, *map(_results.columns, b)), call, *b),)


APPLY = Operation("factor_apply", _results.Solution("x"))
INVERT = Operation("factor_invert", _results.Matrix("a_inv"), in_place=True)
DIAGONAL = Operation("factor_diagonal", _results.RealVector("diagonal"))
ROWS = Operation("factor_rows", _results.UpperTriangle("u"), in_place=True)


@_programs.planned
def _run(arrays, operation, routine, layout, n, tile, parts, attributes):
    _mesh.refuse_manual_axes(routine)
    tiles, b = arrays[0], arrays[parts:]
    _checks.array(routine, "factor", tiles)
    a = jax.ShapeDtypeStruct((n, n), tiles.dtype)
    for array in b:
        _checks.right_hand_side(routine, a, array)
    _checks.kept(routine, tiles, n, layout.ranks)
    if n == 0:
        return lambda tiles, *b: operation.result.empty(tiles, *b, local=False)
    layout = _mesh.located(routine, layout, arrays)
    _plugin.load(layout.platform)
    call = _programs.Call(
        operation.native, operation.program, layout, n, tile, "native",
        (operation.result.spec(layout, a, *b),), attributes, overflow=tile if parts > 1 else 0,
    )  # fmt: skip
    run = _programs.runner(call, arrays)
    return lambda *arrays: run(*arrays)[0]
