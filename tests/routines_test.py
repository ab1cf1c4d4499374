"""Every native routine and every operation on stacks has all parts that "Adding a routine" and
"Adding an operation on stacks" in CONTRIBUTING.md list.

The tests compare texts and the package's names; no module of the package is named here.
"""

import pathlib
import re
import sys
import typing

import pytest

import jaxmg
from jaxmg import _types
from jaxmg._call import record
from jaxmg._routines import counts, table
from jaxmg._stacks import choice, native

ROOT = pathlib.Path(__file__).parents[1]

sys.path.append(str(ROOT / "tests/python"))

from routines import ROUTINES  # noqa: E402

# Handler -> the first routine of the table that has it.
HANDLERS = {}
for routine in ROUTINES.values():
    for handler in routine.handlers:
        HANDLERS.setdefault(handler, routine)
# Handlers for stacks of matrices on one device, which aren't routines of the table.
STACKED = tuple(f"jaxmg_{name}" for name in native.HANDLERS)
# Handlers of matrices in host memory, which the package asks for when it needs them.
HOST_MEMORY = tuple(
    f"jaxmg_host_{name}" for name in ("potrf", "potri", "solve", "getrf", "getrs", "rows")
)
PUBLIC = (*jaxmg.__all__, "linalg")
CALLED = sorted({routine.function for routine in HANDLERS.values()})
# The engine's headers that declare the functions that handlers call.
HEADERS = [
    str(path.relative_to(ROOT))
    for path in sorted((ROOT / "xla_ffi/engine").rglob("*.h"))
    if re.search(r"^Status \w+Routine\(", path.read_text(), re.M)
]


def text(path):
    return (ROOT / path).read_text()


def reference():
    return "".join(path.read_text() for path in (ROOT / "docs/reference").glob("*.md"))


def test_the_reference_is_complete():
    documented = re.findall(r"^::: jaxmg\.([A-Za-z]\w+)$", reference(), re.M)
    assert sorted(documented) == sorted(jaxmg.__all__)
    assert all(getattr(jaxmg, name).__doc__ for name in documented)


def test_the_reference_has_the_functions_of_linalg():
    documented = re.findall(r"^::: jaxmg\.linalg\.(\w+)$", reference(), re.M)
    functions = [name for name in jaxmg.linalg.__all__ if not name.endswith(("Result", "Info"))]
    assert sorted(documented) == sorted(functions)
    page = text("docs/howto/jax_linalg.md")
    assert all(getattr(jaxmg.linalg, name).__doc__ and f"`{name}(" in page for name in functions)


def last(name):
    """Returns the name without its class, as pages name methods."""
    return name.split(".")[-1]


def test_these_are_the_handlers_that_are_registered():
    rows = re.findall(r"^ *ROUTINE\((\w+), \w+\)", text("xla_ffi/handlers/handlers.h"), re.M)
    registered = [f"jaxmg_{name}" for name in rows]
    assert sorted(registered) == sorted([*table.HANDLERS, *HOST_MEMORY])
    assert sorted(table.HANDLERS) == sorted([*HANDLERS, *STACKED])


def test_the_functions_of_all_records_are_public():
    """``__all__`` is a literal, since type checkers read no other."""
    assert set(table.FUNCTIONS) <= set(jaxmg.__all__)
    forms = {name for name in jaxmg.__all__ if name.endswith(("_shardmap_ctx", "_jit_ctx"))}
    assert forms <= set(table.FUNCTIONS)


@pytest.mark.parametrize("name", table.PLANS)
def test_what_has_a_plan_has_a_count_of_operations(name):
    assert counts.operations(name, False, 2, nrhs=1) < counts.operations(name, True, 4, nrhs=2)


@pytest.mark.parametrize("name", table.PLANS)
def test_what_has_a_plan_is_among_the_names_that_plan_takes(name):
    assert name in typing.get_args(_types.RoutineName)
    assert f'"{name}"' in jaxmg.plan.__doc__
    assert f'`"{name}"`' in text("docs/api.md")


@pytest.mark.parametrize("name", CALLED)
def test_users_find_it(name):
    top, *method = name.split(".")
    assert top in PUBLIC
    routine = getattr(jaxmg, top)
    for part in method:
        routine = getattr(routine, part)
    assert callable(routine) and routine.__doc__
    assert re.search(rf"\b{last(name)}\(", text("docs/api.md"))


@pytest.mark.parametrize("name", CALLED)
def test_its_memory_is_in_a_table(name):
    assert re.search(rf"^\|[^|\n]*`[^`|\n]*\b{last(name)}\b", text("docs/memory.md"), re.M)


