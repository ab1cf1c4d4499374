"""A routine, declared once: a `Routine` says what it takes and gives, and has the three forms that
callers know it in."""

import collections.abc
import dataclasses
import functools
import operator
import typing

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import (
    alignment,
    backends,
    blocks,
    checks,
    ffi,
    layouts,
    programs,
    results,
    symmetry,
)
from jaxmg._transform import batching, derivatives

# The first result, for callers inside jit who want A's memory back, whatever is in it.
WORK = "a_work"
# The second one of a routine that takes two matrices, for B's.
SECOND_WORK = "b_work"


@dataclasses.dataclass(frozen=True)
class Option:
    """An argument that changes what the native code computes.

    Attributes:
        name: the caller's argument.
        attribute: the handler's attribute, an integer.
        check: function of (routine, value, dtype of A, resolved backend, platform) that raises
            where the value can't be right, and returns the attribute's.
    """

    name: str
    attribute: str
    check: collections.abc.Callable


class Chosen(typing.NamedTuple):
    """What a caller of global arrays chooses beside these.

    Attributes:
        names: of the results that his form of the routine gives.
        spec: how the matrix is sharded, None to be inferred.
        options: those of the routine and those that ask for results, as (name, value) pairs.
        inside: the planned call inside a shard_map of the caller's; None outside of one.
        caller: the function that errors name.
    """

    names: tuple
    T_A: typing.Any
    mesh: typing.Any
    spec: typing.Any
    pad: bool
    backend: str
    donate: bool
    options: tuple
    inside: programs.Call | None = None
    caller: str = ""


# Backends that stand for nobody's solver in particular.
_ANY = ("auto", "native")

