"""Draws results: time and TFLOP/s against n, with a line for each backend, ranks and threads.

    python benchmarks/plot.py benchmarks/results/cpu.jsonl
    cd benchmarks/results; python ../plot.py gpu.jsonl four_gpus.jsonl eigen_gpu.jsonl

Draws the records of all files together: a picture for each routine and dtype, next to the first
file and named after it: gpu-potrs-float64.png. Of several measurements of the same case the newest
is drawn. Cases with a single size are drawn only if there are no others. Bars show the fastest and
the slowest run; hollow points include compilation. Letters are large enough for a phone.
"""

import json
import os
import pathlib
import re

import matplotlib
from absl import app, flags

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

LINE = (
    "machine", "backend", "precision", "matrix", "ranks", "processes", "threads", "T_A", "nrhs",
    "donate", "vectors",
)  # fmt: skip
OLDER = {"matrix": "dominant", "processes": 1}  # values of records without these keys
NAMES = {"native": "jaxmg", "jax": "JAX", "cusolvermg": "cuSOLVERMg", "scipy": "SciPy"}

_ROUTINES = flags.DEFINE_list("routines", None, "Draw these only, such as potrs-float64.")
_MATCH = flags.DEFINE_string("match", "", "Draw only lines whose description has this expression.")


def main(argv):
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
    if not argv[1:]:
        raise app.UsageError("name the files of results of run.py")
    paths = [pathlib.Path(path) for path in argv[1:]]
    lines = [line for path in paths for line in path.read_text().splitlines() if line.strip()]
    entries = [entry for entry in map(json.loads, lines) if "tflops" in entry]
    for routine, dtype in sorted({(e["routine"], e["dtype"]) for e in entries}):
        if _ROUTINES.value and f"{routine}-{dtype}" not in _ROUTINES.value:
            continue
        chosen = [e for e in entries if (e["routine"], e["dtype"]) == (routine, dtype)]
        figure = draw(chosen, f"{routine}, {dtype}", _MATCH.value)
        target = paths[0].with_name(f"{paths[0].stem}-{routine}-{dtype}.png")
        figure.savefig(target, dpi=120)
        plt.close(figure)
        print(target)


def draw(entries, title, match=""):
    """Returns a figure of the measurements of one routine and dtype."""
    lines = {}
    for entry in sorted(entries, key=lambda entry: entry["date"]):
        key = tuple(OLDER.get(name) if entry.get(name) is None else entry[name] for name in LINE)
        if re.search(match, describe(key, range(len(LINE)))):
            lines.setdefault(key, {})[entry["n"]] = entry
    # A single size is no line; such cases are left out if others have several sizes.
    lines = {key: sizes for key, sizes in lines.items() if len(sizes) > 1} or lines
    # Properties that all lines share go into the title.
    same = [len({key[i] for key in lines}) == 1 for i in range(len(LINE))]
    common = [i for i, name in enumerate(LINE) if same[i] and name != "backend"]
    plt.rc("font", size=12)
    figure, (time, rate) = plt.subplots(2, 1, figsize=(6.4, 9), layout="constrained", sharex=True)
    for key, by_size in sorted(lines.items(), key=lambda line: str(line[0])):
        points = [by_size[n] for n in sorted(by_size)]
        label = describe(key, [i for i in range(len(LINE)) if i not in common])
        n = [point["n"] for point in points]
        seconds = np.array([point["seconds"] for point in points])
        runs = [point.get("runs", [point["seconds"]]) for point in points]
        bars = [seconds - [min(r) for r in runs], [max(r) for r in runs] - seconds]
        time.errorbar(n, seconds, yerr=np.maximum(bars, 0), marker="o", capsize=3, label=label)
        (line,) = rate.plot(n, [point["tflops"] for point in points], marker="o", label=label)
        for axis, value in ((time, "seconds"), (rate, "tflops")):
            cold = [(point["n"], point[value]) for point in points if point.get("cold")]
            style = {"facecolor": "white", "edgecolor": line.get_color(), "zorder": 3}
            axis.scatter(*np.reshape(cold, (-1, 2)).T, **style)
    time.set(ylabel="seconds", xscale="log", yscale="log")
    rate.set(xlabel="n", ylabel="TFLOP/s", xscale="log", yscale="log")
    sizes = sorted({n for by_size in lines.values() for n in by_size})
    ticks = [n for n in sizes if n == sizes[-1] or sizes[-1] / n >= 1.6]  # not too close
    ticks = ticks if len(ticks) < 6 else ticks[::-2][::-1]
    rate.yaxis.set_major_formatter("{x:g}")
    low, high = rate.get_ylim()
    rate.yaxis.set_minor_formatter("{x:g}" if high < 20 * low else "")
    for axis in (time, rate):
        axis.set_xticks(ticks, [str(n) for n in ticks])
        axis.set_xticks([], minor=True)
        axis.grid(alpha=0.3)
    time.legend(fontsize="small")
    figure.suptitle(f"{title}\n{describe(next(iter(lines)), common)}", fontsize="medium")
    return figure


def describe(key, chosen):
    """Describes the chosen properties of a line in words."""
    words = []
    names = {LINE[i] for i in chosen}
    for i in chosen:
        name, value = LINE[i], key[i]
        if value is None or value is False or (name, value) == ("processes", 1):
            continue
        if name == "machine":
            words.append(value.replace(" x ", " × "))
        elif (
            name == "ranks" and "machine" in names and key[LINE.index("machine")][:2] == f"{value} "
        ):
            continue  # the machine's number of GPUs
        elif name in ("backend", "precision"):
            words.insert(0, NAMES.get(value, value))
        elif name == "matrix":
            words += [f"{value} matrix"] * (value != OLDER["matrix"])
        elif value is True:
            words.append({"donate": "A donated", "vectors": "with eigenvectors"}.get(name, name))
        elif name in ("T_A", "nrhs"):
            words.append(f"{name}={value}")
        else:
            words.append(f"{value} {name if value != 1 else singular(name)}")
    return ", ".join(words)


def singular(name):
    return {"processes": "process"}.get(name, name.removesuffix("s"))


if __name__ == "__main__":
    app.run(main)
