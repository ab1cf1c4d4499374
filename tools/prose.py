"""Checks the words of pages, docstrings and comments: their spelling, and phrases to avoid.

codespell knows common misspellings. PHRASES lists phrases that readers have to decode, with
replacements. DOCSTRINGS lists more of them for public docstrings, whose summaries begin with a
verb. docs/glossary.md has the project's own words, which names in the code use too.
"""

import ast
import re

import codespell_lib

# Words that codespell takes for misspellings: mathematics, names of journals, a test's typo.
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
DOCSTRINGS = {
    r"\bwhat\b": "a noun",
    r"\bof which\b": "whose, or a new sentence",
    r"\ball that\b": "all results, or all errors",
    r"\b(so|how) many\b": "number of",
    r"\bdo(es)? nothing\b": "Ignored",
    r"\banother name\b": "alias",
    r"\bfor (its|their) being\b": "a noun",
    r"\b(is|are) looked at\b": "is checked",
    r"\bwhere (there|that|it) (is|are|isn't|aren't)\b": "if",
    r"\b(is|are) none\b": "isn't, or doesn't have",
    r"\bas of\b": "as in",
    r": as for\b": "As in",
    r"\bbut for\b": "except",
    r"\b(behind|beside)\b": "after, or in addition to",
    r"\balone\b": "only",
    r"\bsome (\d|few\b|n\b)": "about",
    r"\b(has|have|had)n't\b": "doesn't have, or isn't",
    r"\bby way of\b": "through, or a verb",
    r"\bgave\b": "returned",
    r"\bwill do\b": "is allowed",
    r"\bmultiplications and additions\b": "flops",
}
PUBLIC = (
    "jaxmg/__init__.py", "jaxmg/linalg.py", "jaxmg/lineax.py", "jaxmg/optax.py", "jaxmg/tree.py",
)  # fmt: skip


def _pattern(phrases):
    parts = [phrase.replace(" ", r"\s+") for phrase in phrases]
    return re.compile("|".join(f"(?P<p{i}>{part})" for i, part in enumerate(parts)), re.IGNORECASE)


def _report(file, first, text, pattern, replacements):
    """Prints the phrases in text, whose first line has the number ``first``; returns whether there
    are any."""
    found = False
    for match in pattern.finditer(text):
        line, words = first + text.count("\n", 0, match.start()), " ".join(match[0].split())
        print(f"{file}:{line}: {words!r}: write {replacements[int(match.lastgroup[1:])]}")
        found = True
    return found


def phrases(root, files):
    """Prints the phrases of PHRASES in files; returns whether there are any."""
    pattern, replacements = _pattern(PHRASES), list(PHRASES.values())
    found = [_report(file, 1, (root / file).read_text(), pattern, replacements) for file in files]
    return any(found)


def _public(root):
    """Yields (file, definition) of the public modules, functions, classes and methods."""
    for module in PUBLIC:
        if not (root / module).is_file():
            continue
        tree = ast.parse((root / module).read_text())
        yield module, tree
        files, names = {}, []
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                files |= {name.name: f"{node.module.replace('.', '/')}.py" for name in node.names}
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names = ast.literal_eval(node.value)
        for name in names:
            file = files.get(name, module)
            yield from ((file, node) for node in _defined(root / file, name))


def _defined(file, name):
    kinds = ast.FunctionDef | ast.ClassDef
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, kinds) and node.name == name:
            yield node
            methods = node.body if isinstance(node, ast.ClassDef) else ()
            for method in methods:
                if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                    yield method


def docstrings(root):
    """Prints the phrases of DOCSTRINGS in public docstrings, and summaries that don't begin with a
    verb; returns whether there are any."""
    pattern, replacements = _pattern(DOCSTRINGS), list(DOCSTRINGS.values())
    found = False
    for file, node in _public(root):
        text = ast.get_docstring(node, clean=False)
        if text is None:
            continue
        line = node.body[0].lineno
        found |= _report(file, line, text, pattern, replacements)
        if not isinstance(node, ast.Module) and not re.match(r"[A-Z][a-z]+s\b", text):
            print(f"{file}:{line}: {text.split()[0]!r}: begin with a verb, as in 'Solves'")
            found = True
    return found


def spelling(files):
    """Prints codespell's findings in files of the current folder; returns whether there are any."""
    return codespell_lib.main("--ignore-words-list", WORDS, *files) != 0
