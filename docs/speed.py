"""Draws docs/pictures/speed.png, the picture of README, from the records of README's table.

python docs/speed.py     # needs matplotlib
"""

import matplotlib
import tables

matplotlib.use("Agg")

import matplotlib.pyplot as plt

# Rows of the table: (label, colour, style).
LINES = (
    ("potrs (solve), jaxmg, four GPUs", "tab:blue", "o-"),
    ("potrs, JAX, one GPU", "tab:blue", "o:"),
    ("syevd (eigenvectors), jaxmg, four GPUs", "tab:red", "s-"),
    ("syevd, JAX, one GPU", "tab:red", "s:"),
)


def draw():
    plt.rc("font", size=12)
    figure, axis = plt.subplots(figsize=(6.4, 4), layout="constrained", facecolor="white")
    for row, (label, colour, style) in zip(tables.readme().rows, LINES, strict=True):
        points = [
            (n, cell.record["seconds"])
            for n, cell in zip(tables.ORDERS, row[1:], strict=True)
            if not isinstance(cell, str)
        ]
        axis.plot(*zip(*points, strict=True), style, color=colour, label=label, linewidth=2)
        if tables.OUT in row:
            n, seconds = points[-1]
            said = {"color": colour, "fontsize": 10, "ha": "center"}
            axis.text(n, seconds * 1.5, "then out of memory", **said)
    axis.set(xscale="log", yscale="log", xlabel="n, float64", ylabel="seconds", ylim=(0.005, 70))
    axis.set_xticks(tables.ORDERS, map(str, tables.ORDERS))
    axis.set_xticks([], minor=True)
    axis.yaxis.set_major_formatter("{x:g}")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=10, loc="lower right")
    axis.set(title="H200, matrices of order n")
    return figure


def main():
    path = tables.ROOT / "docs/pictures/speed.png"
    draw().savefig(path, dpi=120, metadata={"Software": None})
    print(path)


if __name__ == "__main__":
    main()
