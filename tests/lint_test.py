"""`//tools:lint` finds a fault of every kind, and `//tools:format` fixes the fixable ones."""

import os
import pathlib
import subprocess
import sys

import prose
import pytest

LINT = pathlib.Path(__file__).parents[1] / "tools/lint.py"

WORKFLOW = """on: push
jobs:
  a:
    runs-on: ubuntu-latest
    steps:
      - run: echo ${{ matrix.%s }}
    strategy:
      matrix:
        python: ["3.11"]
"""

RECIPE = """package:
  name: a
  version: 1.0.0
requirements:
  run:
    - numpy %s1
"""

PUBLIC = '__all__ = ["add"]\n\n\ndef add(a, b):\n    """%s"""\n    return a + b\n'

# File: (with a fault, without one, whether `//tools:format` fixes it).
FILES = {
    "format.py": ("x = [1,2]\n", "x = [1, 2]\n", True),
    "check.py": ("import os\n", "", True),
    "code.cc": ("int  f();\n", "int f();\n", True),
    "folder/BUILD": ('filegroup(name="a")\n', 'filegroup(name = "a")\n', True),
    "page.md": ("It waits for ever.\n", "It waits forever.\n", False),
    "words.py": ("# A %s word.\n" % ("sep" + "erate"), "# A separate word.\n", False),
    "jaxmg/__init__.py": (PUBLIC % "The sum of a and b.", PUBLIC % "Adds a and b.", False),
    "jaxmg/tree.py": (PUBLIC % "Adds what is passed.", PUBLIC % "Adds a and b.", False),
    "folder/Dockerfile": ("FROM a\n", "FROM a:1\n", False),
    "folder/recipe.yaml": (RECIPE % ">>", RECIPE % ">=", False),
    ".github/workflows/a.yml": (WORKFLOW % "pyhton", WORKFLOW % "python", False),
}


@pytest.fixture
def lint(tmp_path):
    """Returns a function that runs it on files known to git, in a repository of their own."""
    linters = (words.split("=") for words in os.environ["LINTERS"].split())
    programs = [f"--{name}={os.path.abspath(path)}" for name, path in linters]

    path = os.pathsep.join(sys.path)

    def run(files, *words):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
        done = subprocess.run(
            [sys.executable, LINT, *programs, *words],
            env=os.environ | {"BUILD_WORKSPACE_DIRECTORY": str(tmp_path), "PYTHONPATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.parametrize("name", FILES)
def test_a_fault_is_found_and_nothing_else_is(lint, name):
    bad, good, _ = FILES[name]
    assert lint({name: good}) == (0, "")
    code, output = lint({name: bad})
    assert code != 0 and name in output


def test_what_can_be_mended_is(lint, tmp_path):
    lint({name: bad for name, (bad, _, _) in FILES.items()}, "--fix")
    for name, (bad, good, mended) in FILES.items():
        assert (tmp_path / name).read_text() == (good if mended else bad), name


# Sentences of docstrings, and the same in plain words.
SENTENCES = [
    ("Takes so many products, at least 1.", "Takes a number of products, at least 1."),
    ("Reads a, of which one triangle counts.", "Reads a; only one triangle counts."),
    ("Raises all that `gesv` raises.", "Raises the errors of `gesv`."),
    ("Takes pad: as for `potrs`.", "Takes pad: As in `potrs`."),
    ("Checks A; that is looked at with one pass.", "Checks A with one pass."),
    ("Takes A, Hermitian but\n    for rounding.", "Takes A, Hermitian up to rounding."),
    ("Takes some 1e3 seconds.", "Takes about 1e3 seconds."),
    ("Returns the sum, where there is one.", "Returns the sum, if it exists."),
    ("Ignores debug, which does nothing.", "Ignores debug."),
    ("Multiplication takes longer.", "Multiplies."),
]


@pytest.mark.parametrize(("bad", "good"), SENTENCES)
def test_public_docstrings_are_plain(bad, good, tmp_path):
    module = tmp_path / "jaxmg/linalg.py"
    module.parent.mkdir()
    module.write_text(PUBLIC % good)
    assert not prose.docstrings(tmp_path)
    module.write_text(PUBLIC % bad)
    assert prose.docstrings(tmp_path)
    module.write_text((PUBLIC % bad).replace('["add"]', "[]"))
    assert not prose.docstrings(tmp_path)


FACTOR = """class Factor:
    '''Holds A.'''

    def solve(self):
        '''Solves with A.

        Takes b beside A.
        '''

    def _hidden(self):
        '''What others see.'''
"""


def test_a_public_name_is_followed_to_its_file(tmp_path, capsys):
    (tmp_path / "jaxmg").mkdir()
    package = 'from jaxmg._factor import Factor\n\n__all__ = ["Factor"]\n'
    (tmp_path / "jaxmg/__init__.py").write_text(package)
    (tmp_path / "jaxmg/_factor.py").write_text(FACTOR)
    assert prose.docstrings(tmp_path)
    place = "jaxmg/_factor.py:7"
    assert capsys.readouterr().out == f"{place}: 'beside': write after, or in addition to\n"
