"""The leaf of a factor that records the layout for which its other leaves were made.

Leaves in the engine's layout are meaningless for another number of ranks or another tile width, but
their shapes may fit there too: for example (8, 8) on 2 ranks and on 4. So a factor has a dict with
one leaf of zeros, whose shape is (ranks, tile width), under a key with the same two numbers. A
library that restores leaves into another tree finds that keys and shapes differ; if it crops and
pads arrays to the shapes of the tree, the key still differs. Each method compares the shape with
the static fields. This costs nothing when a program runs, raises inside ``jit`` too, and holds
after any arithmetic on leaves. Another layout of the engine needs another key and shape.
"""

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg._call import programs
from jaxmg._layouts import layouts


def made_for(call, rows, status):
    """Returns {key: leaf} for the factor from a `programs.Call`; None in the caller's shard_map.

    Args:
        rows: the number of rows of the matrix in the tiles.
        status: the factor's status, or that of a stack of factors. The leaf is placed like it.
    """
    if call.layout.inside:
        return None
    shape = _shape(call.layout, rows, call.tile)
    if not layouts.traced((status,)):
        return with_key(_make((), call.layout, shape))
    zero = (status * 0).astype(jnp.int8)
    return with_key(jnp.broadcast_to(zero[..., None, None], (*status.shape, *shape)))


def with_key(leaf):
    """Returns {key: leaf} for a leaf of zeros, or for a stack of them."""
    return {_key(leaf.shape[-2:]): leaf}


def check(routine, factor, rows):
    """Raises unless the leaves of a factor match its layout and its tile width."""
    if factor.made_for is None and factor.layout.inside:
        return
    needed = _shape(factor.layout, rows, factor.tile)
    leaf = factor.made_for.get(_key(needed)) if isinstance(factor.made_for, dict) else None
    shape: tuple[int, ...] = getattr(leaf, "shape", ())
    if shape[-2:] == needed:
        return
    origin = "another tree"
    if len(shape) >= 2:
        origin = f"{_count(shape[-2], 'rank')} with tiles of {_count(shape[-1], 'row')}"
    raise ValueError(
        f"{routine}: the leaves of this {type(factor).__name__} are those of a factor on {origin}, "
        f"but its layout is that of {_count(needed[0], 'rank')} with tiles of "
        f"{_count(needed[1], 'row')}. To change the mesh or the tile width of a factor, save "
        "factor.portable() and load it with jaxmg.from_portable(tree, mesh=mesh)"
    )


def _shape(layout, rows, tile):
    """Returns (ranks, tile width). A tile has no more rows than a rank."""
    ranks = layout.ranks
    return ranks, max(1, min(tile, -(-rows // ranks)))


def _key(shape):
    return "ranks_{}_tile_{}".format(*shape)


def _count(number, noun):
    return f"{number} {noun}{'' if number == 1 else 's'}"


@programs.cache_plans
def _make(arrays, layout, shape):
    call = programs.Call("made_for", _zeros, layout, shape, 0, "", (P(),))
    run = programs.runner(call, ())
    return lambda: run()[0]


def _zeros(call):
    return (jnp.zeros(call.shape, jnp.int8),)


def describe(factor, size, array, option):
    """Returns the text of a factor.

    Args:
        size: the factor's order or shape, with its name.
        array: a leaf of the dtype of A. JAX may have put an object without a dtype in its place.
        option: the name of the attribute with the precision.
    """
    return (
        f"{type(factor).__name__}({size}, dtype={getattr(array, 'dtype', None)}, "
        f"tile={factor.tile}, mesh={dict(factor.mesh.shape)}, rows over {factor.layout.rows}, "
        f"{option}={getattr(factor, option)!r})"
    )
