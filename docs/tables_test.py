"""The tables of the pages agree with benchmarks/results, and the check detects one that doesn't."""

import pathlib
import re

import figures
import pytest
import tables

HERE = pathlib.Path("docs/page.md")


def test_pages_have_the_tables_of_the_records():
    assert tables.different() == []


@pytest.mark.parametrize("name", tables.TABLES)
def test_every_table_stands_in_a_page_and_has_figures(name):
    text = "".join(path.read_text() for path in tables.pages())
    assert text.count(f"<!-- table: {name} -->") == 1
    assert len(tables.TABLES[name]().records) > 1


def test_a_changed_figure_is_found():
    page = tables.rewritten("<!-- table: scaling -->\n<!-- end of table -->", HERE)
    assert tables.rewritten(page, HERE) == page
    assert tables.rewritten(page.replace("0.511", "0.512"), HERE) == page
    sentence = "takes <!-- figure: syevd_32768 -->22.6<!-- end --> s"
    assert re.sub("<.*?>", "", tables.rewritten(sentence, HERE)) == "takes 3.02 s"


def test_no_line_begins_with_a_figure():
    """The figure's comment would end the paragraph, on GitHub and on the site."""
    for path in tables.pages():
        assert not re.search(r"^<!-- (figure|end -->)", path.read_text(), re.M), path


def test_links_lead_to_the_commands_from_any_folder():
    page = "<!-- table: kept -->\n<!-- end of table -->"
    for here, link in (
        ("README.md", "docs/measurements.md#kept"),
        ("docs/page.md", "(measurements.md#kept"),
        ("docs/howto/page.md", "(../measurements.md#kept"),
    ):
        assert link in tables.rewritten(page, pathlib.Path(here))


@pytest.mark.parametrize(
    "value, text", [(0.02444, "0.0244"), (0.75, "0.750"), (3.2, "3.20"), (103.5, "104")]
)
def test_three_digits(value, text):
    assert figures.number(value) == text


def test_a_record_that_is_not_there_is_an_error():
    with pytest.raises(LookupError, match=r"gpu\.jsonl has no record"):
        figures.find("gpu", routine="none")


def test_commands_of_a_table_are_those_of_its_records():
    commands = tables.commands(tables.kept())
    assert list(commands) == ["kept"]
    assert all(command.startswith("python benchmarks/kept.py") for command in commands["kept"])
