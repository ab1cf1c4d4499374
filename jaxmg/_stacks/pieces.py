"""A JAX primitive by which the plugin cuts an array into pieces along its first dimension.

XLA would compile a kernel for each piece, which for a tree of 200 leaves takes more time than
everything else. The handler `jaxmg_stacked_split` copies instead. The transpose of the primitive is
a concatenation.
"""

import functools

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


def split(x, sizes):
    """Cuts x into pieces of these sizes, which sum to its first dimension; no piece is empty. The
    plugin must be loaded."""
    return _split.bind(x, sizes=tuple(sizes))


def _results(x, *, sizes):
    return [x.update(shape=(size, *x.shape[1:]), weak_type=False) for size in sizes]


@functools.lru_cache(maxsize=64)
def _compiled(sizes):
    return jax.jit(functools.partial(_split.bind, sizes=sizes))


def _transpose(cotangents, x, *, sizes):
    dtype, trailing = x.aval.dtype, x.aval.shape[1:]
    pieces = [
        jnp.zeros((size, *trailing), dtype) if isinstance(piece, ad.Zero) else piece
        for piece, size in zip(cotangents, sizes, strict=True)
    ]
    return (jnp.concatenate(pieces),)


def _batch(arrays, dimensions, *, sizes):
    """Moves the batch's dimension after the first one, so that pieces stay contiguous."""
    return split(jnp.moveaxis(arrays[0], dimensions[0], 1), sizes), [1] * len(sizes)


def _lower(context, x, *, sizes):
    """Lets a single piece take the memory of ``x``, unless ``x`` is read elsewhere."""
    aliases = {0: 0} if len(sizes) == 1 else None
    rule = jax.ffi.ffi_lowering("jaxmg_stacked_split", operand_output_aliases=aliases)
    return rule(context, x)


_split = Primitive("jaxmg_stacked_split")
_split.multiple_results = True
_split.def_impl(lambda x, *, sizes: _compiled(sizes)(x))
_split.def_abstract_eval(_results)
mlir.register_lowering(_split, _lower)
ad.deflinear2(_split, _transpose)
batching.primitive_batchers[_split] = _batch
