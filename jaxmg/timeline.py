"""``python -m jaxmg.timeline trace.json``: reads a file that a program wrote with ``JAXMG_TRACE``.

    JAXMG_TRACE=trace.json python program.py
    python -m jaxmg.timeline trace.json

Prints each call, and for each rank the seconds of the steps of one name. Writes
``trace.full.json``, a complete JSON file for Perfetto (https://ui.perfetto.dev), chrome://tracing
and any JSON reader: the traced program appends to its file, so it leaves the JSON array open.
``--picture FILE`` draws the streams of one call, and needs matplotlib.

Files of several processes are not joined: a call in a file has the ranks of that process.

Steps of different streams overlap, and a step counts in full even if it waits for another stream.
"""

import argparse
import collections
import json
import os
import pathlib
import sys
from typing import Any

STREAMS = ("main", "panel", "next", "copy", "side", "load", "store")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(
        "python -m jaxmg.timeline", description="Summarises and completes a file of JAXMG_TRACE."
    )
    add = parser.add_argument
    add("files", nargs="+", type=pathlib.Path, metavar="FILE", help="of one or more processes")
    add("--out", type=pathlib.Path, help="the complete JSON file; default: FILE.full.json")
    add(
        "--call", type=int, default=-1, help="which call --picture draws, from 0; default: the last"
    )
    add("--picture", type=pathlib.Path, help="a picture of the call's streams, for example a.png")
    add("--begin", type=float, default=0, help="seconds after the call's start, for --picture")
    add("--end", type=float, help="likewise; default: the call's end")
    args = parser.parse_args(arguments)
    try:
        files = [read(file) for file in args.files]
    except (OSError, ValueError) as error:
        parser.error(str(error))
    events = [event for file in files for event in file]
    # Each process counts its calls for itself, so equal numbers in two files say nothing.
    found = [call for file in files for call in calls_of(file)]
    for number, call in enumerate(found):
        _print_call(number, call)
    if not found:
        print("no steps: only calls of jaxmg's own algorithms have them")
    out = args.out or args.files[0].with_suffix(".full.json")
    out.write_text(json.dumps({"traceEvents": events}, separators=(",", ":")) + "\n")
    print(f"{out}: {len(events)} events, complete JSON")
    if args.picture is not None:
        if not -len(found) <= args.call < len(found):
            parser.error(f"--call {args.call}: the file has {len(found)} calls")
        draw(found[args.call], args.begin, args.end).savefig(args.picture, dpi=120)
        print(args.picture)
    return 0


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Returns the events of a file, in order. Takes files that are complete, too.

    Raises:
        ValueError: the file isn't a trace.
    """
    text = pathlib.Path(path).read_text(errors="replace")
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        return _lines(path, text)
    events = whole.get("traceEvents") if isinstance(whole, dict) else whole
    if not isinstance(events, list):
        raise ValueError(f"{path} has no trace events")
    return events


def _lines(path, text):
    """Returns the events of an open array, which has one event per line. Processes that share a
    file may both have written its first line. A process that ended early leaves an incomplete line,
    and others may append to it."""
    lines = [line.strip().rstrip(",") for line in text.splitlines()]
    lines = [line for line in lines if line not in ("", "[", "]")]
    events, broken = [], []
    for line in lines:
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            event = None
        if isinstance(event, dict):
            events.append(event)
        else:
            broken.append(line)
    if broken and not events:
        raise ValueError(f"{path} is not a file of JAXMG_TRACE: {broken[0][:60]!r}")
    if broken:
        text = f"{path}: {len(broken)} of {len(lines)} lines are left out: they are no events"
        print(text, file=sys.stderr)
    return events


def calls(path: str | os.PathLike[str]) -> list[list[dict[str, Any]]]:
    """Returns the calls in a file as lists of steps, in the order in which they start."""
    return calls_of(read(path))


def calls_of(events: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Returns the calls among events as lists of steps, in the order of their begin."""
    by_call = collections.defaultdict(list)
    for event in events:
        if event.get("ph") == "X":
            arguments = event["args"]
            by_call[arguments["run"], arguments["call"]].append(event)
    return sorted(by_call.values(), key=start)


def start(call: list[dict[str, Any]]) -> float:
    """Returns the time at which a call starts, in microseconds."""
    return min(event["ts"] for event in call)


def end(call: list[dict[str, Any]]) -> float:
    """Returns the time at which a call ends, in microseconds."""
    return max(event["ts"] + event["dur"] for event in call)


def totals(call: list[dict[str, Any]]) -> list[collections.Counter[str]]:
    """Returns for each rank the total seconds of the steps of each name."""
    ranks: list[collections.Counter[str]] = [
        collections.Counter() for _ in range(1 + max(event["pid"] for event in call))
    ]
    for event in call:
        ranks[event["pid"]][event["name"]] += event["dur"] / 1e6
    return ranks


def _print_call(number, call):
    print(f"call {number}: {call[0]['cat']}, {(end(call) - start(call)) / 1e6:.4f} s")
    for rank, seconds in enumerate(totals(call)):
        parts = [f"{name} {value:.4f}" for name, value in seconds.most_common()]
        if parts:  # else it belongs to another process
            print(f"  rank {rank}: {', '.join(parts)}")


def draw(call: list[dict[str, Any]], begin: float = 0.0, until: float | None = None) -> Any:
    """Returns a figure of a call's steps between two times, in seconds after its start."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.patches
    import matplotlib.pyplot as plt

    origin = start(call)
    ranks = 1 + max(event["pid"] for event in call)
    names = list(dict.fromkeys(event["name"] for event in sorted(call, key=lambda e: e["ts"])))
    palette: Any = plt.get_cmap("tab20")
    colors = dict(zip(names, palette.colors * 9, strict=False))
    figure, axes = plt.subplots(figsize=(14, 1 + 0.7 * ranks), constrained_layout=True)
    # Only calls on a matrix in host memory use the last two streams.
    streams = max(5, *(1 + event["tid"] for event in call))

    def row(rank, stream):
        return rank * (streams + 0.5) + stream

    bars = collections.defaultdict(list)
    for event in call:
        bar = ((event["ts"] - origin) / 1e6, event["dur"] / 1e6)
        bars[event["pid"], event["tid"], event["name"]].append(bar)
    for (rank, stream, name), spans in bars.items():
        axes.broken_barh(spans, (row(rank, stream), 0.9), color=colors[name], linewidth=0)
    rows = [
        (row(rank, stream) + 0.45, f"rank {rank} {STREAMS[stream]}")
        for rank in range(ranks)
        for stream in range(streams)
    ]
    axes.set_yticks(*zip(*rows, strict=True), fontsize="x-small")
    axes.invert_yaxis()
    last = (end(call) - origin) / 1e6
    axes.set(xlim=(begin, last if until is None else until), xlabel="seconds")
    axes.set_title(call[0]["cat"])
    patches = [matplotlib.patches.Patch(color=colors[name], label=name) for name in names]
    axes.legend(handles=patches, loc="center left", bbox_to_anchor=(1, 0.5), fontsize="x-small")
    return figure


if __name__ == "__main__":
    sys.exit(main())
