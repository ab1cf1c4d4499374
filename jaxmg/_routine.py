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
        name: in messages; the plugin's, and after "jaxmg_" the FFI target, where ``native`` names
            no other.
        results: what the native code gives, the matrix first.
        plain_gives, local_gives, traced_gives: by name what the forms give, in order; a result that
            its argument doesn't ask for is left out, and a single one comes without a tuple. A
            routine without a form gives nothing in it.
        operands: the arrays, the matrix first; a second one is the right-hand sides.
        options: arguments that become attributes.
        older: (argument, flag) for those arguments of `local` that stand where JAXMg 0.0 had a
            flag: a bool is taken for that.
        transformations: "vmap" and "grad" where JAX may apply them; others are refused.
        native: the native name.
        keeps: function of (call, results of the plain form) that makes what a caller keeps in the
            engine's layout; there the tile width is resolved, and workspace of it is a result.
    """

    name: str
    results: tuple
    plain_gives: tuple
    local_gives: tuple = ()
    traced_gives: tuple = ()
    operands: tuple = ("a",)
    options: tuple = ()
    older: tuple = ()
    transformations: tuple = ()
    native: str = ""
    keeps: collections.abc.Callable | None = None

    @property
    def local_name(self):
        return f"{self.name}_shardmap_ctx"

    @property
    def native_name(self):
        return self.native or self.name

    def plain(self, arrays, T_A, mesh, matrix_specs, in_specs, pad, backend, donate, **options):
        """The routine on global arrays, eagerly or under jit."""
        if donate and len(arrays) > 1:
            _checks.separate(self.name, *arrays)
        spec = _mesh.given_spec(self.name, matrix_specs, in_specs)
        chosen = tuple(options.items())
        return self._run(arrays, self.plain_gives, T_A, mesh, spec, pad, backend, donate, chosen)

    def traced(self, arrays, T_A, mesh, matrix_specs, in_specs, pad, backend, **options):
        """The same for use inside jit, which decides what is donated."""
        spec = _mesh.given_spec(self.name, matrix_specs, in_specs)
        chosen = tuple(options.items())
        return self._run(arrays, self.traced_gives, T_A, mesh, spec, pad, backend, False, chosen)

    def local(self, arrays, T_A, mesh, matrix_specs, in_specs, pad, backend, **options):
        """The routine on this rank's block, inside a shard_map; outside of one, `traced`."""
        if not _mesh.manual_axes():
            return self.traced(arrays, T_A, mesh, matrix_specs, in_specs, pad, backend, **options)
        name = self.local_name
        options = {"mesh": mesh, "matrix_specs": matrix_specs, "pad": pad, **options}
        for argument, flag in self.older:
            if isinstance(options[argument], bool):
                options[flag], options[argument] = options[argument], None
        spec = _mesh.given_spec(name, options["matrix_specs"], in_specs)
        call, rows = self._plan_local(name, arrays, T_A, spec, backend, options)
        give, wanted = self._given(self.local_gives, options)
        if arrays[0].size == 0:
            return give([result.empty(*arrays, local=True) for result in self.results])
        place = _mesh.local_place(call.layout)
        values = self._call(call, place, rows, *map(_results.columns, arrays[1:]))
        return give([
            result.on_rank(value, call.layout, *arrays) if want else None
            for result, value, want in zip(self.results, values, wanted, strict=True)
        ])  # fmt: skip

    def _plan_local(self, name, arrays, T_A, spec, backend, options):
        """Checks a call inside a shard_map; what it depends on, and this rank's rows of A."""
        a, *others = arrays
        _checks.block(name, a, self.transformations)
        tile = _checks.tile(name, T_A)
        layout = _mesh.infer_local(name, a, options["mesh"], spec, options["pad"])
        rows = _blocks.to_rows(a, layout)
        backend = _backend.resolve(self.native_name, layout, backend, rows)
        for b in others:
            _checks.right_hand_side(name, rows, b, self.transformations)
        check_b = any([_checks.same_on_ranks(name, b, layout) for b in others])
        attributes = self._attributes(name, options, a.dtype, backend, check_b)
        return self._described(layout, a, tile, backend, attributes), rows

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
            give = self._kept(give, self._described(layout, a, tile=1))
            return lambda *arrays: give([x.empty(*arrays, local=False) for x in self.results])
        backend = _backend.resolve(self.native_name, layout, backend, a)
        attributes = self._attributes(self.name, options, a.dtype, backend, check_b=False)
        specs = tuple(result.spec(layout, *arrays) for result in self.results)
        call = self._described(layout, a, tile, backend, attributes, specs)
        run = _programs.runner(call, arrays, donate, wanted)
        give = self._kept(give, call)
        return lambda *arrays: give(run(*arrays))

    def _prepare(self, arrays, T_A, mesh, spec, pad):
        _mesh.refuse_manual_axes(self.name, self.local_gives and self.local_name)
        _checks.matrix(self.name, self.operands[0], arrays[0], pad, self.transformations)
        if len(arrays) > 1:
            _checks.right_hand_side(self.name, arrays[0], arrays[1], self.transformations)
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

    def _kept(self, give, call):
        keeps = self.keeps
        return give if keeps is None else lambda results: keeps(call, *give(results))

    def _described(self, layout, a, tile, backend="", attributes=(), specs=()):
        """The `Call` for a matrix ``a`` of the caller's."""
        call = _programs.Call(
            self.name, self._program, layout, a.shape[0], tile, backend, specs,
            tuple(dict(attributes).items()),
        )  # fmt: skip
        if self.keeps is None or a.size == 0:
            return call
        sizes = _backend.plan("potrf", layout, backend, a.dtype, a.shape[1], tile)
        return dataclasses.replace(call, tile=sizes["tile"], overflow=sizes["overflow_rows"])

    def _program(self, call, a, *others):
        """All results of global arrays; traced."""
        layout = call.layout
        others = tuple(_blocks.replicate(b, layout) for b in others)

        def local(place, a, *others):
            values = self._call(call, place, _blocks.to_rows(a, layout.by_rows), *others)
            return tuple(
                result.part(value, layout, a)
                for result, value in zip(self.results, values, strict=True)
            )

        in_specs = (layout.row_spec, *(P() for _ in others))
        out_specs = tuple(layout.row_spec if x.differs else P() for x in self.results)
        mapped = _native.over_ranks(layout, local, in_specs, out_specs)
        values = mapped(_blocks.split_rows(a, layout), *map(_results.columns, others))
        return tuple(
            result.whole(value, call, *others)
            for result, value in zip(self.results, values, strict=True)
        )

    def _call(self, call, place, a, *others):
        """The native routine on a rank's rows."""
        return _native.call(
            f"jaxmg_{self.native_name}", call.layout, call.tile, call.backend, (place, a, *others),
            tuple(result.native(call, a, *others) for result in self.results),
            differing=sum(result.differs for result in self.results),
            n=a.shape[1], **dict(call.attributes),
        )  # fmt: skip