@pytest.mark.parametrize(
    "name", [name for name in table.FUNCTIONS if not name.endswith(("_shardmap_ctx", "_jit_ctx"))]
)
def test_the_readme_has_it_in_its_table(name):
    assert re.search(rf"^\|[^|\n]*`{name}`", text("README.md"), re.M)


@pytest.mark.parametrize("name", CALLED)
def test_the_changelog_names_it(name):
    assert re.search(rf"`(\w+\.)?{last(name)}`", text("CHANGELOG.md"))


@pytest.mark.parametrize("name", CALLED)
def test_type_checkers_see_a_call_of_it(name):
    assert re.search(rf"\.{last(name)}\(", text("tests/typing/user.py"))


@pytest.mark.parametrize("header", HEADERS)
def test_a_rank_program_is_listed_and_has_a_test_on_host_devices(header):
    assert f'#include "{header}"' in text("xla_ffi/engine/routines.h")
    programs = re.findall(r"^Status (\w+Routine)\(", text(header), re.M)
    tests = "".join(path.read_text() for path in (ROOT / "tests/cc").rglob("*.[ch]*"))
    assert any(re.search(rf"\b{program}[<(]", tests) for program in programs)


@pytest.mark.parametrize("handler", HANDLERS)
def test_the_contract_names_its_handler(handler):
    assert f"`{handler}`" in text("docs/architecture.md")


@pytest.mark.parametrize("name", native.HANDLERS)
def test_an_operation_on_stacks_is_called(name):
    package = "".join(path.read_text() for path in (ROOT / "jaxmg").rglob("*.py"))
    assert len(re.findall(rf'\b(jaxmg_)?{name}"', package)) > 1  # also beside the list


OPERATIONS = [pytest.param(one, id=one.name) for one in choice.OPERATIONS]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_way_of_an_operation_has_a_row_and_each_row_a_way(operation):
    ways = {row.way for row in operation.rows}
    assert ways == operation.ways.keys() - {choice.JAX}
    assert choice.JAX in operation.ways or ways == {choice.AT_ONCE}
    for row in operation.rows:
        assert row.platform in ("cpu", "gpu") and row.orders[0] <= row.orders[1]
        assert row.least <= row.most and row.way != choice.JAX


@pytest.mark.parametrize("name", sorted({one.name for one in choice.OPERATIONS}))
def test_results_of_the_same_ways_have_the_same_rows(name):
    rows = {one.rows for one in choice.OPERATIONS if one.name == name}
    assert len(rows) == 1 or name == "syevd at once"  # with eigenvectors, and without


def test_eigen_means_hermitian():
    """A solver for general matrices belongs in a family of its own."""
    records = [
        value
        for module, variables in sys.modules.items()
        if module.startswith("jaxmg._eigen.")
        for value in vars(variables).values()
        if isinstance(value, record.Routine)
    ]
    assert records and all(one.triangle == "upper" for one in records)


@pytest.mark.parametrize("name", CALLED)
def test_a_test_calls_it(name):
    tests = (path.read_text() for path in (ROOT / "tests/python").rglob("*_test.py"))
    assert any(re.search(rf"\.{last(name)}\(", test) for test in tests)


@pytest.mark.parametrize("name", CALLED)
def test_allocations_fail_in_it(name):
    cases = re.search(r"^CASES = \{.*?^\}", text("tests/faults/routine_calls.py"), re.M | re.S)
    assert f'("{last(name)}",' in cases[0]


TRANSFORMED = [name for name, routine in ROUTINES.items() if routine.transforms]


def test_the_fuzz_compares_it_with_jax():
    rows = re.search(r"^REFERENCES = \{.*?^\}", text("tests/fuzz/transformations.py"), re.M | re.S)
    assert sorted(re.findall(r'^    "(\w+)":', rows[0], re.M)) == sorted(TRANSFORMED)


@pytest.mark.parametrize("name", TRANSFORMED)
def test_the_page_says_that_it_has_a_derivative(name):
    section = re.search(r"^## Derivatives$.*?^## ", text("docs/api.md"), re.M | re.S)
    function = last(ROUTINES[name].function)
    assert re.search(rf"`([A-Z]\w+\.)?{function}`", section[0])


@pytest.mark.parametrize("handler", HANDLERS)
def test_faults_are_put_into_it(handler):
    word = HANDLERS[handler].handlers[handler]
    faults = (path.read_text() for path in (ROOT / "tests/mutants").rglob("*.toml"))
    assert any(re.search(rf"^(\[\[|what = |tests = ).*{word}", text, re.M) for text in faults)


@pytest.mark.parametrize("name", ROUTINES)
def test_its_name_is_in_the_api(name):
    assert ROUTINES[name].function.split(".")[0] in PUBLIC


def test_what_is_measured_has_operations():
    for name, routine in ROUTINES.items():
        if routine.benchmark:
            assert counts.operations(name, False, 10) > 0
