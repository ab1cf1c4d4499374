"""Takes a matrix for what it is: a positive definite one gets a Cholesky factorization, all others
LU, which has twice the operations."""

import collections.abc
import dataclasses

import jax
import jax.numpy as jnp

from jaxmg._call import layouts, symmetry
from jaxmg._transform import batching, derivatives


@dataclasses.dataclass(frozen=True)
class ByStructure(batching.Batchable):
    """Functions of the same square matrix, and of more arrays, for two kinds of matrices.

    Whether a matrix is Hermitian is looked at with one pass. Where it is, with a positive diagonal,
    the first function is tried, and where its status isn't 0 the second one takes its place. In a
    batch, of which a device would run both for each matrix, it is the second one alone; so are
    derivatives, which are those of a function of any matrix.

    Attributes:
        layout: of the matrix.
        definite: function that returns results and a status.
        general: function that returns results.
        known: whether the matrix is known to be Hermitian.
    """

    layout: layouts.Layout
    definite: collections.abc.Callable
    general: collections.abc.Callable
    known: bool = False

    def of(self, a, *others):
        """The results, with their derivative."""
        return derivatives.differentiable(
            lambda *arrays: batching.batchable(self, *arrays),
            derivatives.as_composed(self.general),
            a,
            *others,
        )

    def __call__(self, *arrays):
        if not arrays[0].size:
            return self.general(*arrays)
        shapes = jax.eval_shape(self.general, *arrays)

        def unused(shape):
            """A value of this shape; a matrix would be on every device were it a constant."""
            if (shape.shape, shape.dtype) == (arrays[0].shape, arrays[0].dtype):
                return arrays[0]
            return jnp.zeros(shape.shape, shape.dtype)

        def skip():
            return self._alike(jax.tree.map(unused, shapes), shapes), jnp.int32(1)

        def attempt():
            values, status = self.definite(*arrays)
            return self._alike(values, shapes), status

        values, status = jax.lax.cond(self._may_be_definite(arrays[0]), attempt, skip)
        return jax.lax.cond(
            status == 0, lambda: values, lambda: self._alike(self.general(*arrays), shapes)
        )

    def batched(self, settled, size, marks, *arrays):
        moving = [i for i, mark in enumerate(marks) if mark]

        def each(*values):
            return self.general(*batching.put(arrays, moving, values))

        return jax.vmap(each)(*(arrays[i] for i in moving))

    def _may_be_definite(self, a):
        positive = symmetry.has_positive_diagonal(a, self.layout)
        return positive if self.known else positive & symmetry.is_hermitian(a, self.layout)

    def _alike(self, values, shapes):
        """The results of either function in the sharding of explicit axes that `general` has."""
        return jax.tree.map(layouts.constrain_like, values, shapes)
