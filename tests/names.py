"""Finds files, and names in files, that pages and docstrings mention and that don't exist.

    python tests/names.py

Prints a line for each and exits with 1 if there is any. The step `lint` of ci/cpu.sh.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests/mutants"))

import texts  # noqa: E402

SUFFIXES = "bzl cc cu cuh h jsonl lds md py pyi sh toml yml"
FILE = rf"[\w./-]+\.(?:{SUFFIXES.replace(' ', '|')})"
# Placeholders, which a reader replaces by a name.
PLACEHOLDERS = ("NAME", "FILE")
# A page that mentions files of the past.
HISTORY = ("CHANGELOG.md",)


def has(files, name):
    """Returns the files that ``name`` may denote; it may begin with dots."""
    return texts.select("/".join(part for part in name.split("/") if part.strip(".")), files)


def absent_files(text, files):
    """Yields file names in backquotes, without other words, that match no file."""
    for name in re.findall(rf"`({FILE})`", text):
        if not any(word in name for word in PLACEHOLDERS) and not has(files, name):
            yield name


def absent_names(text, files, read):
    """Yields each `name` in `file`, and module.NAME of jaxmg, if the file doesn't contain that
    word."""
    pairs = re.findall(rf"`(\w+)`\s+in\s+`({FILE})`", text)
    modules = {pathlib.Path(file).stem for file in files if file.startswith("jaxmg/")}
    for module, name in re.findall(r"(?<![\w.])(\w+)\.(_?[A-Z][A-Z_]+)\b", text):
        if module in modules:
            pairs.append((name, f"jaxmg/{module}.py"))
    for name, file in dict.fromkeys(pairs):
        places = has(files, file)
        if places and not any(re.search(rf"\b{name}\b", read(place)) for place in places):
            yield f"{name} in {file}"


def main():
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    files = [name for name in sorted({*names}) if (ROOT / name).is_file()]

    def read(file):
        return (ROOT / file).read_text()

    count = 0
    for file in files:
        page = file.endswith(".md") and file not in HISTORY
        found = list(absent_files(read(file), files)) if page else []
        if page or re.match(r"jaxmg/.*\.pyi?$", file):
            found += absent_names(read(file), files, read)
        for name in found:
            print(f"{file} names {name}, which isn't there")
        count += len(found)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
