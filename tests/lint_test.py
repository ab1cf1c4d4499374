"""`//tools:lint` finds a fault of every kind, and `//tools:format` mends what can be mended."""

import os
import pathlib
import subprocess
import sys

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

# File: (with a fault, without one, whether that can be mended).
FILES = {
    "format.py": ("x = [1,2]\n", "x = [1, 2]\n", True),
    "check.py": ("import os\n", "", True),
    "code.cc": ("int  f();\n", "int f();\n", True),
    "folder/BUILD": ('filegroup(name="a")\n', 'filegroup(name = "a")\n', True),
    "page.md": ("It waits for ever.\n", "It waits forever.\n", False),
    "words.py": ("# A %s word.\n" % ("sep" + "erate"), "# A separate word.\n", False),
    "folder/Dockerfile": ("FROM a\n", "FROM a:1\n", False),
    "folder/recipe.yaml": (RECIPE % ">>", RECIPE % ">=", False),
    ".github/workflows/a.yml": (WORKFLOW % "pyhton", WORKFLOW % "python", False),
}


@pytest.fixture
def lint(tmp_path):
    """Runs it on files that git knows, in a repository of their own."""
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
