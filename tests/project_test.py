"""Facts about the project that several files state are the same in all of them."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = ["CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md"]


def text(path):
    return (ROOT / path).read_text()


def field(name):
    """Returns the value of a line of CITATION.cff."""
    return re.search(rf"^{name}: (.+)$", text("CITATION.cff"), re.M)[1]


@pytest.mark.parametrize("name, constant", [("version", "VERSION"), ("repository-code", "URL")])
def test_what_is_cited_is_what_the_wheels_say(name, constant):
    assert f'\n{constant} = "{field(name)}"\n' in text("version.bzl")


def test_what_is_cited_has_this_licence():
    name, version = field("license").split("-")
    assert name in text("LICENSE") and f"Version {version}" in text("LICENSE")


@pytest.mark.parametrize("page", PAGES)
def test_a_link_leads_to_a_file(page):
    for link in re.findall(r"\]\(([^):#]+)[^):]*\)", text(page)):
        assert (ROOT / link).exists(), link


def test_a_report_of_a_bug_says_where_it_happens():
    bug = text(".github/ISSUE_TEMPLATE/bug.yml")
    report = bug.split("- type:")[1]
    assert "`python -m jaxmg`" in report and "required: true" in report


def dependencies(pyproject):
    return re.findall(
        r'"([^"]+)"', re.search(r"^dependencies = \[(.*)\]", text(pyproject), re.M)[1]
    )


def extra(name):
    """Returns the requirements of one of the extras of the wheel `jaxmg`."""
    line = re.search(rf"^{name} = \[(.*)\]", text("jaxmg/pyproject.toml"), re.M)[1]
    return re.findall(r'"([^"]+)"', line)


def outputs():
    """Returns {package of the conda recipe: its run-time requirements, without spaces}."""
    recipe = text("conda/recipe.yaml").split("  - package:\n")[1:]
    found = {}
    for output in recipe:
        run = re.search(r"      run:\n((?:        - .+\n)+)", output)[1]
        name = re.search(r"name: (\S+)", output)[1]
        found[name] = [line.replace(" ", "") for line in re.findall(r"- (.+)", run)]
    return found


def test_the_image_and_the_recipe_are_of_this_version():
    version = re.search(r'^VERSION = "(.+)"', text("version.bzl"), re.M)[1]
    assert f'"jaxmg[${{EXTRA}}]=={version}"' in text("docker/Dockerfile")
    assert f"\n  version: {version}\n" in text("conda/recipe.yaml")


def test_the_image_installs_an_extra_from_the_wheels_that_it_mounts():
    dockerfile = text("docker/Dockerfile")
    source, target = re.search(r"source=(\w+),target=(\S+)", dockerfile).groups()
    assert f"ci/wheels.sh {source}" in dockerfile and f"--find-links {target} " in dockerfile
    assert f"!{source}/*.whl" in text("docker/Dockerfile.dockerignore")
    for chosen in re.findall(r"EXTRA=(\w+)", dockerfile):
        assert extra(chosen)
    for python in re.findall(r"PYTHON=(\S+)", dockerfile):
        assert f"Python :: {python}" in text("tools/wheel.toml")


def test_conda_packages_need_what_the_wheels_need():
    packages = outputs()
    assert set(packages) == {
        "jaxmg", "jaxmg-plugin-cpu", "jaxmg-plugin-cuda12", "jaxmg-plugin-cuda13"
    }  # fmt: skip
    assert set(dependencies("jaxmg/pyproject.toml")) < set(packages["jaxmg"])
    assert set(dependencies("xla_ffi/plugin/pyproject_cpu.toml")) < set(
        packages["jaxmg-plugin-cpu"]
    )
    for name in ("cuda12", "cuda13"):
        oldest = extra(name)[1].split(">=")[1]
        assert f"jaxlib>={oldest}*{name}*" in packages[f"jaxmg-plugin-{name}"]
        assert f"cuda-version{name[-2:]}.*" in packages[f"jaxmg-plugin-{name}"]
    for name, needs in packages.items():
        assert (name == "jaxmg") != ("jaxmg==${{version}}" in needs)


def test_conda_packages_are_for_the_pythons_of_the_wheels():
    pythons = re.findall(r"- (3\.\d+)\.\*", text("conda/variants.yaml"))
    assert pythons == re.findall(r"Python :: (3\.\d+)", text("tools/wheel.toml"))
