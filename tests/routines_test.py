"""Every native routine has all that CONTRIBUTING's "Adding a routine" lists.

What is compared is text, and the package's names: no module of the package is named here.
"""

import pathlib
import re

import pytest

import jaxmg
from jaxmg import _plugin

ROOT = pathlib.Path(__file__).parents[1]

# Handler -> (what users call, with its class where it is a method; a word of its mutants).
ROUTINES = {
    "jaxmg_potrs": ("potrs", "potrs"),
    "jaxmg_potri": ("potri", "potri"),
    "jaxmg_syevd": ("syevd", "syevd"),
    "jaxmg_syevx": ("eigh", "eigh"),
    "jaxmg_sygvd": ("sygvd", "sygvd"),
    "jaxmg_sygvx": ("eigh", "eigh leaves out its second matrix"),
    "jaxmg_cyclic_1d": ("cyclic_1d", "cyclic"),
    "jaxmg_potrf": ("cho_factor", "cho_factor"),
    "jaxmg_factor_apply": ("cho_solve", "cho_solve"),
    "jaxmg_factor_solve_rows": ("CholeskyFactor.solve_triangular", "rows of a matrix"),
    "jaxmg_factor_invert": ("CholeskyFactor.inv", "inverse of a factor"),
    "jaxmg_factor_diagonal": ("CholeskyFactor.diagonal", "diagonal of a factor"),
    "jaxmg_factor_tiles": ("CholeskyFactor.from_upper", "from_upper"),
    "jaxmg_factor_rows": ("CholeskyFactor.upper", "upper factor"),
    "jaxmg_hemm": ("potrs", "hemm"),
    "jaxmg_all_gather": ("potrs", "refine"),
}
CALLED = [name for name, _ in ROUTINES.values()]


def text(path):
    return (ROOT / path).read_text()


def test_the_reference_is_complete():
    documented = re.findall(r"^::: jaxmg\.(\w+)$", text("docs/reference.md"), re.M)
    assert sorted(documented) == sorted(jaxmg.__all__)
    assert all(getattr(jaxmg, name).__doc__ for name in documented)


def test_the_reference_has_the_functions_of_linalg():
    documented = re.findall(r"^::: jaxmg\.linalg\.(\w+)$", text("docs/reference.md"), re.M)
    functions = [name for name in jaxmg.linalg.__all__ if not name.endswith("Result")]
    assert sorted(documented) == sorted(functions)
    page = text("docs/howto/jax_linalg.md")
    assert all(getattr(jaxmg.linalg, name).__doc__ and f"`{name}(" in page for name in functions)


def last(name):
    """A method is spoken of by its own name, without its class."""
    return name.split(".")[-1]


def test_these_are_the_handlers_that_are_registered():
    table = text("xla_ffi/handlers/handlers.h")
    registered = [f"jaxmg_{name}" for name in re.findall(r"^ *ROUTINE\((\w+), \w+\)", table, re.M)]
    assert sorted(registered) == sorted(_plugin.HANDLERS) == sorted(ROUTINES)


@pytest.mark.parametrize("name", CALLED)
def test_users_find_it(name):
    top, *method = name.split(".")
    assert top in jaxmg.__all__
    routine = getattr(jaxmg, top)
    for part in method:
        routine = getattr(routine, part)
    assert callable(routine) and routine.__doc__
    assert re.search(rf"\b{last(name)}\(", text("docs/api.md"))


@pytest.mark.parametrize("name", CALLED)
def test_its_memory_is_in_a_table(name):
    assert re.search(rf"^\|[^|\n]*`[^`|\n]*\b{last(name)}\b", text("docs/memory.md"), re.M)


@pytest.mark.parametrize("handler", ROUTINES)
def test_the_contract_names_its_handler(handler):
    assert f"`{handler}`" in text("docs/architecture.md")


@pytest.mark.parametrize("name", CALLED)
def test_a_test_calls_it(name):
    tests = (path.read_text() for path in (ROOT / "tests/python").glob("*_test.py"))
    assert any(re.search(rf"\.{last(name)}\(", test) for test in tests)


@pytest.mark.parametrize("name", CALLED)
def test_allocations_fail_in_it(name):
    cases = re.search(r"^CASES = \{.*?^\}", text("tests/faults/routine_calls.py"), re.M | re.S)
    assert f'("{last(name)}",' in cases[0]


@pytest.mark.parametrize("handler", ROUTINES)
def test_faults_are_put_into_it(handler):
    _, word = ROUTINES[handler]
    assert re.search(rf"^(what|file|tests) = .*{word}", text("tests/mutants/mutants.toml"), re.M)
