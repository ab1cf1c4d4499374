"""Checks wheels together: `python tools/check_wheels.py WHEEL ...`; ci/check_wheels.sh starts it.

Each is one that an index accepts and that has its licences; what auditwheel finds in a plugin is
what its tag claims; all are of one version, and each plugin is there for the same Pythons.
"""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import zipfile

from packaging.metadata import Metadata
from packaging.utils import parse_wheel_filename
from trove_classifiers import classifiers


def manylinux(tag):
    """((major, minor) of glibc, CPU) of a platform tag."""
    major, minor, cpu = re.fullmatch(r"manylinux_(\d+)_(\d+)_(\w+)", tag).groups()
    return (int(major), int(minor)), cpu


def platform_complaints(path, claimed):
    """What auditwheel has against a wheel's platform tag."""
    auditwheel = pathlib.Path(sys.executable).parent / "auditwheel"
    shown = subprocess.run(
        [auditwheel, "show", "--json", path], check=True, capture_output=True, text=True
    )
    report = json.loads(shown.stdout)
    needed = report["overall_tag"]
    try:
        (least, needed_cpu), (glibc, cpu) = manylinux(needed), manylinux(claimed)
    except AttributeError:
        return [f"its tag is {claimed}, and auditwheel's {needed}: neither may be another's"]
    if needed_cpu != cpu or least > glibc:
        return [f"it claims {claimed} and needs {needed}"]
    return []


def complaints(path):
    """What is wrong with one wheel."""
    with zipfile.ZipFile(path) as z:
        names = set(z.namelist())
        (info,) = (n.split("/")[0] for n in names if n.endswith(".dist-info/METADATA"))
        metadata = Metadata.from_email(z.read(f"{info}/METADATA"), validate=True)
    found = [f"no classifier: {c}" for c in metadata.classifiers if c not in classifiers]
    missing = {"LICENSE", "NOTICE"} - set(metadata.license_files or [])
    missing |= {f for f in metadata.license_files or [] if f"{info}/licenses/{f}" not in names}
    found += [f"no licence {name}" for name in sorted(missing)]
    if not {"Homepage", "Source", "Issues", "Changelog"} <= set(metadata.project_urls or {}):
        found.append(f"its links are {sorted(metadata.project_urls or {})}")
    (tag,) = parse_wheel_filename(os.path.basename(path))[3]
    if tag.platform != "any":
        found += platform_complaints(path, tag.platform)
    return found


def together(paths):
    """What is wrong with the wheels as one release."""
    versions, builds = set(), collections.defaultdict(set)
    for path in paths:
        name, version, _, (tag,) = parse_wheel_filename(os.path.basename(path))
        versions.add(str(version))
        if tag.platform != "any":
            builds[name].add((tag.interpreter, tag.platform))
    found = [] if len(versions) == 1 else [f"versions {', '.join(sorted(versions))}"]
    every = set().union(*builds.values())
    found += [f"no {name} for {' '.join(b)}" for name in builds for b in every - builds[name]]
    return found


def main(paths):
    failed = False
    for path in paths:
        found = complaints(path)
        failed |= bool(found)
        print(f"{os.path.basename(path)}: {'; '.join(found) or 'ok'}")
    for complaint in together(paths):
        failed = True
        print(f"all wheels: {complaint}")
    sys.exit(failed)


if __name__ == "__main__":
    main(sys.argv[1:])
