"""Makes kept factors: the calls that give one, their derivative, and the factor of an operand."""

import collections.abc
import dataclasses

from jaxmg._call import backends, checks, execute, record
from jaxmg._factors import operations
from jaxmg._transform import derivatives, dispatch


@dataclasses.dataclass(frozen=True)
class Rule:
    """JVP rule of a routine that gives a factor: its tangent is that of A.

    Attributes:
        pack: makes the factor of a (`programs.Call`, results) pair.
    """

    routine: record.Routine
    pack: collections.abc.Callable

    def __call__(self, arguments):
        def derivative(primals, tangents):
            factor = dispatch.transform(self.routine, primals, arguments, self, self.pack)
            return factor, operations.tangent(factor, tangents[0])

        return derivative


def factorize(routine, pack, a, arguments, check=False):
    """The factor of ``a`` by ``routine``, as ``pack`` makes it of a (`programs.Call`, results)
    pair."""
    return dispatch.call(routine, (a,), arguments, Rule(routine, pack), check, pack)


def factor_for(routine, pack, a, arguments):
    """The factor of a matrix that is an operand of another routine, for its derivative.

    Args:
        arguments: the arguments of that call. The factorization is the engine's, whatever
            ``backend`` they have.
    """
    if arguments.inside is not None:
        (rows,) = execute.local_operands(routine, (a,), arguments.inside)
        return _factorize_rows(routine, pack, rows, arguments.inside)
    options = (("precision", dict(arguments.options)["precision"]),)
    arguments = arguments._replace(outputs=routine.outputs, backend="native", options=options)
    return factorize(routine, pack, a, arguments)


def _factorize_rows(routine, pack, rows, call):
    """The factor of a matrix of which a rank has these rows, inside a shard_map of the caller's.

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
