"""Predicts the time of gesv by a model of getrf's critical path, with rates measured on H200.

    python benchmarks/lu_model.py

Prints tables in Markdown: the model and the records of results/general.jsonl, and the model for 1,
4 and 8 GPUs. float64, one right-hand side. Times of panels are those in results/lu_panel.txt for
their height; the other rates are those of model.py. docs/model.md explains the model.
"""

import json
import re

import model
import numpy as np
from absl import app

WIDTHS = (256, 512, 1024, 2048)
# Bytes per second of row interchanges in a column-major matrix, which read and write the rows.
MEMORY_RATE = 3e12


def panel_costs(text):
    """Returns (rows, seconds per column) of float64 panels of 1024 columns."""
    pattern = r"float64 +(\d+) rows:.*?1024 columns +([\d.]+)"
    found = re.findall(pattern, text)
    return np.array([(int(rows), 1e-6 * float(cost)) for rows, cost in found]).T


_ROWS, _COSTS = panel_costs((model.RESULTS / "lu_panel.txt").read_text())


def panel(rows, width):
    """Returns the seconds of a panel's factorization, interpolated in the height's logarithm."""
    return width * np.interp(np.log(rows), np.log(_ROWS), _COSTS)


def factorization(n, ranks, width):
    """Returns the seconds of getrf, the seconds of its updates, and the fraction of the steps in
    which the chain of panels takes longer than the concurrent update."""
    rows = np.arange(n, 0, -width, dtype=float)  # of the panels
    rest = np.maximum(rows - width, 0)  # rows below the panels, and columns to the right of them
    swaps = 4 * 8 * width * rest / MEMORY_RATE
    products = (2 * rest + width) * rest * width / model.UPDATE["float64"]
    update = (products + swaps) / ranks
    # The next tile column's interchanges, rows of U and update; then its panel.
    column = (2 * rest + width) * width**2 / model.NEXT + 4 * 8 * width**2 / MEMORY_RATE
    next_panel = np.where(rest > 0, panel(np.maximum(rest, 1), width), 0)
    sent = 8 * rest * width / model.LINK + model.HOP if ranks > 1 else 0
    chain = np.where(rest > 0, column + next_panel + sent + model.WAITS, 0)
    total = np.maximum(update, chain)
    first = panel(n, width)
    # The rows of L that later panels interchange.
    last = 4 * 8 * n * n / 2 / MEMORY_RATE / ranks
    return first + total.sum() + last, update.sum(), (chain > update).sum() / len(rows)


def solve(n, ranks, width):
    """Returns the seconds of gesv from rows to the solution."""
    substitution = model.SUBSTITUTION * n / width + model.SUBSTITUTION_COLUMN * n
    moved = model.redistribution(n, model.line(ranks))
    return model.CALL + factorization(n, ranks, width)[0] + moved + substitution


def best(n, ranks):
    """Returns the tile width with which gesv is fastest."""
    widths = [width for width in WIDTHS if width * ranks <= n]
    return min(widths, key=lambda width: solve(n, ranks, width))


def measured():
    """Returns {(n, ranks, machine): seconds} of gesv in float64."""
    lines = (model.RESULTS / "general.jsonl").read_text().splitlines()
    found = {}
    for record in map(json.loads, lines):
        wanted = ("gesv", "native", "float64", None)
        keys = ("routine", "backend", "dtype", "precision")
        if tuple(record.get(key) for key in keys) == wanted:
            found[record["n"], record["ranks"], record["machine"]] = record["seconds"]
    return found


def main(_):
    print("| machine | n | ranks | measured | model | measured / model |")
    print("|---|---|---|---|---|---|")
    for (n, ranks, machine), taken in sorted(measured().items()):
        paper = solve(n, ranks, best(n, ranks))
        print(f"| {machine} | {n} | {ranks} | {taken:.3f} | {paper:.3f} | {taken / paper:.2f} |")
    print("\n| n | GPUs | seconds | updates | T | steps in which the chain is longer |")
    print("|---|---|---|---|---|---|")
    for n in (16384, 32768, 65536, 131072):
        for ranks in (1, 4, 8):
            width = best(n, ranks)
            _, updates, chained = factorization(n, ranks, width)
            taken = solve(n, ranks, width)
            print(
                f"| {n} | {ranks} | {taken:.3g} | {100 * updates / taken:.0f} % | {width} |"
                f" {100 * chained:.0f} % |"
            )


if __name__ == "__main__":
    app.run(main)
