"""Adds what mkdocs.yml can't express: the version, pages from outside of docs/, notebooks, and
links.

A link in a page is one for the repository: relative to the file that contains it. On the site it
leads to that file's page. A link to a file without a page becomes the file's name without a link.
"""

import fnmatch
import json
import logging
import os
import pathlib
import re

import notebooks
import search_words
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

# Places on the site of the repository's files, except those of docs/, which keep their places.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "examples/README.md": "examples.md",
    "xla_ffi/comm/README.md": "internals/comm.md",
    "xla_ffi/engine/README.md": "internals/engine.md",
    "xla_ffi/engine/offload/README.md": "internals/offload.md",
    "xla_ffi/layout/README.md": "internals/layout.md",
    "xla_ffi/vendor/README.md": "internals/vendor.md",
    "xla_ffi/vendor/cusolvermg/README.md": "internals/cusolvermg.md",
    "xla_ffi/vendor/cusolvermp/README.md": "internals/cusolvermp.md",
}
PICTURES = ("benchmarks/results/*.png", "examples/*.png", "examples/*/*.png")
DOCS = "docs/"
# Weight of a page in the search, by the title of its section or its own place; the default is 1.
BOOSTS = {
    "Developers": 0.1,
    "Troubleshooting": 2,
    "install.md": 2,
    "measurements.md": 0.01,
    "changelog.md": 0.1,
    "contributing.md": 1,
    "glossary.md": 0.5,
}

# Fenced blocks and code spans, in which brackets aren't links; [text](target); ![text](target).
_CODE_OR_LINK = re.compile(
    r"(?P<code>^```.*?^```|`+[^`]+`+(?!\]\())|(?P<text>!?\[[^\[\]]*\])\((?P<target>[^()\s]+)\)",
    re.M | re.S,
)
# The file of a page in a docstring, with an anchor.
_DOCS_PAGE = re.compile(r"(?<![\w/\"])docs/([\w/]+\.md)(#[\w-]+)?")
# Comments around a part of a page that the site shows in another form: (begin, end, its class).
_BOXES = (
    ("cards", "end of cards", "grid cards"),
    ("first screen", "end of first screen", "first-screen"),
)
_log = logging.getLogger("mkdocs.hooks.docs")


def on_config(config):
    """States the version at the top and at the bottom of each page, and on the home page."""
    root = pathlib.Path(_root(config))
    names = dict(re.findall(r'^(VERSION|URL) = "(.+)"$', (root / "version.bzl").read_text(), re.M))
    version = names["VERSION"]
    release = re.search(
        rf"^## \[?{re.escape(version)}\]? - ([\d-]+)$", (root / "CHANGELOG.md").read_text(), re.M
    )
    state = f"of {release[1]}" if release else "not released yet"
    config.site_name = f"jaxmg {version}"
    config.extra["version_line"] = (
        f"Version {version}, {state} · [Changes](changelog.md) · [Repository]({names['URL']}) · "
        "[BibTeX](faq.md#how-do-i-cite-it) · Apache-2.0"
    )
    config.copyright = (
        f"These pages describe jaxmg {version}, {state}. Apache-2.0. "
        f'<a href="{names["URL"]}">Source and issues</a>'
    )
    return config


def on_files(files, config):
    root = _root(config)
    for path in _listed(root):
        place = _place(path)
        if place and not files.get_file_from_path(place):
            files.append(File.generated(config, place, abs_src_path=os.path.join(root, path)))
    for path in sorted(pathlib.Path(root).glob(notebooks.NOTEBOOKS)):
        files.append(File.generated(config, f"notebooks/{path.name}", abs_src_path=str(path)))
        for name, picture in notebooks.page(path)[1].items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def on_page_read_source(page, config):
    path = page.file.abs_src_path
    return notebooks.page(path)[0] if path.endswith(".ipynb") else None


def on_page_markdown(markdown, page, config, files):
    sections = [section.title for section in page.ancestors]
    for name in [*sections, page.file.src_uri]:
        if name in BOOSTS:
            page.meta["search"] = {"boost": BOOSTS[name]}
    root = _root(config)
    here = os.path.relpath(page.file.abs_src_path, root)

    def on_site(match):
        text, target = match["text"], match["target"]
        if match["code"] or re.match("[a-z]+:|#", target):
            return match[0]
        path, hash_, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(here), path))
        if not os.path.exists(os.path.join(root, path)):
            _log.warning(f"{here} links to {target}, and there is no {path}")
            return match[0]
        file = files.get_file_from_path(_place(path) or "")
        if not file:
            return text[1:-1]
        if re.fullmatch(r"\[[\w./]+\.md\]", text):  # pages have titles on the site
            text = f"[{_title(file.abs_src_path)}]"
        relative = os.path.relpath(file.src_uri, os.path.dirname(page.file.src_uri) or ".")
        link = f"{text}({relative}{hash_}{anchor})"
        # A picture is as wide as the text; a click opens it in full size.
        picture = text.startswith("!") and not path.endswith(".svg")  # a badge is a link itself
        return f"[{link}]({relative})" if picture else link

    markdown = _CODE_OR_LINK.sub(on_site, markdown)
    for begin, end, class_ in _BOXES:
        box = f'<div class="{class_}" markdown>'
        markdown = markdown.replace(f"<!-- {begin} -->", box).replace(f"<!-- {end} -->", "</div>")
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]  # for width
        start = "## Where to start"
        markdown = markdown.replace(start, f"{config.extra['version_line']}\n\n{start}")
    return markdown


def on_page_content(html, page, config, files):
    """Makes links of the names of pages in docstrings, which name their files."""
    if not page.file.src_uri.startswith("reference/"):
        return html

    def link(match):
        file = files.get_file_from_path(match[1])
        if not file:
            _log.warning(f"{page.file.src_uri}: a docstring names {match[0]}, which isn't a page")
            return match[0]
        url = file.url_relative_to(page.file) + (match[2] or "")
        return f'<a href="{url}">{_title(file.abs_src_path)}</a>'

    return _DOCS_PAGE.sub(link, html)


@event_priority(-50)  # after the search has written its index, before it is made to work offline
def on_post_build(config):
    """Adds the words of search_words.py to the index, as tags, which results don't show."""
    path = pathlib.Path(config.site_dir, "search/search_index.json")
    index = json.loads(path.read_text())
    places = {entry["location"]: entry for entry in index["docs"]}
    for place, words in search_words.WORDS.items():
        if place in places:
            places[place]["tags"] = [" ".join(word.split()) for word in words.split(",")]
        else:
            _log.warning(f"search_words.py has {place}, which is no section of the site")
    path.write_text(json.dumps(index, separators=(",", ":")))


def _root(config):
    return os.path.dirname(os.path.abspath(config.config_file_path))


def _listed(root):
    """Yields the files of the repository on the site, except those of docs/."""
    yield from PAGES
    for pattern in (notebooks.NOTEBOOKS, *PICTURES):
        for path in sorted(pathlib.Path(root).glob(pattern)):
            yield str(path.relative_to(root))


def _title(path):
    with open(path) as f:
        return next(line[2:].strip() for line in f if line.startswith("# "))


def _place(path):
    """Returns the place on the site of a file of the repository, or None."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    if fnmatch.fnmatchcase(path, notebooks.NOTEBOOKS):
        return f"notebooks/{pathlib.Path(path).stem}.md"
    if any(fnmatch.fnmatchcase(path, pattern) for pattern in PICTURES):
        return "pictures/" + os.path.basename(path)
    return None
