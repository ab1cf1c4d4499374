"""Downloads one pinned wheel with pip and unpacks what is wanted of it.

  fetch.py DEST REQUIREMENT SHA256 [--python-version V] [--library] [PATTERN ...]

pip checks the hash, and its configuration (mirror, proxy, certificates, cache)
holds here as well.  With patterns (fnmatch, on paths inside the wheel) only the
matching members are written, so a 600 MB wheel of which we need two headers
leaves two headers behind.  --library lays the files out as an installed package
and compiles them.
"""

import argparse
import compileall
import fnmatch
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile


def download(requirement, sha256, python_version, folder):
    """Puts the wheel into `folder` and returns its path."""
    requirements = os.path.join(folder, "requirements.txt")
    with open(requirements, "w") as f:
        f.write(f"{requirement} --hash=sha256:{sha256}\n")
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download"]
    command += ["--no-deps", "--no-input", "--require-hashes", "--only-binary=:all:"]
    if python_version:
        command += ["--python-version", python_version]
    command += ["--dest", folder, "--requirement", requirements]
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    subprocess.run(command, check=True, env={**env, "TMPDIR": folder})
    (wheel,) = (f for f in os.listdir(folder) if f.endswith(".whl"))
    return os.path.join(folder, wheel)


def unpack(wheel, dest, patterns, library):
    with zipfile.ZipFile(wheel) as z:
        for info in z.infolist():
            name = info.filename
            if (
                info.is_dir()
                or patterns
                and not any(fnmatch.fnmatchcase(name, p) for p in patterns)
            ):
                continue
            executable = info.external_attr >> 16 & 0o111
            if library:
                if "/tests/" in name:  # a third of all files, and nobody imports them
                    continue
                name = re.sub(r"^[^/]*\.data/(purelib|platlib)/", "", name)
                name, script = re.subn(r"^[^/]*\.data/scripts/", "bin/", name)
                executable = executable or script
            path = os.path.join(dest, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with z.open(info) as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target)
            if executable:
                os.chmod(path, 0o755)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dest")
    parser.add_argument("requirement")
    parser.add_argument("sha256")
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--python-version")
    parser.add_argument("--library", action="store_true")
    args = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        wheel = download(
            args.requirement, args.sha256, args.python_version, os.path.abspath(folder)
        )
        unpack(wheel, args.dest, args.patterns, args.library)
    if args.library:
        # The tests can't write here, and each would compile JAX anew.
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(args.dest, quiet=2, invalidation_mode=mode)


main()
