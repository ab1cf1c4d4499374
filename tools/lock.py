#!/usr/bin/env python3
"""Resolves third_party/pypi/requirements.txt for every supported Python and writes the lock.

    tools/lock.py > third_party/pypi/lock.bzl

Each Python's own pip resolves for it, so all of them must be on the machine (tools/find_python.sh
finds them; tools/debian_python.sh installs a missing one). The lock holds each distribution's
version, the hash of its wheel and its run-time requirements.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

from pip._vendor.packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def normalize(name):
    return re.sub(r"[-_.]+", "_", name).lower()


def resolve(version):
    find = [ROOT / "tools/find_python.sh", version]
    python = subprocess.run(find, check=True, capture_output=True, text=True).stdout.split("\n")[0]
    with tempfile.NamedTemporaryFile("r", suffix=".json") as f:
        pip = [python, "-m", "pip", "install", "-qq", "--dry-run", "--ignore-installed"]
        pip += ["--only-binary=:all:", "--report", f.name]
        pip += ["-r", ROOT / "third_party/pypi/requirements.txt"]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        report = json.load(f)
    packages = {}
    for item in report["install"]:
        metadata = item["metadata"]
        requirements = map(Requirement, metadata.get("requires_dist", []))
        packages[normalize(metadata["name"])] = (
            metadata["version"],
            item["download_info"]["archive_info"]["hashes"]["sha256"],
            sorted(
                normalize(r.name)
                for r in requirements
                if not r.marker or r.marker.evaluate({**report["environment"], "extra": ""})
            ),
        )
    return packages


def main():
    print('"""Written by tools/lock.py; do not edit."""\n')
    print("# Python: distribution: (version, sha256, dependencies)\nLOCK = {")
    for python in PYTHONS:
        print(f'    "{python}": {{')
        for name, (version, sha256, deps) in sorted(resolve(python).items()):
            deps = json.dumps(sorted(set(deps)))
            print(f'        "{name}": ("{version}", "{sha256}", {deps}),')
        print("    },")
    print("}")


if __name__ == "__main__":
    main()