PRECISION = Option("precision", "products", checks.precision)


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
        operands: the arrays, the matrix first; a second one is the right-hand sides, or a matrix.
        matrices: how many are matrices that lie on the ranks by rows, the first ones; the native
            code overwrites them, and as many results, the first ones, are in their memory.
        options: arguments that become attributes.
        older: (argument, flag) for those arguments of `local` that stand where JAXMg 0.0 had a
            flag: a bool is taken for that.
        native: the native name.
        extends: whether the results of [A 0; 0 I] are those of A, with more rows.
        keeps: function of (call, results of the plain form) that makes what a caller keeps in the
            engine's layout; there the tile width is resolved, and workspace of it is a result.
        rule: function of (routine, `Chosen`) that gives the derivative of a call as
            `derivatives.differentiable` wants it; without one, JAX may neither differentiate nor
            batch.
        together: function of the options that gives the `AtOnce` for many matrices; or None, where
            it has nothing better than one after the other.
    """

    name: str
    results: tuple
    plain_gives: tuple
    local_gives: tuple = ()
    traced_gives: tuple = ()
    operands: tuple = ("a",)
    matrices: int = 1
    options: tuple = ()
    older: tuple = ()
    native: str = ""
    extends: bool = False
    keeps: collections.abc.Callable | None = None
    rule: collections.abc.Callable | None = None
    together: collections.abc.Callable | None = None

    @property
    def local_name(self):
        return f"{self.name}_shardmap_ctx"

    @property
    def native_name(self):
        return self.native or self.name

    def plain(
        self, arrays, T_A, mesh, matrix_specs, in_specs, pad, backend, donate, *, caller="",
        check=False, **options,
    ):  # fmt: skip
        """The routine on global arrays, eagerly or under jit, on behalf of a function that errors
        name."""
        caller = caller or self.name
        if self.rule and batching.is_batch(arrays[0]):
            given = (T_A, mesh, matrix_specs, in_specs, pad, backend, False)

            def each(*arrays):
                return self.plain(arrays, *given, caller=caller, check=check, **options)

            return batching.over_leading(caller, self.operands, each, arrays, pad)
        if donate and len(arrays) > 1:
            checks.separate(caller, *arrays)
        spec = layouts.given_spec(caller, matrix_specs, in_specs)
        chosen = Chosen(
            self.plain_gives, T_A, mesh, spec, pad, backend, donate, tuple(options.items()),
            caller=caller,
        )  # fmt: skip
        if check:
            self._check(arrays, chosen)
            arrays = self._hermitian(arrays, chosen)
        return self.run(arrays, chosen)

    def _hermitian(self, arrays, chosen):
        """The arrays, of which the matrices were looked at: Hermitian, or NaN."""
        count = self.matrices
        matrices = (
            symmetry.checked(chosen.caller, name, matrix, arrays, chosen.mesh, chosen.spec)
            for name, matrix in zip(self.operands, arrays[:count], strict=False)
        )
        return (*matrices, *arrays[count:])

    def traced(self, arrays, T_A, mesh, matrix_specs, in_specs, pad, backend, **options):
        """The same for use inside jit, which decides what is donated."""
        spec = layouts.given_spec(self.name, matrix_specs, in_specs)
        chosen = Chosen(
            self.traced_gives, T_A, mesh, spec, pad, backend, False, tuple(options.items()),
            caller=self.name,
        )  # fmt: skip
        return self.run(arrays, chosen)

    def local(self, arrays, T_A, mesh, matrix_specs, in_specs, pad, backend, **options):
        """The routine on this rank's block, inside a shard_map; outside of one, `traced`."""
        if not layouts.manual_axes():
            return self.traced(arrays, T_A, mesh, matrix_specs, in_specs, pad, backend, **options)
        name = self.local_name
        options = {"mesh": mesh, "matrix_specs": matrix_specs, "pad": pad, **options}
        for argument, flag in self.older:
            if isinstance(options[argument], bool):
                options[flag], options[argument] = options[argument], None
        spec = layouts.given_spec(name, options["matrix_specs"], in_specs)
        call = self._plan_local(name, arrays, T_A, spec, backend, options)
        chosen = Chosen(
            self.local_gives, T_A, mesh, spec, options["pad"], call.backend, False,
            tuple(options.items()), call, name,
        )  # fmt: skip
        if arrays[0].size == 0:
            give, _ = self.given(self.local_gives, options)
            return give([result.empty(*arrays, local=True) for result in self.results])
        if self.rule is None:
            return self._on_rank(arrays, chosen)
        return derivatives.differentiable(
            lambda *arrays: self._on_rank(arrays, chosen), self.rule(self, chosen), *arrays
        )

    @_compat.default_promotion()
    def _on_rank(self, arrays, chosen):
        """What a rank is given, inside a shard_map, for its blocks."""
        give, wanted = self.given(chosen.names, dict(chosen.options))
        layout, count = chosen.inside.layout, self.matrices
        rows = [blocks.to_rows(matrix, layout) for matrix in arrays[:count]]
        values = self.on_rows(chosen.inside, *rows, *arrays[count:])
        return give([
            result.on_rank(value, layout, *arrays) if want else None
            for result, value, want in zip(self.results, values, wanted, strict=True)
        ])  # fmt: skip

    def found_by_rows(self, arrays, chosen):
        """The results that a rank's rows of the matrices give, inside a shard_map: matrices by rows
        too."""
        call, options = chosen.inside, dict(chosen.options)
        attributes = self.attributes(
            chosen.caller, options, arrays[0].dtype, call.backend, call.layout, False
        )
        give, _ = self.given(chosen.names, options)
        call = dataclasses.replace(call, attributes=tuple(attributes.items()))
        return give(self.on_rows(call, *arrays))

    @_compat.default_promotion()
    def on_rows(self, call, *arrays):
        """All that the native code gives for a rank's rows of the matrices, inside a shard_map."""
        matrices, others = arrays[: self.matrices], arrays[self.matrices :]
        run = _OnRows(self, call)
        return batching.batchable(run, *matrices, *map(results.columns, others))

    def _plan_local(self, name, arrays, T_A, spec, backend, options):
        """Checks a call inside a shard_map; what it depends on."""
        a, *others = arrays
        transformations = checks.ALL if self.rule else ()
        checks.block(name, a, transformations)
        tile = checks.tile(name, T_A)
        layout = layouts.infer_local(name, a, options["mesh"], spec, options["pad"])
        for b in others[: self.matrices - 1]:
            checks.second_matrix(name, a, b, transformations)
        rows = blocks.rows_of(a, layout)
        backend = backends.resolve(self.native_name, layout, backend, rows, name)
        sides = arrays[self.matrices :]
        for b in sides:
            checks.right_hand_side(name, rows, b, transformations)
        check_b = any([checks.same_on_ranks(name, b, layout) for b in sides])
        attributes = self.attributes(name, options, a.dtype, backend, layout, check_b)
        attributes = self._with_room(attributes, layout, a, tile, donate=False)
        return self.described(layout, a, tile, backend, attributes)

    def run(self, arrays, chosen):
        """The results of global arrays."""
        if self.rule is None or not layouts.traced(arrays):
            return self.found(arrays, chosen)
        self._check(arrays, chosen)
        return derivatives.differentiable(
            lambda *arrays: self.found(arrays, chosen), self.rule(self, chosen), *arrays
        )

    def found(self, arrays, chosen):
        """The same without a derivative."""
        run = _Run(self, chosen)
        return batching.batchable(run, *arrays) if self.rule else run(*arrays)

    @functools.cached_property
    def planned(self):
        """`found` of arrays that no batch hides."""
        return programs.planned(self._plan)

    def _plan(self, arrays, *chosen):
        """Checks a call on global arrays; the function of the arrays that returns its results."""
        chosen = Chosen(*chosen)
        tile = self._check(arrays, chosen)
        layout = self.layout(arrays, chosen)
        backend, donate, options = chosen.backend, chosen.donate, dict(chosen.options)
        give, wanted = self.given(chosen.names, options)
        a = arrays[0]
        if a.size == 0:
            give = self.kept(give, self.described(layout, a, tile=1))
            return lambda *arrays: give([x.empty(*arrays, local=False) for x in self.results])
        backend = backends.resolve(self.native_name, layout, backend, a, chosen.caller)
        attributes = self.attributes(
            chosen.caller, options, a.dtype, backend, layout, check_b=False
        )
        attributes = self._with_room(attributes, layout, a, tile, donate)
        specs = tuple(result.spec(layout, *arrays) for result in self.results)
        call = self.described(layout, a, tile, backend, attributes, specs)
        if self.extends:
            order = alignment.larger_order(self, layout, backend, a, tile, donate)
            call = dataclasses.replace(call, order=order)
        run = programs.runner(call, arrays, donate, wanted, self.matrices)
        give = self.kept(give, call)
        return lambda *arrays: give(run(*arrays))

    def _check(self, arrays, chosen):
        """Raises what shapes and dtypes show to be wrong; the tile width."""
        name = chosen.caller
        layouts.refuse_manual_axes(name, self.local_gives and self.local_name)
        transformations = checks.ALL if self.rule else ()
        checks.matrix(name, self.operands[0], arrays[0], chosen.pad, transformations)
        if len(arrays) > 1:
            fits = checks.second_matrix if self.matrices > 1 else checks.right_hand_side
            fits(name, arrays[0], arrays[1], transformations)
        return checks.tile(name, chosen.T_A)

    def layout(self, arrays, chosen):
        """Where the matrices of a call are."""
        layout = layouts.infer(chosen.caller, arrays, chosen.mesh, chosen.spec)
        checks.padding(chosen.caller, arrays[0].shape, layout, chosen.pad)
        return layout

    def asked(self, names, options):
        """Those names of results that are asked for."""
        asked = {result.name: options.get(result.asked, True) for result in self.results}
        return [name for name in names if asked.get(name, True)]

    def picked(self, chosen, makers):
        """What `run` gives, made by those of ``makers``, by name, that are asked for."""
        found = [makers[name]() for name in self.asked(chosen.names, dict(chosen.options))]
        return found[0] if len(found) == 1 else tuple(found)

    def of_each(self, arrays, marks, chosen):
        """What is chosen for each matrix of a batch, of which the arrays that are marked have it in
        front."""
        mesh, spec = chosen.mesh, chosen.spec
        if mesh is None or mesh.empty:
            mesh = layouts.mesh_of(chosen.caller, arrays)
        there = layouts.known_spec(arrays[0], mesh) if spec is None else None
        if there is not None:
            spec = P(*there[1:] if marks[0] else there)
        return chosen._replace(mesh=mesh, spec=spec, donate=False)

    def attributes(self, name, options, dtype, backend, layout, check_b):
        """Those of the native routine, checked."""
        call = (dtype, backend, layout.platform)
        found = {
            option.attribute: option.check(name, options[option.name], *call)
            for option in self.options
        }
        return found | {"check_b": check_b} if len(self.operands) > self.matrices else found

    def _with_room(self, attributes, layout, a, tile, donate):
        """The same, with plain products where nothing was asked for and a device hasn't the memory
        for the parts of others."""
        if attributes.get("products") != checks.DEFAULT:
            return attributes
        if not backends.lacks_room_for_parts(self.native_name, layout, a, tile, donate):
            return attributes
        return attributes | {"products": checks.PRODUCTS["highest"]}

    def given(self, names, options):
        """(function that picks what a caller gets out of all results, which of them that needs)."""
        place = {result.name: i for i, result in enumerate(self.results)}
        kept = [place.get(name, 0) for name in self.asked(names, options)]
        return operator.itemgetter(*kept), tuple(i in kept for i in range(len(self.results)))

    def kept(self, give, call):
        """``give``, and what a caller keeps of it."""
        keeps = self.keeps
        return give if keeps is None else lambda results: keeps(call, *give(results))

    def described(self, layout, a, tile, backend="", attributes=(), specs=()):
        """The `Call` for a matrix ``a`` of the caller's."""
        call = programs.Call(
            self.name, self._program, layout, a.shape[0], tile, backend, specs,
            tuple(dict(attributes).items()),
        )  # fmt: skip
        if self.keeps is None or a.size == 0:
            return call
        sizes = backends.plan("potrf", layout, backend, a.dtype, a.shape[1], tile)
        return dataclasses.replace(call, tile=sizes["tile"], overflow=sizes["overflow_rows"])

    def _program(self, call, *arrays):
        """All results of global arrays; traced."""
        layout, count = call.layout, self.matrices
        if call.order is not None:
            return alignment.run_larger(self._program, self.results, count, call, arrays)
        others = tuple(blocks.replicate(b, layout) for b in arrays[count:])

        def local(place, *arrays):
            rows = (blocks.to_rows(matrix, layout.by_rows) for matrix in arrays[:count])
            values = self.call(call, place, *rows, *arrays[count:])
            return tuple(
                result.part(value, layout, arrays[0])
                for result, value in zip(self.results, values, strict=True)
            )

        in_specs = (*(layout.row_spec for _ in arrays[:count]), *(P() for _ in others))
        out_specs = tuple(layout.row_spec if x.differs else P() for x in self.results)
        mapped = ffi.over_ranks(layout, local, in_specs, out_specs)
        matrices = (blocks.split_rows(matrix, layout) for matrix in arrays[:count])
        values = mapped(*matrices, *map(results.columns, others))
        return tuple(
            result.whole(value, call, *others)
            for result, value in zip(self.results, values, strict=True)
        )

    def call(self, call, place, a, *others):
        """The native routine on a rank's rows."""
        return ffi.call(
            f"jaxmg_{self.native_name}", call.layout, call.tile, call.backend, (place, a, *others),
            tuple(result.native(call, a, *others) for result in self.results),
            in_place=self.matrices, differing=sum(result.differs for result in self.results),
            n=a.shape[1], **dict(call.attributes),
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Run(batching.Batchable):
    """A call of a routine, a function of the arrays."""

    routine: Routine
    chosen: Chosen

    def __call__(self, *arrays):
        return self.routine.planned(arrays, *self.chosen)

    def batched(self, settled, size, marks, *arrays):
        ones = [batching.of_one(x, mark) for x, mark in zip(arrays, marks, strict=True)]
        if not any(marks[: self.routine.matrices]):
            return self._columns(size, ones, *arrays)
        n, dtype = arrays[0].shape[-1], arrays[0].dtype
        chosen = self.routine.of_each(arrays, marks, self.chosen)
        layout = self.routine.layout(arrays, chosen)
        place = self._placement(layout, ones, marks, arrays)
        free = not (settled and self.routine.keeps)
        if (
            free
            and n == arrays[0].shape[-2] > 0
            and batching.had_better_spread(layout, size, n, dtype)
        ):
            layout = batching.alone(layout)
            function = self._at_once(chosen, layout, n) or _OnDevice(self.routine, chosen, layout)
            return batching.spread(layout, function, size, marks, *arrays, place=place)
        return batching.in_turn(_Run(self.routine, chosen), marks, *arrays, place=place)

    def _placement(self, layout, ones, marks, arrays):
        """How the results of a batch lie, of which ``ones`` are one."""
        shape = ones[0].shape
        if self.routine.keeps:
            square = layout.result_spec(shape)
            return batching.placement(layout, arrays, marks, None, square)
        give, _ = self.routine.given(self.chosen.names, dict(self.chosen.options))
        specs = give([result.spec(layout, *ones) for result in self.routine.results])
        specs = specs if type(specs) is tuple else (specs,)
        return batching.placement(layout, arrays, marks, specs)

    def _at_once(self, chosen, layout, n):
        """What has a batch's matrices of order n at once on each device, where that is faster."""
        together = self.routine.together
        if together is None or chosen.backend not in _ANY:
            return None
        at_once = together(dict(chosen.options))
        if at_once is None or not at_once.is_faster(layout, n):
            return None
        return _AtOnce(_OnDevice(self.routine, chosen, layout), at_once.function)

    def _columns(self, size, ones, a, b):
        """Of one matrix and a batch of right-hand sides."""
        layout = self.routine.layout((a, b), self.chosen)
        place = self._placement(layout, ones, (False, True), (a, b))
        values = self(a, batching.to_columns(b))
        names = self.routine.asked(self.chosen.names, dict(self.chosen.options))
        found = [
            batching.from_columns(value, b) if name == "x" else batching.repeated(value, size)
            for name, value in zip(names, (values,) if len(names) == 1 else values, strict=True)
        ]
        columns = found[0] if len(names) == 1 else tuple(found)
        return columns if place is None else place.put(columns)


@dataclasses.dataclass(frozen=True)
class _AtOnce:
    """All matrices of a batch that a device has, by a function of `AtOnce`; the native code takes
    those again that it fails on, and says how they fail.

    Attributes:
        one: what the native code does.
    """

    one: "_OnDevice"
    function: collections.abc.Callable

    def of_all(self, place, *stacks):
        results, failed = self.function(*stacks)
        call = self.one.call(jax.ShapeDtypeStruct(stacks[0].shape[1:], stacks[0].dtype))
        if failed is not None:
            results = jax.lax.cond(
                jnp.any(failed),
                lambda: self._again(place, stacks, results, failed),
                lambda: results,
            )
        return self.one.give(call, results)

    def _again(self, place, stacks, results, failed):
        def each(one):
            arrays, results, failed = one
            return jax.lax.cond(failed, lambda: self.one.results(place, *arrays), lambda: results)

        return jax.lax.map(each, (stacks, results, failed))


@dataclasses.dataclass(frozen=True)
class _OnRows(batching.Batchable):
    """What the native code gives for a rank's rows and right-hand sides in columns, inside a
    shard_map of the caller's; of a batch all ranks take one matrix after the other."""

    routine: Routine
    of: programs.Call

    def __call__(self, *arrays):
        return self.routine.call(self.of, layouts.local_place(self.of.layout), *arrays)

    def batched(self, settled, size, marks, *arrays):
        if any(marks[: self.routine.matrices]):
            return batching.in_turn(self, tuple(marks), *arrays)
        a, b = arrays
        return tuple(
            batching.from_columns(value, b)
            if isinstance(result, results.Solution)
            else batching.repeated(value, size)
            for result, value in zip(
                self.routine.results, self(a, batching.to_columns(b)), strict=True
            )
        )


@dataclasses.dataclass(frozen=True)
class _OnDevice:
    """The same on a device that has all of the matrices, inside a shard_map.

    Attributes:
        layout: of devices that are alone.
    """

    routine: Routine
    chosen: Chosen
    layout: layouts.Layout

    def __call__(self, place, *arrays):
        return self.give(self.call(arrays[0]), self.results(place, *arrays))

    def call(self, a):
        """What is known of a call for a matrix such as ``a``."""
        routine, options = self.routine, dict(self.chosen.options)
        caller = self.chosen.caller
        backend = backends.resolve(routine.native_name, self.layout, self.chosen.backend, a, caller)
        return routine.described(
            self.layout, a, checks.tile(caller, self.chosen.T_A), backend,
            routine.attributes(caller, options, a.dtype, backend, self.layout, check_b=False),
        )  # fmt: skip

    def results(self, place, a, *others):
        """All that the routine gives."""
        routine, call = self.routine, self.call(a)
        matrices, b = others[: routine.matrices - 1], others[routine.matrices - 1 :]
        values = routine.call(call, place, a, *matrices, *map(results.columns, b))
        return tuple(
            result.whole(value, call, *b)
            for result, value in zip(routine.results, values, strict=True)
        )

    def give(self, call, results):
        """What the caller asks for of all results."""
        give, _ = self.routine.given(self.chosen.names, dict(self.chosen.options))
        return self.routine.kept(give, call)(results)
