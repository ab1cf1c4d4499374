"""Creation of factors: calls that return one, their derivative, and the factor of an operand."""

import collections.abc
import dataclasses

from jaxmg._call import backends, checks, execute, record
from jaxmg._kept import operations
from jaxmg._transform import derivatives, dispatch


@dataclasses.dataclass(frozen=True)
class Rule:
    """JVP rule of a routine that returns a factor: the factor's tangent is that of A.

    Attributes:
        pack: function that creates the factor from a `programs.Call` and its results.
    """

    routine: record.Routine
    pack: collections.abc.Callable

    def __call__(self, arguments):
        def derivative(primals, tangents):
            factor = dispatch.transform(self.routine, primals, arguments, self, self.pack)
            return factor, operations.tangent(factor, tangents[0])

        return derivative


def factorize(routine, pack, a, arguments, check=False):
    """Factors ``a`` by ``routine``; ``pack`` creates the factor from a `programs.Call` and its
    results."""
    return dispatch.call(routine, (a,), arguments, Rule(routine, pack), check, pack)


def factor_for(routine, pack, a, arguments):
    """Factors an operand of another routine, for that routine's derivative.

    Args:
        arguments: the arguments of that call. The engine computes the factorization, whatever
            their ``backend``.
    """
    if arguments.inside is not None:
        (rows,) = execute.local_operands(routine, (a,), arguments.inside)
        return _factorize_rows(routine, pack, rows, arguments.inside)
    options = (("precision", dict(arguments.options)["precision"]),)
    arguments = arguments._replace(outputs=routine.outputs, backend="native", options=options)
    return factorize(routine, pack, a, arguments)


def _factorize_rows(routine, pack, rows, call):
    """Factors a matrix, given a rank's rows of it, inside the caller's shard_map.

    Args:
        call: the `programs.Call` of the other routine.
    """
    layout = call.layout.by_rows
    products = dict(call.attributes).get("products", checks.DEFAULT)
    backend = backends.resolve(routine.native, layout, "native", rows)
    call = execute.make_call(routine, layout, rows, call.tile, backend, {"products": products})

    def run(rows):
        return pack(call, dispatch.batch_rows(call, rows))

    def rule(primals, tangents):
        factor = differentiable(*primals)
        return factor, operations.tangent(factor, tangents[0])

    def differentiable(rows):
        return derivatives.differentiable(run, rule, rows)

    return differentiable(rows)
