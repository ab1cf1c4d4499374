"""names.py finds the missing names that pages mention, and nothing else."""

import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parent))

import names  # noqa: E402

FILES = {
    "docs/api.md": "",
    "jaxmg/_call/checks.py": "PRODUCTS = {}",
    "jaxmg/__init__.py": "",
    "xla_ffi/engine/core/frame.h": "void RunOnAllRanks();",
}


@pytest.mark.parametrize("text, absent", [
    ("`frame.h`, `engine/frame.h` and `../engine/core/frame.h`", []),
    ("`flow.h` and `engine/checks.py`", ["flow.h", "engine/checks.py"]),
    ("`engine/NAME.h`, flow.h, `make flow.h`, `frame`, `x.json`", []),
])  # fmt: skip
def test_files(text, absent):
    assert list(names.absent_files(text, [*FILES])) == absent


@pytest.mark.parametrize("text, absent", [
    ("`RunOnAllRanks` in `frame.h`; checks.PRODUCTS, `_call/checks.py`", []),
    ("`RunOnAllRanks`\nin `api.md`", ["RunOnAllRanks in api.md"]),
    ("those of checks.PRECISIONS", ["PRECISIONS in jaxmg/checks.py"]),
    ("`PROD` in `checks.py`", ["PROD in checks.py"]),
    ("`x` in `other.h`, self.checks.X, np_checks.X, checks.x", []),
])  # fmt: skip
def test_names_in_files(text, absent):
    assert list(names.absent_names(text, [*FILES], FILES.get)) == absent
