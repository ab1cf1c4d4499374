"""A routine, declared once: a `Routine` says what it takes and gives, and has the three forms that
callers know it in."""

import collections.abc
import dataclasses
import functools
import operator

from jax.sharding import PartitionSpec as P

from jaxmg import _backend, _blocks, _checks, _mesh, _native, _programs, _results

# The first result, for callers inside jit who want A's memory back, whatever is in it.
WORK = "a_work"


@dataclasses.dataclass(frozen=True)
class Option:
    """An argument that changes what the native code computes.

    Attributes:
        name: the caller's argument.
        attribute: the handler's attribute, an integer.
        check: function of (routine, value, dtype of A, resolved backend) that raises where the
            value can't be right, and returns the attribute's.
    """

    name: str
    attribute: str
    check: collections.abc.Callable


PRECISION = Option("precision", "tf32", _checks.precision)


@dataclasses.dataclass(frozen=True, eq=False)
class Routine:
    """What there is to know about a routine; `plain`, `local` and `traced` are its forms.

    Attributes:
        name: in messages, and after "jaxmg_" the FFI target.
        results: what the native code gives, the matrix first.
        plain_gives, local_gives, traced_gives: by name what the forms give, in order; a result that
            its argument doesn't ask for is left out, and a single one comes without a tuple.
        operands: the arrays, the matrix first; a second one is the right-hand sides.
        options: arguments that become attributes.
        older: (argument, flag) for those arguments of `local` that stand where JAXMg 0.0 had a
            flag: a bool is taken for that.
        transformations: "vmap" and "grad" where JAX may apply them; others are refused.
    """

    name: str
    results: tuple
    plain_gives: tuple
    local_gives: tuple
    traced_gives: tuple
    operands: tuple = ("a",)
    options: tuple = ()
    older: tuple = ()
    transformations: tuple = ()

    def plain(self, arrays, T_A, mesh, matrix_specs, in_specs, pad, backend, donate, **options):
        """The routine on global arrays, eagerly or under jit."""
        if donate and len(arrays) > 1:
            _checks.separate(self.name, *arrays)
        spec = _mesh.given_spec(self.name, matrix_specs, in_specs)
        options = tuple(options.items())
        return self._run(arrays, self.plain_gives, T_A, mesh, spec, pad, backend, donate, options)

    def traced(self, arrays, T_A, mesh, matrix_specs, in_specs, pad, backend, **options):
        """The same for use inside jit, which decides what is donated."""
        spec = _mesh.given_spec(self.name, matrix_specs, in_specs)
        options = tuple(options.items())
        return self._run(arrays, self.traced_gives, T_A, mesh, spec, pad, backend, False, options)

    def local(self, arrays, T_A, mesh, matrix_specs, in_specs, pad, backend, **options):
        """The routine on this rank's block, inside a shard_map; outside of one, `traced`."""
        if not _mesh.manual_axes():
            return self.traced(arrays, T_A, mesh, matrix_specs, in_specs, pad, backend, **options)
        name = f"{self.name}_shardmap_ctx"
        options = {"mesh": mesh, "matrix_specs": matrix_specs, "pad": pad, **options}
        for argument, flag in self.older:
            if isinstance(options[argument], bool):
                options[flag], options[argument] = options[argument], None
        spec = _mesh.given_spec(name, options["matrix_specs"], in_specs)
        a, *others = arrays
        _checks.block(name, a, self.transformations)
        tile = _checks.tile(name, T_A)
        layout = _mesh.infer_local(name, a, spec, options["pad"])
        rows = _blocks.to_rows(a, layout)
        backend = _backend.resolve(self.name, layout, backend, rows)
        for b in others:
            _checks.right_hand_side(name, rows, b, self.transformations)
        check_b = any([_checks.same_on_ranks(name, b, layout) for b in others])
        attributes = self._attributes(name, options, a.dtype, backend, check_b)
        give, wanted = self._given(self.local_gives, options)
        if a.size == 0:
            return give([result.empty(*arrays, local=True) for result in self.results])
        place = _mesh.local_place(layout)
        operands = (place, rows, *map(_results.columns, others))
        values = self._call(layout, tile, backend, operands, attributes)
        return give([
            result.on_rank(value, layout, *arrays) if want else None
            for result, value, want in zip(self.results, values, wanted, strict=True)
        ])  # fmt: skip

    @functools.cached_property
    def _run(self):
        return _programs.planned(self._plan)

    def _plan(self, arrays, names, T_A, mesh, spec, pad, backend, donate, options):
        """Checks a call on global arrays; the function of the arrays that returns its results."""
        layout, tile = self._prepare(arrays, T_A, mesh, spec, pad)
        options = dict(options)
        give, wanted = self._given(names, options)
        a = arrays[0]
        if a.size == 0:
            return lambda *arrays: give([x.empty(*arrays, local=False) for x in self.results])
        backend = _backend.resolve(self.name, layout, backend, a)
        attributes = self._attributes(self.name, options, a.dtype, backend, check_b=False)
        specs = tuple(result.spec(layout, *arrays) for result in self.results)
        call = _programs.Call(
            self.name, self._program, layout, a.shape[0], tile, backend, specs,
            tuple(attributes.items()),
        )  # fmt: skip
        run = _programs.runner(call, arrays, donate, wanted)
        return lambda *arrays: give(run(*arrays))

    def _prepare(self, arrays, T_A, mesh, spec, pad):
        _mesh.refuse_manual_axes(self.name)
        _checks.matrix(self.name, arrays[0], pad, self.transformations)
        if len(arrays) > 1:
            _checks.right_hand_side(self.name, *arrays, self.transformations)
        tile = _checks.tile(self.name, T_A)
        layout = _mesh.infer(self.name, arrays, mesh, spec)
        _checks.padding(self.name, arrays[0].shape, layout, pad)
        return layout, tile

    def _attributes(self, name, options, dtype, backend, check_b):
        found = {
            option.attribute: option.check(name, options[option.name], dtype, backend)
            for option in self.options
        }
        return found | {"check_b": check_b} if len(self.operands) > 1 else found

    def _given(self, names, options):
        """(function that picks what a caller gets out of all results, which of them that needs)."""
        place = {result.name: i for i, result in enumerate(self.results)}
        asked = {result.name: options.get(result.asked, True) for result in self.results}
        kept = [place.get(name, 0) for name in names if asked.get(name, True)]
        return operator.itemgetter(*kept), tuple(i in kept for i in range(len(self.results)))

    def _program(self, call, a, *others):
        """All results of global arrays; traced."""
        layout = call.layout
        others = [_blocks.replicate(b, layout) for b in others]

        def local(place, a, *others):
            operands = (place, _blocks.to_rows(a, layout.by_rows), *others)
            matrix, *rest = self._call(
                layout, call.tile, call.backend, operands, dict(call.attributes)
            )
            return _blocks.from_rows(matrix, layout.by_rows, a.shape), *rest

        in_specs = (layout.row_spec, *(P() for _ in others))
        out_specs = (layout.row_spec, *(P() for _ in self.results[1:]))
        mapped = _native.over_ranks(layout, local, in_specs, out_specs)
        values = mapped(_blocks.split_rows(a, layout), *map(_results.columns, others))
        return tuple(
            result.whole(value, call, *others)
            for result, value in zip(self.results, values, strict=True)
        )

    def _call(self, layout, tile, backend, operands, attributes):
        _, a, *others = operands
        results = tuple(result.native(a, *others) for result in self.results)
        return _native.call(
            f"jaxmg_{self.name}", layout, tile, backend, operands, results,
            n=a.shape[1], **attributes,
        )  # fmt: skip
