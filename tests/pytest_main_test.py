"""pytest_main.py runs the requested tests, and fails if there are none."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

MAIN = pathlib.Path(__file__).with_name("pytest_main.py")
TESTS = "def test_alpha(): pass\n\ndef test_beta(): assert False\n"


def run(folder, *words, tests=TESTS, **environment):
    """Returns (exit code, output) for a file of two tests, of which test_beta fails."""
    file = folder / "two_test.py"
    file.write_text(tests)
    # Without the variables that Bazel sets for this test.
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TEST") and name != "XML_OUTPUT_FILE"
    }
    kept["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, str(MAIN), str(file), *words]
    done = subprocess.run(command, env=kept | environment, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_all_run_unless_some_are_named(tmp_path):
    code, output = run(tmp_path)
    assert code == 1 and "1 failed, 1 passed" in output


@pytest.mark.parametrize(
    "words, environment",
    [(["-k", "alpha"], {}), ([], {"TESTBRIDGE_TEST_ONLY": "alpha or gamma"})],
    ids=["argument", "filter"],
)
def test_an_expression_chooses(tmp_path, words, environment):
    code, output = run(tmp_path, *words, **environment)
    assert code == 0 and "1 passed, 1 deselected" in output


def test_nothing_chosen_is_a_failure_that_says_what_there_is(tmp_path):
    code, output = run(tmp_path, TESTBRIDGE_TEST_ONLY="gamma")
    assert code != 0 and output.endswith("there are\ntest_alpha\ntest_beta\n")


_BROAD = """
import pytest

def test_narrow(): pass

@pytest.mark.extended
def test_extended(): pass

@pytest.mark.breadth
def test_broad(): pass

@pytest.mark.slow
def test_broad_and_slow(): pass
"""


@pytest.mark.parametrize(
    "bazel, words, filtered, count",
    [
        (False, [], {}, 4),
        (True, [], {}, 1),
        (True, ["--breadth"], {}, 4),
        (True, [], {"TESTBRIDGE_TEST_ONLY": "broad or extended"}, 3),
    ],
    ids=["elsewhere", "Bazel", "asked for", "named"],
)
def test_bazel_alone_runs_the_core_alone(tmp_path, bazel, words, filtered, count):
    environment = {"TEST_TMPDIR": str(tmp_path)} if bazel else {}
    words = [*words, "-W", "ignore::pytest.PytestUnknownMarkWarning"]
    code, output = run(tmp_path, *words, tests=_BROAD, **environment, **filtered)
    assert code == 0 and f"{count} passed" in output


_CASES = """
import pytest

@pytest.mark.parametrize("i", range(9))
def test_gamma(i): pass

@pytest.mark.parametrize("i", range(2))
def test_delta(i): pass

def test_alpha(): pass
def test_beta(): pass
def test_epsilon(): pass
"""


def test_shards_have_all_tests_and_whole_functions(tmp_path):
    shards = []
    for i in range(2):
        shard = {"TEST_TOTAL_SHARDS": "2", "TEST_SHARD_INDEX": str(i)}
        code, output = run(tmp_path, "-vv", tests=_CASES, **shard)
        assert code == 0
        shards.append(re.findall(r"::test_(\w+)\S* PASSED", output))
    assert shards == [["gamma"] * 9 + ["epsilon"], ["delta"] * 2 + ["alpha", "beta"]]


def test_a_shard_without_tests_is_no_failure_unless_none_has_any(tmp_path):
    shard = {"TEST_TOTAL_SHARDS": "2", "TEST_SHARD_INDEX": "1"}
    assert run(tmp_path, TESTBRIDGE_TEST_ONLY="alpha", **shard)[0] == 0
    assert run(tmp_path, TESTBRIDGE_TEST_ONLY="gamma", **shard)[0] != 0
