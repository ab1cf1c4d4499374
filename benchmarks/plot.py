"""Draws results: time and TFLOP/s against n, with a line for each backend, ranks and threads.

    python benchmarks/plot.py benchmarks/results/cpu.jsonl

Writes a picture for each routine and dtype next to the file: cpu-potrs-float64.png. Of several
measurements of the same case the last one in the file is drawn. Cases with a single size are drawn
only if there are no others. Bars show the fastest and the slowest run.
"""

import json
import os
import pathlib

import matplotlib
from absl import app

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

LINE = (
    "machine", "backend", "precision", "matrix", "ranks", "processes", "threads", "T_A", "nrhs",
    "donate", "vectors", "eigensolver",
)  # fmt: skip
OLDER = {"matrix": "dominant", "eigensolver": "auto"}  # values of records without these keys


def main(argv):
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
    if not argv[1:]:
        raise app.UsageError("name the files of results of run.py")
    for path in map(pathlib.Path, argv[1:]):
        entries = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        for routine, dtype in sorted({(e["routine"], e["dtype"]) for e in entries}):
            chosen = [e for e in entries if (e["routine"], e["dtype"]) == (routine, dtype)]
            figure = draw(chosen, f"{routine}, {dtype}")
            target = path.with_name(f"{path.stem}-{routine}-{dtype}.png")
            figure.savefig(target, dpi=120)
            plt.close(figure)
            print(target)


def draw(entries, title):
    """Returns a figure of the measurements of one routine and dtype."""
    lines = {}
    for entry in entries:
        lines.setdefault(tuple(entry.get(key, OLDER.get(key)) for key in LINE), {})[entry["n"]] = (
            entry
        )
    # A single size is no line; such cases are left out if others have several sizes.
    lines = {key: sizes for key, sizes in lines.items() if len(sizes) > 1} or lines
    # Properties that all lines share go into the title.
    same = [len({key[i] for key in lines}) == 1 for i in range(len(LINE))]
    common = [i for i, name in enumerate(LINE) if same[i] and name != "backend"]
    figure, (time, rate) = plt.subplots(1, 2, figsize=(12, 5), constrained_layout=True)
    for key, by_size in sorted(lines.items(), key=lambda line: str(line[0])):
        points = [by_size[n] for n in sorted(by_size)]
        label = describe(key, [i for i in range(len(LINE)) if i not in common])
        n = [point["n"] for point in points]
        seconds = np.array([point["seconds"] for point in points])
        runs = [point.get("runs", [point["seconds"]]) for point in points]
        bars = [seconds - [min(r) for r in runs], [max(r) for r in runs] - seconds]
        time.errorbar(n, seconds, yerr=bars, marker="o", capsize=3, label=label)
        rate.plot(n, [point["tflops"] for point in points], marker="o", label=label)
    time.set(xlabel="n", ylabel="seconds", xscale="log", yscale="log")
    rate.set(xlabel="n", ylabel="TFLOP/s", xscale="log", ylim=(0, None))
    sizes = sorted({n for by_size in lines.values() for n in by_size})
    for axis in (time, rate):
        axis.set_xticks(sizes, [str(n) for n in sizes], rotation=45)
        axis.set_xticks([], minor=True)
        axis.grid(alpha=0.3)
    time.legend(fontsize="small")
    figure.suptitle(f"{title}: {describe(next(iter(lines)), common)}", fontsize="medium")
    return figure


def describe(key, chosen):
    """Describes the chosen properties of a line in words."""
    words = []
    for i in chosen:
        name, value = LINE[i], key[i]
        if value is None or value is False:
            continue
        if name in ("machine", "backend", "precision"):
            words.append(value)
        elif name == "matrix":
            words += [f"{value} matrix"] * (value != OLDER["matrix"])
        elif value is True:
            words.append(name)
        elif name in ("T_A", "nrhs"):
            words.append(f"{name}={value}")
        else:
            words.append(f"{value} {name if value != 1 else singular(name)}")
    return ", ".join(words)


def singular(name):
    return {"processes": "process"}.get(name, name.removesuffix("s"))


if __name__ == "__main__":
    app.run(main)
