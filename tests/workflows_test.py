"""The workflows in .github/ call existing scripts, all of them, and pin versions of actions."""

import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
WORKFLOWS = {path.name: path.read_text() for path in ROOT.glob(".github/workflows/*.yml")}
# Their commands, without comments.
COMMANDS = {name: re.sub(r"(^|\s)#.*", "", text) for name, text in WORKFLOWS.items()}


def text(path):
    return (ROOT / path).read_text()


def found(pattern):
    """Returns all matches of the pattern in the workflows, as (workflow, match)."""
    pairs = {(n, m) for n, command in COMMANDS.items() for m in re.findall(pattern, command)}
    assert pairs, f"no workflow has {pattern}"
    return sorted(pairs)


@pytest.mark.parametrize("workflow, path", found(r"(?:\./)?((?:ci|tools)/[\w./]+)"))
def test_a_script_that_is_called_is_there_and_can_be(workflow, path):
    file = ROOT / path
    assert file.is_file(), f"{workflow} calls {path}"
    assert file.suffix == ".py" or file.stat().st_mode & 0o111


def test_what_is_built_is_known_to_the_scripts_alone():
    assert not any(re.search(r"[\s\"]//\w", command) for command in COMMANDS.values())


@pytest.mark.parametrize("workflow, path", found(r"uses: \./(\S+)"))
def test_a_workflow_that_is_called_is_there_and_lets_itself_be(workflow, path):
    assert "  workflow_call:" in text(path)


@pytest.mark.parametrize("workflow, action", found(r"uses: ([^.\s]\S+)"))
def test_an_action_is_pinned_by_its_commit(workflow, action):
    assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", action)
    assert re.search(re.escape(action) + r" # v\d+\.\d+\.\d+$", WORKFLOWS[workflow], re.M)


def test_every_step_of_the_cpu_script_is_in_one_job():
    matrix = re.search(r"\n +steps:\n((?: +- [\w ]+\n)+)", COMMANDS["cpu.yml"])[1]
    dealt = re.findall(r"\w+", matrix)
    lists = re.findall(r"^(?:default|also)=\(([^)]*)\)", text("ci/cpu.sh"), re.M)
    steps = " ".join(lists).split()
    elsewhere = ["wheels", "release"]  # wheels.yml builds and checks all wheels
    assert sorted(dealt) == sorted(set(steps) - set(elsewhere))


def test_wheels_are_built_for_every_python():
    built = re.search(r"python: \[(.*)\]", COMMANDS["wheels.yml"])[1]
    supported = re.search(r"^SUPPORTED=\((.*)\)", text("tools/find_python.sh"), re.M)[1]
    assert sorted(re.findall(r"[\d.]+", built)) == sorted(supported.split())


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_token_can_read_unless_a_job_says_why_not(workflow):
    command = COMMANDS[workflow]
    assert "\npermissions:\n  contents: read\n\n" in command
    assert "pull_request_target" not in command and "secrets." not in command
    assert command.count("uses: actions/checkout@") == command.count("persist-credentials: false")


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_every_job_ends(workflow):
    jobs = COMMANDS[workflow].split("\njobs:\n")[1]
    for job in re.split(r"^  (?=\w+:$)", jobs, flags=re.M)[1:]:
        assert "timeout-minutes:" in job or "uses: ./" in job, job
    assert "\nconcurrency:\n" in COMMANDS[workflow]


def test_only_code_of_this_repository_runs_on_our_gpus():
    gpu = re.sub(r"\s+", " ", COMMANDS["gpu.yml"])
    assert "pull_request.head.repo.full_name == github.repository" in gpu
    assert "gpu: needs: wheels " in gpu and "environment: gpu" in gpu
    others = [command for name, command in COMMANDS.items() if name != "gpu.yml"]
    assert not any("self-hosted" in command for command in others)


def _jobs(workflow):
    """Returns {name: text} of the jobs."""
    jobs = COMMANDS[workflow].split("\njobs:\n")[1]
    parts = re.split(r"^  (\w+):\n", jobs, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_nothing_is_published_that_was_not_tested():
    """The wheels that are published are tested before, with every Python."""
    jobs = _jobs("release.yml")
    assert "needs: [wheels, test]" in jobs["pypi"] and "needs: pypi" in jobs["github"]
    test = jobs["test"]
    assert "needs: wheels\n" in test and "pattern: wheels-*" in test and "WHEELS: dist" in test
    assert "ci/installed_wheels.sh ${{ matrix.python }} ${{ matrix.tests }}" in test
    tested = re.findall(r'python: "([\d.]+)", .*tests: tests/python }', test)
    supported = re.search(r"^SUPPORTED=\((.*)\)", text("tools/find_python.sh"), re.M)[1]
    assert sorted(tested) == sorted(supported.split())


@pytest.fixture
def notes(tmp_path):
    """Returns release_notes.notes for a version.bzl and a CHANGELOG.md of the test's own."""
    spec = importlib.util.spec_from_file_location("notes", ROOT / "tools/release_notes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "version.bzl").write_text('"""A version."""\n\nVERSION = "1.2.0"\n')

    def make_notes(tag, changelog):
        (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n" + changelog)
        return module.notes(tag, tmp_path)

    return make_notes


def test_the_notes_are_the_section_of_the_version(notes):
    changelog = "## [1.3.0] - unreleased\n\n- c\n\n## [1.2.0] - 2026-12-24\n\n### Added\n\n- b\n\n"
    assert notes("v1.2.0", changelog + "## [1.1.0] - 2025-01-01\n\n- a\n") == "### Added\n\n- b"


@pytest.mark.parametrize(
    "tag, heading, error",
    [
        ("v1.3.0", "[1.2.0] - 2026-12-24", "version.bzl has 1.2.0"),
        ("1.2.0", "[1.2.0] - 2026-12-24", "v1.2.0 is to be tagged"),
        ("v1.2.0", "[1.2.0] - unreleased", "has no date"),
        ("v1.2.0", "[1.1.0] - 2026-12-24", "no section"),
    ],
)
def test_what_is_not_ready_is_not_released(notes, tag, heading, error):
    with pytest.raises(SystemExit, match=re.escape(error)):
        notes(tag, f"## {heading}\n\n- a\n")
