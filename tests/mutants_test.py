"""A fault of tests/mutants goes into the source that it names, in whichever folder that is."""

import pathlib
import sys

import pytest

FOLDER = pathlib.Path(__file__).parent / "mutants"
sys.path.insert(0, str(FOLDER))

import texts  # noqa: E402

FILES = [
    "tests/cc/plan_test.cc",
    "xla_ffi/engine/plan.cc",
    "xla_ffi/engine/plan.h",
    "xla_ffi/engine/potrf.cc",
    "xla_ffi/handlers/plan.cc",
]


@pytest.mark.parametrize("source, file", [
    ("potrf.cc", "xla_ffi/engine/potrf.cc"),
    ("plan.h", "xla_ffi/engine/plan.h"),
    ("engine/plan.cc", "xla_ffi/engine/plan.cc"),
    ("xla_ffi/plan.h", "xla_ffi/engine/plan.h"),
    ("xla_ffi/handlers/plan.cc", "xla_ffi/handlers/plan.cc"),
])  # fmt: skip
def test_a_source_is_named_by_what_is_unique(source, file):
    assert texts.resolve(source, FILES) == file


def test_a_source_that_moved_is_named_as_before():
    moved = [file.replace("engine/", "engine/core/") for file in FILES]
    for source in ("potrf.cc", "engine/plan.cc", "xla_ffi/engine/plan.h"):
        assert "engine/core/" in texts.resolve(source, moved)


@pytest.mark.parametrize("source, count", [
    ("plan.cc", 2), ("xla_ffi/plan.cc", 2), ("lan.cc", 0), ("potri.cc", 0), ("eng/potrf.cc", 0),
    ("engine/xla_ffi/plan.h", 0), ("engine", 0),
])  # fmt: skip
def test_a_source_that_is_absent_or_ambiguous_is_an_error(source, count):
    with pytest.raises(texts.Broken, match=f"{source} names {count} files"):
        texts.resolve(source, FILES)


@pytest.mark.parametrize("text, old, new, result", [
    # Literally equal.
    ("a(); b();", "b();", "c();", "a(); c();"),
    ("  if (a)\n    b();\n", "    b();\n", "", "  if (a)\n"),
    # With other line breaks, and with additional white space.
    ("f(\n    a,\n    b);\ng();", "f(a, b);", "", "\ng();"),
    ("f(a, b);\ng();", "f(a,\n  b);\ng()", "h()", "h();"),
    # The white space around the text is preserved.
    ("  {\n    a = 1;\n    b();\n  }", "\n  a = 1;\n  b();\n", "\n  b();\n", "  {\n    b();\n  }"),
    ("if x:\n        y = 1\n", "    y = 1\n", "    y = 2\n", "if x:\n        y = 2\n"),
    # One occurrence is literally equal.
    ("a = b\na  =  b\n", "a = b", "c", "c\na  =  b\n"),
])  # fmt: skip
def test_a_text_is_replaced(text, old, new, result):
    assert texts.replace(text, old, new) == result


@pytest.mark.parametrize("text, old, count", [
    ("a(); a();", "a();", 2),
    ("a( 1); a(1 );", "a(1);", 2),
    ("a();", "b();", 0),
    ("a();", " ", 0),
])  # fmt: skip
def test_a_text_that_does_not_occur_once_is_an_error(text, old, count):
    with pytest.raises(texts.Broken, match=f"occurs {count} times"):
        texts.replace(text, old, "c")


@pytest.fixture
def tree(tmp_path):
    """Returns a function that puts a fault into a tree of one Python file."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/one.py").write_text("def f(x):\n    if x:\n        return 1\n    return 2\n")

    def put(old, new):
        fault = {"source": "one.py", "old": old, "new": new}
        return texts.put(fault, tmp_path, ["pkg/one.py"])

    return put


def test_a_fault_is_put_in(tree):
    path, text = tree("return 1", "return 3")
    assert path == pathlib.Path("pkg/one.py")
    assert text == "def f(x):\n    if x:\n        return 3\n    return 2\n"


def test_a_fault_that_is_not_python_is_an_error(tree):
    with pytest.raises(texts.Broken, match="pkg/one.py with the fault is not Python"):
        tree("return 1", "")


def test_an_error_names_the_file(tree):
    with pytest.raises(texts.Broken, match="pkg/one.py: the text occurs 0 times: 'return 4'"):
        tree("return 4", "")


def test_all_files_are_read(tmp_path):
    (tmp_path / "engine").mkdir()
    for name, source in {"a": "a.cc", "engine/b": "engine/b.cc"}.items():
        text = f'[["{source}"]]\nwhat = "1"\n\n[["{source}"]]\nwhat = "2"\n'
        (tmp_path / f"{name}.toml").write_text(text)
    faults = texts.load(tmp_path)
    assert [(f["source"], f["what"]) for f in faults] == [
        ("a.cc", "1"), ("a.cc", "2"), ("engine/b.cc", "1"), ("engine/b.cc", "2"),
    ]  # fmt: skip
    assert faults[-1]["file"] == "engine/b.toml"


def test_each_fault_is_complete_and_has_its_own_words():
    faults = texts.load(FOLDER)
    assert len({fault["what"] for fault in faults}) == len(faults) > 0
    for fault in faults:
        words = {*fault} - {"source", "file", "survives"}
        assert words == {"what", "old", "new", "tests"} and fault["tests"], fault["what"]
        assert fault["old"].strip() and fault["old"] != fault["new"], fault["what"]
