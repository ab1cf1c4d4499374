"""Runs the notebooks of examples/, stores their outputs, and makes pages of them.

    python docs/notebooks.py           # runs all, and writes their outputs into them
    python docs/notebooks.py --check   # prints differences, and exits with 1 if there are any

A notebook runs in a process of its own, from its first cell to its last. Its outputs are the text
that the cells print, and the figures that they leave open. They are stable: the check treats
floating-point numbers as equal within one per cent or 1e-6, and compares the number of pictures,
not their pixels.
"""

import argparse
import base64
import contextlib
import importlib.util
import io
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).absolute().parents[1]
NOTEBOOKS = "examples/*.ipynb"
COLAB = "https://colab.research.google.com/github/jaxmg/jaxmg/blob/main/examples"
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def read(path):
    """Returns a notebook whose cells' sources are strings."""
    notebook = json.loads(pathlib.Path(path).read_text())
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
    return notebook


def write(path, notebook):
    cells = [{**cell, "source": cell["source"].splitlines(True)} for cell in notebook["cells"]]
    text = json.dumps({**notebook, "cells": cells}, indent=1, ensure_ascii=False)
    pathlib.Path(path).write_text(text + "\n")


def executed(path):
    """Returns the notebook with the outputs of a new run."""
    environment = {**os.environ, "MPLBACKEND": "agg", "PYTHONPATH": os.pathsep.join(sys.path)}
    for name in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES"):  # the notebook makes its own devices
        environment.pop(name, None)
    command = [sys.executable, __file__, "--run", str(path)]
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if result.returncode:
        raise RuntimeError(f"{path} failed")
    return json.loads(result.stdout)


def run(notebook, names=None):
    """Runs the cells in this process, in the namespace ``names``, and stores their outputs in
    them."""
    names = {} if names is None else names
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(codes, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(cell["source"], f"cell {cell['id']}", "exec"), names)
        cell["execution_count"], cell["outputs"] = count, []
        if text := printed.getvalue().splitlines(True):
            cell["outputs"].append({"name": "stdout", "output_type": "stream", "text": text})
        for picture in figures():
            output = {"data": {"image/png": picture}, "metadata": {}}
            cell["outputs"].append({**output, "output_type": "display_data"})
    return notebook


def figures():
    """Yields matplotlib's open figures as base64, and closes them."""
    plt = sys.modules.get("matplotlib.pyplot")
    for number in plt.get_fignums() if plt else ():
        file = io.BytesIO()
        figure = plt.figure(number)
        figure.savefig(file, dpi=100, bbox_inches="tight", metadata={"Software": None})
        plt.close(figure)
        yield base64.b64encode(file.getvalue()).decode()


def outputs(cell):
    """Returns (the text that a cell printed, its pictures as bytes)."""
    text, pictures = "", []
    for output in cell.get("outputs", ()):
        text += "".join(output.get("text", ""))
        if "data" in output:
            pictures.append(base64.b64decode(output["data"]["image/png"]))
    return text, pictures


def same(kept, now):
    """Returns whether two texts are the same, up to rounding."""
    if NUMBER.sub("", kept) != NUMBER.sub("", now):
        return False
    for a, b in zip(NUMBER.findall(kept), NUMBER.findall(now), strict=True):
        rounded = "." in a or "e" in a
        if a != b and not (rounded and abs(float(a) - float(b)) <= 0.01 * abs(float(a)) + 1e-6):
            return False
    return True


def different(path):
    """Yields the differences between a notebook's stored outputs and those of a run."""
    for kept, now in zip(read(path)["cells"], executed(path)["cells"], strict=True):
        (text, pictures), (text_now, pictures_now) = outputs(kept), outputs(now)
        if not same(text, text_now):
            yield f"{path}, cell {kept['id']}, has:\n{text}and prints:\n{text_now}"
        if len(pictures) != len(pictures_now):
            yield f"{path}, cell {kept['id']}: {len(pictures)} pictures, now {len(pictures_now)}"


def page(path):
    """Returns (a notebook as Markdown, {name: a picture of it as bytes}), for the site."""
    name = pathlib.Path(path).stem
    parts, pictures, heading = [], {}, ""
    count = itertools.count(1)
    for cell in read(path)["cells"]:
        if cell["cell_type"] == "markdown":
            parts.append(cell["source"])
            heading = next(iter(re.findall("^#+ (.*)", cell["source"], re.M)), heading)
            continue
        parts.append(f"```python\n{cell['source']}\n```")
        text, drawn = outputs(cell)
        if text:
            parts.append(f"``` {{ .text .output }}\n{text.rstrip()}\n```")
        for picture in drawn:
            file = f"{name}_{next(count)}.png"
            pictures[file] = picture
            parts.append(f'<p><img alt="{heading}: the figure of this cell" src="{file}"></p>')
    link = f'This page is a notebook, with the outputs of a run: <a href="{name}.ipynb" download>'
    badge = '<img alt="Open in Colab" class="badge" src="../pictures/colab.svg">'
    parts.insert(1, f'<a href="{COLAB}/{name}.ipynb">{badge}</a>')
    parts.insert(2, f"{link}download it</a>, or open `examples/{name}.ipynb` of a checkout.")
    return "\n\n".join(parts) + "\n", pictures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not importlib.util.find_spec("jaxmg"):  # a notebook would install it
        sys.exit("jaxmg isn't installed")
    if args.run:
        json.dump(run(read(args.run)), sys.stdout)
        return 0
    differences = []
    for path in sorted(ROOT.glob(NOTEBOOKS)):
        if args.check:
            differences += different(path)
        else:
            write(path, executed(path))
    print(*differences, sep="\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
