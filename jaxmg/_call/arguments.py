"""The arguments that all routines share, as one immutable object."""

import typing

from jax.sharding import PartitionSpec as P

from jaxmg._layouts import layouts, meshes


class Arguments(typing.NamedTuple):
    """The arguments of a call other than its arrays. A tuple, because caches use it as a key.

    Attributes:
        caller: the name of the public function, for errors.
        outputs: the names of the results that the caller returns.
        mesh: the public function's argument, or the `layouts.Layout` of a program that makes the
            call.
        spec: the spec of the matrix; None: inferred.
        options: (name, value) pairs of the routine's own arguments and of the arguments that
            request results.
        inside: the `programs.Call` of a call inside a shard_map; None outside of one.
    """

    caller: str
    outputs: tuple
    T_A: typing.Any
    mesh: typing.Any
    spec: P | None
    pad: bool
    backend: str
    donate: bool = False
    options: tuple = ()
    inside: typing.Any = None


def collect(
    routine, T_A, mesh, matrix_specs, in_specs, pad, backend, donate=False, *, caller="",
    **options,
):  # fmt: skip
    """Returns the `Arguments` of a call of ``caller``, by default the public function of
    ``routine``."""
    caller = caller or routine.name
    spec = None
    if matrix_specs is not None or in_specs is not None:
        spec = matrix_spec(caller, matrix_specs, in_specs)
    return Arguments(
        caller, routine.outputs, T_A, mesh, spec, pad, backend, donate, tuple(options.items())
    )


def collect_traced(routine, T_A, mesh, matrix_specs, in_specs, pad, backend, **options):
    """Returns the `Arguments` for a call on global arrays that returns the work array too, where
    the enclosing jit decides about donation."""
    arguments = collect(routine, T_A, mesh, matrix_specs, in_specs, pad, backend, **options)
    return arguments._replace(outputs=routine.traced_outputs)


def collect_local(routine, T_A, mesh, matrix_specs, in_specs, pad, backend, *, older=(), **options):
    """Returns the `Arguments` for the routine's ``_shardmap_ctx``; outside of a shard_map, those of
    `collect_traced`.

    Args:
        older: (argument, flag) pairs. In the position of this argument JAXMg 0.0 had the flag: a
            bool there sets the flag.
    """
    if not meshes.manual_axes():
        return collect_traced(routine, T_A, mesh, matrix_specs, in_specs, pad, backend, **options)
    values = {"mesh": mesh, "matrix_specs": matrix_specs, "pad": pad, **options}
    for argument, flag in older:
        if isinstance(values[argument], bool):
            values[flag], values[argument] = values[argument], None
    options = {name: values[name] for name in options}
    return collect(
        routine, T_A, values["mesh"], values["matrix_specs"], in_specs, values["pad"], backend,
        caller=local_name(routine), **options,
    )  # fmt: skip


def local_name(routine):
    """Returns the name of the routine's function for calls inside a shard_map, or a false value if
    it has none."""
    return routine.traced_outputs and f"{routine.name}_shardmap_ctx"


def either_spec(caller, specs, in_specs):
    """Returns what was passed as ``matrix_specs`` or as ``in_specs``."""
    if specs is not None and in_specs is not None:
        raise ValueError(
            f"{caller}: matrix_specs and in_specs are two names of one argument; pass one of them"
        )
    return in_specs if specs is None else specs


def matrix_spec(caller, specs, in_specs):
    """Returns the spec of A, given ``matrix_specs`` or ``in_specs``: one spec, or a sequence that
    starts with it.

    Up to JAXMg 0.0.5 the argument was the pair (spec of A, spec of b). The layout of b now follows
    from its own sharding.
    """
    name = "in_specs" if specs is None else "matrix_specs"
    specs = either_spec(caller, specs, in_specs)
    if specs is None or specs is layouts.WHOLE or isinstance(specs, P):
        return specs
    if isinstance(specs, (list, tuple)) and specs and isinstance(specs[0], P):
        return specs[0]
    raise TypeError(
        f"{caller}: {name} must be a PartitionSpec, or a list or tuple that starts with A's; "
        f"got {specs!r}"
    )
