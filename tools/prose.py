"""Checks the words of pages, docstrings and comments: their spelling, and phrases to avoid.

codespell knows common misspellings. PHRASES has what a reader would have to decode, with what to
write; docs/glossary.md has the words of the project, which its own names follow.
"""

import re

import codespell_lib

# Words that codespell takes for others: mathematics, names of journals, a fault that a test needs.
WORDS = "abd,checkt,factorin,fo,fro,froms,numer,pyhton"

PHRASES = {
    r"\bfor ever\b": "forever",
    r"first of all": "first",
    r"(is|are) a matter of": "depends on, or is bound by",
    r"that which": "a noun",
    r"what (can't be right|isn't right|is wrong) raises": "invalid arguments raise",
    r"(has|have)n't (got|the memory)": "doesn't have, doesn't fit",
    r"(is|are|was|were)n't to be had": "isn't available",
    r"(has|have) no room": "doesn't fit, or has no memory",
    r"asks of itself": "aims at",
    r"doesn't say where it is": "carries no placement",
    r"as it stands": "unchanged, or nothing",
    r"\b(A|matrix),? (is |was )?given away": "donated",
    r"\bmend(s|ed)?\b": "fix",
    r"\b(courier|parcel)s?\b": "sender thread, pending send",
}
_PHRASE = re.compile("|".join(f"(?P<p{i}>{p})" for i, p in enumerate(PHRASES)), re.IGNORECASE)


def phrases(root, files):
    """Prints the phrases of PHRASES in files; whether there are any."""
    instead = list(PHRASES.values())
    found = False
    for file in files:
        text = (root / file).read_text()
        for match in _PHRASE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            print(f"{file}:{line}: {match[0]!r}: write {instead[int(match.lastgroup[1:])]}")
            found = True
    return found


def spelling(files):
    """Prints what codespell finds in files of the current folder; whether there is anything."""
    return codespell_lib.main("--ignore-words-list", WORDS, *files) != 0
