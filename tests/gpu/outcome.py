"""Prints a record of the outcome of a script's step, for benchmarks/results/checks.jsonl.

    outcome.py SCRIPT STEP RESULT SECONDS LOG

Needs benchmarks/ on PYTHONPATH. The counts are those that pytest, the programs in this folder and
compute-sanitizer print; counts that a log doesn't have are left out.
"""

import collections
import json
import pathlib
import re
import subprocess
import sys

import records

COUNTS = {
    "failed": r"(\d+) failed.* in [\d.]+s",
    "passed": r"(\d+) passed.* in [\d.]+s",
    "skipped": r"(\d+) skipped.* in [\d.]+s",
    "failures": r"^(\d+) failures$",
    "sanitizer_errors": r"ERROR SUMMARY: (\d+) error",
    "sanitizer_hazards": r"RACECHECK SUMMARY: (\d+) hazard",
}


def counts(log):
    found = {name: re.findall(pattern, log, re.MULTILINE) for name, pattern in COUNTS.items()}
    last = {name: int(numbers[-1]) for name, numbers in found.items() if numbers}
    checks = len(re.findall(r"^ok  ", log, re.MULTILINE))
    return last | ({"checks": checks} if checks else {})


def machine():
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    names = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    return ", ".join(f"{n} x {name}" for name, n in collections.Counter(names).items())


def main():
    script, step, result, seconds, log = sys.argv[1:]
    record = {
        **records.origin(machine(), f"{script} WHEELS RESULTS {step}"),
        "step": step,
        "result": result,
        "seconds": int(seconds),
        **counts(pathlib.Path(log).read_text(errors="replace")),
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
