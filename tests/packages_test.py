"""The packages of jaxmg import each other in one direction, and none has too many files."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
# From below. A package imports itself and those before it. The public modules are between
# _trees and _command, and __main__ is on top.
ORDER = (
    "_plugin", "_processes", "_layouts", "_call", "_stacks", "_matrices", "_transform", "_linalg",
    "_kept", "_host", "_cholesky", "_ldl", "_lu", "_qr", "_eigen", "_svd", "_square", "_krylov",
    "_lanczos", "_routines", "_trees", "_command",
)  # fmt: skip
# Modules of no package that all of them import.
BELOW = ("_internals", "_compat", "_names", "_types")
MOST_FILES = 16


def modules():
    """Returns a dict from names of modules to paths."""
    paths = sorted((ROOT / "jaxmg").rglob("*.py"))
    names = {path: path.relative_to(ROOT).with_suffix("").parts for path in paths}
    return {".".join(n for n in names[path] if n != "__init__"): path for path in paths}


MODULES = modules()


def imports(name):
    """Returns the modules of the package that a module imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} imports by a relative name"
            each = {f"{node.module}.{one.name}" for one in node.names}
            found |= {one if one in MODULES else node.module for one in each}
    return {one for one in found if one in MODULES} - {name}


IMPORTS = {name: imports(name) for name in MODULES}


def rank(name):
    """Returns a module's place in the order."""
    part = f"{name}.".split(".")[1]
    if part in ORDER[:-1]:
        return 1 + ORDER.index(part)
    return {**dict.fromkeys(BELOW, 0), ORDER[-1]: 101, "__main__": 102}.get(part, 100)


def test_a_folder_has_few_files():
    counts = {}
    for path in MODULES.values():
        counts[path.parent.name] = counts.get(path.parent.name, 0) + 1
    assert {name: count for name, count in counts.items() if count > MOST_FILES} == {}


def test_each_package_has_a_place():
    folders = {path.name for path in (ROOT / "jaxmg").iterdir() if (path / "__init__.py").exists()}
    assert folders == {*ORDER}


def test_no_package_imports_one_above_it():
    upwards = [
        f"{name} imports {other}"
        for name, others in IMPORTS.items()
        for other in others
        if rank(other) > rank(name)
    ]
    assert upwards == []


def test_no_modules_import_each_other():
    """Removes modules that import no other until none is left."""
    left = {name: set(others) for name, others in IMPORTS.items()}
    while ends := [name for name, others in left.items() if not others]:
        for name in ends:
            del left[name]
        for others in left.values():
            others.difference_update(ends)
    assert left == {}


def test_the_page_has_the_packages_in_this_order():
    page = (ROOT / "docs/architecture.md").read_text()
    assert re.findall(r"^\| `(_\w+)/` \|", page, re.M) == [*ORDER]
