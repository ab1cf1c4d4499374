"""Draws the timeline of a call from a file that JAXMG_TRACE had written.

    JAXMG_TRACE=trace.json python program.py
    python benchmarks/timeline.py trace.json

Draws one row for each stream of each rank, with its ranges by name. Writes trace.png, and prints
for each rank the total seconds of the ranges of one name. Ranges of different streams overlap, and
a range counts in full even if it waits for another stream.
"""

import collections
import json
import os
import pathlib

import matplotlib
from absl import app, flags

matplotlib.use("Agg")

import matplotlib.patches
import matplotlib.pyplot as plt

FLAGS = flags.FLAGS
STREAMS = ("main", "panel", "next", "copy", "side")


def main(argv):
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
    if len(argv) != 2:
        raise app.UsageError("name one file, that which JAXMG_TRACE named")
    path = pathlib.Path(argv[1])
    call = calls(path)[FLAGS.call]
    for rank, seconds in enumerate(totals(call)):
        parts = (f"{name} {value:.4f}" for name, value in seconds.most_common())
        print(f"rank {rank}: {', '.join(parts)}")
    figure = draw(call, FLAGS.begin, FLAGS.end)
    target = FLAGS.out or path.with_suffix(".png")
    figure.savefig(target, dpi=120)
    print(target)


def calls(path):
    """Returns the calls in a file as lists of ranges, in the order of their begin."""
    text = path.read_text().rstrip().rstrip(",")  # the array is left open
    events = [event for event in json.loads(text + "]") if event["ph"] == "X"]
    by_call = collections.defaultdict(list)
    for event in events:
        arguments = event["args"]
        by_call[arguments["run"], arguments["call"]].append(event)
    return sorted(by_call.values(), key=start)


def start(call):
    return min(event["ts"] for event in call)


def totals(call):
    """Returns for each rank the total seconds of the ranges of each name."""
    ranks = [collections.Counter() for _ in range(1 + max(event["pid"] for event in call))]
    for event in call:
        ranks[event["pid"]][event["name"]] += event["dur"] / 1e6
    return ranks


def draw(call, begin=0.0, end=None):
    """Returns a figure of a call's ranges between two times, in seconds after its start."""
    origin = start(call)
    ranks = 1 + max(event["pid"] for event in call)
    names = list(dict.fromkeys(event["name"] for event in sorted(call, key=lambda e: e["ts"])))
    colors = dict(zip(names, plt.get_cmap("tab20").colors * 9, strict=False))
    figure, axes = plt.subplots(figsize=(14, 1 + 0.7 * ranks), constrained_layout=True)
    bars = collections.defaultdict(list)
    for event in call:
        bar = ((event["ts"] - origin) / 1e6, event["dur"] / 1e6)
        bars[event["pid"], event["tid"], event["name"]].append(bar)
    for (rank, stream, name), spans in bars.items():
        axes.broken_barh(spans, (row(rank, stream), 0.9), color=colors[name], linewidth=0)
    rows = [
        (row(rank, stream) + 0.45, f"rank {rank} {STREAMS[stream]}")
        for rank in range(ranks)
        for stream in range(len(STREAMS))
    ]
    axes.set_yticks(*zip(*rows, strict=True), fontsize="x-small")
    axes.invert_yaxis()
    last = max(event["ts"] + event["dur"] for event in call) - origin
    axes.set(xlim=(begin, last / 1e6 if end is None else end), xlabel="seconds")
    axes.set_title(call[0]["cat"])
    patches = [matplotlib.patches.Patch(color=colors[name], label=name) for name in names]
    axes.legend(handles=patches, loc="center left", bbox_to_anchor=(1, 0.5), fontsize="x-small")
    return figure


def row(rank, stream):
    return rank * (len(STREAMS) + 0.5) + stream


if __name__ == "__main__":
    # Defined only here, because run.py imports this file and has its own --out.
    flags.DEFINE_integer("call", -1, "Which call, from 0; -1: the last.")
    flags.DEFINE_float("begin", 0, "Seconds after its start.")
    flags.DEFINE_float("end", None, "Likewise; unless given, to its end.")
    flags.DEFINE_string("out", None, "The picture; unless given, beside the file.")
    app.run(main)
