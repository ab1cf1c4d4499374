"""What the project says of itself in several files is the same everywhere."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = ["CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md"]


def text(path):
    return (ROOT / path).read_text()


def field(name):
    """A line of CITATION.cff."""
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
