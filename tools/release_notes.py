"""Prints the section of CHANGELOG.md for a tag's version, for the page of the release.

tools/release_notes.py v2.0.0    fails unless this is the version of version.bzl, with a date
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[1]


def notes(tag, root=ROOT):
    """Returns the section of the tag's version, without its heading. Exits if it isn't ready."""
    version = re.search(r'^VERSION = "(.+)"$', (root / "version.bzl").read_text(), re.M)[1]
    if tag != "v" + version:
        sys.exit(f"the tag is {tag}, and version.bzl has {version}: v{version} is to be tagged")
    _, *sections = re.split(r"^## ", (root / "CHANGELOG.md").read_text(), flags=re.M)
    for section in sections:
        heading, _, text = section.partition("\n")
        if not heading.startswith(f"[{version}]"):
            continue
        if not re.fullmatch(r"\[.*\] - \d{4}-\d\d-\d\d", heading):
            sys.exit(f"CHANGELOG.md: '{heading}' has no date, as [{version}] - 2026-12-31")
        return text.strip()
    sys.exit(f"CHANGELOG.md has no section [{version}]")


if __name__ == "__main__":
    print(notes(*sys.argv[1:]))
