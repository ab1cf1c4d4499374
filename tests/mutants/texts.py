"""Reads the faults of this folder and puts one into the text of its source.

    FOLDER/NAME.toml

    [["potrf.cc"]]                      the source: see `resolve`
    what = "a wait is left out"         what the fault does, in words
    old = "stream.Wait(event);"         a text that occurs once in the source: see `replace`
    new = ""                            the text in its place
    tests = ["cc/potrs_test"]          tests, of which one has to fail; ~ stands for a space
    survives = "..."                    why no test can find it: only where that is so

The folders are those of the sources when a fault was added. Nothing depends on them, nor on the
names of the files here.
"""

import pathlib
import tomllib


class Broken(Exception):
    """A fault that can't be put in, or a source that doesn't build."""


def load(folder):
    """All faults below `folder`: their tables, with the source's name as `source`."""
    return [
        {**fault, "source": source, "file": str(path.relative_to(folder))}
        for path in sorted(folder.rglob("*.toml"))
        for source, faults in tomllib.loads(path.read_text()).items()
        for fault in faults
    ]


def select(name, files):
    """Those of the paths in ``files`` that end with the file of ``name``, below its folders."""
    *folders, last = name.split("/")

    def fits(file):
        *path, base = file.split("/")
        path = iter(path)
        return base == last and all(folder in path for folder in folders)

    return [file for file in files if fits(file)]


def resolve(source, files):
    """The one path in `files` that `source` names.

    `source` is a file's name, with some of its folders in front where several files have that
    name: "engine/plan.cc" names xla_ffi/engine/plan.cc, and xla_ffi/engine/core/plan.cc too. So a
    file may move, and folders may be put between others.
    """
    fitting = select(source, files)
    if len(fitting) != 1:
        raise Broken(f"{source} names {len(fitting)} files of the tree: {' '.join(fitting)}")
    return fitting[0]


def replace(text, old, new):
    """`text` with `new` in the place of `old`, which occurs once in it.

    Where no place has `old` to the letter, white space doesn't count, so that code may be formatted
    anew. There `new` goes between the white space around `old`.
    """
    if text.count(old) == 1:
        return text.replace(old, new)
    places = [place for place, letter in enumerate(text) if not letter.isspace()]
    dense, wanted = ("".join(part.split()) for part in (text, old))
    count = dense.count(wanted) if wanted else 0
    if count != 1:
        raise Broken(f"the text occurs {count} times: {old!r}")
    first = dense.index(wanted)
    if old[0].isspace():
        new = new.lstrip()
    if old[-1].isspace():
        new = new.rstrip()
    return text[: places[first]] + new + text[places[first + len(wanted) - 1] + 1 :]


def put(fault, folder, files):
    """(path, text with the fault) of a tree in `folder`, which has `files`."""
    path = resolve(fault["source"], files)
    try:
        text = replace((folder / path).read_text(), fault["old"], fault["new"])
        if path.endswith(".py"):
            compile(text, path, "exec")  # What Python can't read fails in every test.
    except Broken as error:
        raise Broken(f"{path}: {error}") from None
    except SyntaxError as error:
        raise Broken(f"{path} with the fault is not Python: {error}") from None
    return pathlib.Path(path), text
