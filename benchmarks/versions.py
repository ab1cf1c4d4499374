"""Compares two versions of jaxmg from records that run.py wrote for each in turns.

    versions.py OLD NEW      files of records

Prints the median of all runs of a case with either version, in milliseconds, the ratio new / old,
and the spread of the medians of the old version's processes: smaller differences are noise.
"""

import collections
import json
import pathlib
import statistics

from absl import app

CASE = ("routine", "dtype", "n", "nrhs", "T_A", "ranks", "backend", "precision")


def read(path):
    """Returns {case: a list of runs for each process that measured it}."""
    found = collections.defaultdict(list)
    for line in pathlib.Path(path).read_text().splitlines():
        entry = json.loads(line)
        found[tuple(entry[key] for key in CASE)].append(entry["runs"])
    return found


def middle(processes):
    return statistics.median(seconds for runs in processes for seconds in runs)


def spread(processes):
    medians = [statistics.median(runs) for runs in processes]
    return max(medians) / min(medians) - 1


def table(old, new):
    """Yields rows of (case, median of old, of new, new / old, spread of old)."""
    for case in old:
        if case in new:
            one, other = middle(old[case]), middle(new[case])
            yield case, one, other, other / one, spread(old[case])


def main(argv):
    if len(argv) != 3:
        raise app.UsageError("name two files of records, the old and the new")
    old, new = map(read, argv[1:])
    print("| case | old, ms | new, ms | new / old | spread of old |\n|---|---|---|---|---|")
    for case, one, other, ratio, apart in table(old, new):
        words = (f"{key}={value}" for key, value in zip(CASE, case, strict=True) if value)
        figures = f"{1e3 * one:.3f} | {1e3 * other:.3f} | {ratio:.4f} | {apart:.2%}"
        print(f"| {' '.join(words)} | {figures} |")
    for case in old.keys() ^ new.keys():
        print(f"only in one file: {case}")
    return 1 if old.keys() != new.keys() else 0


if __name__ == "__main__":
    app.run(main)
