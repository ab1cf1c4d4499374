"""Checks wheels together: `python tools/check_wheels.py WHEEL ...`; ci/check_wheels.sh starts it.

An index must accept each wheel, and each must have its licences. By auditwheel, a plugin must need
no more than its platform tag claims. All wheels must have the same version, and none may be
missing.
"""

import itertools
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
    """Returns ((major, minor) of glibc, CPU) of a platform tag."""
    major, minor, cpu = re.fullmatch(r"manylinux_(\d+)_(\d+)_(\w+)", tag).groups()
    return (int(major), int(minor)), cpu


def platform_complaints(path, claimed):
    """Returns auditwheel's complaints about a wheel's platform tag."""
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


def read(path):
    """Returns (names in a wheel, its .dist-info, its metadata)."""
    with zipfile.ZipFile(path) as z:
        names = set(z.namelist())
        (info,) = (n.split("/")[0] for n in names if n.endswith(".dist-info/METADATA"))
        return names, info, Metadata.from_email(z.read(f"{info}/METADATA"), validate=True)


def complaints(path):
    """Returns the errors of one wheel."""
    names, info, metadata = read(path)
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
    """Returns the errors of the wheels as one release."""
    there = [parse_wheel_filename(os.path.basename(path)) for path in paths]
    versions = {str(version) for _, version, _, _ in there}
    pure = [path for path, (name, *_) in zip(paths, there, strict=True) if name == "jaxmg"]
    if len(versions) != 1 or len(pure) != 1:
        return [f"versions {', '.join(sorted(versions))}, {len(pure)} wheels jaxmg"]
    # Every plugin that the package's extras name, for every Python that it declares.
    metadata = read(pure[0])[2]
    plugins = {r.name for r in metadata.requires_dist if r.name.startswith("jaxmg-plugin-")}
    pythons = {f"cp3{c.split('3.')[1]}" for c in metadata.classifiers if "Python :: 3." in c}
    tags = {(str(name), tag.interpreter, tag.platform) for name, _, _, (tag,) in there}
    platforms = {platform for name, _, platform in tags if name != "jaxmg"}
    expected = itertools.product(plugins, pythons, platforms)
    return [f"no {' '.join(wheel)}" for wheel in sorted(set(expected) - tags)]


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
