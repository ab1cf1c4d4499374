"""Chooses the factorization by the matrix's structure: Cholesky if it is positive definite, else
LU, which takes twice the operations."""

import collections.abc
import dataclasses

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from jaxmg._layouts import layouts, shardings
from jaxmg._matrices import symmetry
from jaxmg._stacks import batching
from jaxmg._transform import derivatives


@dataclasses.dataclass(frozen=True)
class ByStructure(batching.Batchable):
    """Combines two functions of a square matrix and further arrays; one needs a definite matrix.

    One pass over the matrix checks whether it is Hermitian with a positive diagonal. If it is,
    ``definite`` is tried. Otherwise, or if the status of ``definite`` isn't 0, ``general`` is
    called. In a batch only ``general`` is called, because a device would run both for each matrix.
    The derivative is that of ``general``. ``fastest`` replaces it outside of batches and
    derivatives.

    Attributes:
        layout: the matrix's layout.
        definite: function for positive definite matrices, which returns results and a status; None
            for matrices that can't be Hermitian.
        general: function for all square matrices, which returns results.
        known: whether the matrix is known to be Hermitian.
        fastest: function with the results of ``general``, or None.
    """

    layout: layouts.Layout
    definite: collections.abc.Callable | None
    general: collections.abc.Callable
    known: bool = False
    fastest: collections.abc.Callable | None = None

    def compute(self, a, *others, largest):
        """Returns the results, with their derivative rule.

        Args:
            largest: the largest magnitude of ``a``, near 1.
        """
        return derivatives.differentiable(
            lambda *arrays: batching.batchable(self, *arrays),
            derivatives.as_composed(lambda *arrays: self.general(*arrays[:-1])),
            a,
            *others,
            jax.lax.stop_gradient(largest),
        )

    def __call__(self, *arrays):
        arrays, largest = arrays[:-1], arrays[-1]
        if not arrays[0].size:
            return self.general(*arrays)
        fastest, definite = self.fastest or self.general, self.definite
        if definite is None:
            return fastest(*arrays)
        # Traces the function only once: for the shapes of its results and for the second branch.
        program, shapes = jax.make_jaxpr(fastest, return_shape=True)(*arrays)
        tree = jax.tree.structure(shapes)

        def general():
            return jax.tree.unflatten(tree, jaxpr_as_fun(program)(*arrays))

        def unused(shape):
            """Returns a placeholder of this shape. For A's shape this is A itself, because every
            device would hold all of a constant."""
            if (shape.shape, shape.dtype) == (arrays[0].shape, arrays[0].dtype):
                return arrays[0]
            return jnp.zeros(shape.shape, shape.dtype)

        def skip():
            return self._alike(jax.tree.map(unused, shapes), shapes), jnp.int32(1)

        def attempt():
            values, status = definite(*arrays)
            return self._alike(values, shapes), status

        may_be_definite = symmetry.may_be_definite(arrays[0], self.layout, largest, self.known)
        values, status = jax.lax.cond(may_be_definite, attempt, skip)
        return jax.lax.cond(status == 0, lambda: values, lambda: self._alike(general(), shapes))

    def batched(self, settled, size, marks, *arrays):
        arrays, marks = arrays[:-1], marks[:-1]
        moving = [i for i, mark in enumerate(marks) if mark]

        def each(*values):
            return self.general(*batching.put(arrays, moving, values))

        return jax.vmap(each)(*(arrays[i] for i in moving))

    def _alike(self, values, shapes):
        """Reshards the results of either function like those of ``general``, on explicit axes."""
        return jax.tree.map(shardings.constrain_like, values, shapes)
