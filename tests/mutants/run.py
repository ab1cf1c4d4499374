"""Puts faults into a copy of the tree, one at a time, and demands that a test finds each.

    run.py [--cache FOLDER] [--limit 120] [--jobs N] [--out FILE] [WORD ...]
    run.py --check [WORD ...]      only whether they can still be put in, after sources have changed

With words, only the faults that contain one of them. --out is a file to which a record of the run
is appended: which test found which fault, and why none found the others.

The folders beside this file have the faults, a file for each source: a text that occurs once in the
source, another one in its place, and the tests that have to fail within the limit (see texts.py). A
test that takes longer has found nothing: nobody would wait for it. C++ is built by the host's g++,
and what did not change is taken from a cache; Python is this interpreter's, in which jax, scipy,
pybind11 and the tests' own packages are installed.

Exits with 1 where a fault survives without a reason, has a reason and doesn't survive, can't be
put in, or where a test fails without any.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time

import texts
from texts import Broken

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAGS = ["-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-w", "-pthread"]
# Where the texts of the wheels come from, and how they are called: see tools/wheel.bzl.
WHEELS = {"jaxmg": "py3-none-any", "jaxmg_plugin_cpu": None}


def run(command, folder, limit=None, **environment):
    """(exit status or None after `limit` seconds, output), with all processes that it started."""
    process = subprocess.Popen(
        list(map(str, command)), cwd=folder, text=True, errors="replace", start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **environment},
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        return None, process.communicate()[0]


def list_files():
    """The files of the tree: what git tracks or would track."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    return [name for name in sorted({*names}) if name and (ROOT / name).is_file()]


def is_packaged(file):
    """Whether the wheel "jaxmg" has this file: `sources` of jaxmg/BUILD."""
    return file.startswith("jaxmg/") and file not in ("jaxmg/BUILD", "jaxmg/pyproject.toml")


def check(mutants):
    """Prints those that can't be put in; how many they are."""
    broken, files = 0, list_files()
    for mutant in mutants:
        try:
            texts.put(mutant, ROOT, files)
        except Broken as error:
            broken += 1
            print(f"{mutant['file']}: {mutant['what']}: {error}")
    print(f"{len(mutants)} faults, {broken} can't be put in")
    return broken


class Objects:
    """Compiled sources by the contents of all that they include, for every tree."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def compile(self, tree, source, flags):
        """The object file of `source`."""
        name = hashlib.sha256(repr((source, flags)).encode()).hexdigest()[:16]
        known = self.folder / f"{name}.deps"
        if known.exists():
            cached = self._object(tree, name, known.read_text().split())
            if cached.exists():
                return cached
        made = self.folder / f"{name}.{threading.get_ident()}"
        command = ["g++", *flags, "-MMD", "-MF", f"{made}.d", "-c", source, "-o", f"{made}.o"]
        status, output = run(command, tree)
        if status:
            raise Broken(f"{source} does not compile:\n{output}")
        text = pathlib.Path(f"{made}.d").read_text().split(":", 1)[1].replace("\\\n", " ")
        dependencies = [path for path in text.split() if not path.startswith("/")]
        known.write_text("\n".join(dependencies))
        cached = self._object(tree, name, dependencies)
        os.replace(f"{made}.o", cached)
        return cached

    def _object(self, tree, name, dependencies):
        content = hashlib.sha256()
        for path in dependencies:
            file = tree / path
            content.update(file.read_bytes() if file.exists() else b"")
        return self.folder / f"{name}-{content.hexdigest()[:16]}.o"


class Tree:
    """A copy of the sources, in which tests are built and run."""

    def __init__(self, folder, objects, limit):
        self.folder, self.objects, self.limit = folder, objects, limit
        self.files = list_files()
        for name in self.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)

    def run(self, test):
        """(exit status or None, output) of `cc/NAME`, `python/FILE ...` or `wheels/FILE ...`."""
        kind, _, rest = test.partition("/")
        if kind == "cc":
            return run([self.cc_test(rest)], self.folder, self.limit)
        path = f"{self.folder}:{self.plugin()}"
        folder = self.folder / "tests" / kind
        if kind == "wheels":
            folder, path = self.wheels(), f"{path}:{folder}"
            rest = f"{self.folder}/tests/wheels/{rest}"
        words = [word.replace("~", " ") for word in rest.split()]
        command = [sys.executable, self.folder / "tests/pytest_main.py", "-x", *words]
        return run(
            command, folder, self.limit, PYTHONPATH=path, WHEELS=" ".join(WHEELS),
            PYTHONDONTWRITEBYTECODE="1",
        )  # fmt: skip

    def sources(self, *folders):
        """The C++ files below these folders of xla_ffi, without those for CUDA."""
        for file in sorted(self.files):
            top, *path = file.split("/")
            if top == "xla_ffi" and path[0] in folders and file.endswith(".cc"):
                if not any(part.startswith("cuda") for part in path):
                    yield file

    def compiled(self, sources, *flags):
        return [self.objects.compile(self.folder, s, (*FLAGS, "-I.", *flags)) for s in sources]

    def engine(self):
        return self.compiled(self.sources("base", "comm", "device", "engine", "layout"))

    def link(self, out, objects, *flags):
        out.parent.mkdir(parents=True, exist_ok=True)
        command = ["g++", *objects, "-o", out, "-pthread", "-ldl", *flags]
        status, output = run(command, self.folder)
        if status:
            raise Broken(f"{out.name} does not link:\n{output}")
        return out

    def cc_test(self, name):
        harness = [f for f in self.files if re.match(r"tests/cc/support/.*\.cc$", f)]
        sources = [f"tests/cc/{name}.cc", *harness]
        objects = self.compiled(sources, "-Itests/cc/support/host_cuda")
        return self.link(self.folder / "out" / name, [*objects, *self.engine()])

    def plugin(self):
        """The folder that the CPU plugin is installed in."""
        import pybind11

        # Those that Bazel's plugins are compiled with: newer ones name some structures otherwise.
        headers = os.environ["JAXMG_XLA_HEADERS"]
        include = (headers, pybind11.get_include(), sysconfig.get_path("include"))
        flags = [f"-I{folder}" for folder in include]
        sources = [*self.sources("handlers"), "xla_ffi/plugin/module.cc"]
        package = self.folder / "out/site/jaxmg_plugin_cpu"
        objects = [*self.compiled(sources, *flags), *self.engine()]
        script = f"-Wl,--version-script={self.folder}/xla_ffi/plugin/export.lds"
        self.link(package / "_native.so", objects, "-shared", "-static-libstdc++", script)
        shutil.copy2(self.folder / "xla_ffi/plugin/jaxmg_plugin_cpu/__init__.py", package)
        info = package.parent / "jaxmg_plugin_cpu-0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: jaxmg-plugin-cpu\nVersion: 0")
        (info / "entry_points.txt").write_text("[jaxmg_plugins]\ncpu = jaxmg_plugin_cpu\n")
        return package.parent

    def wheels(self):
        """The folder that the wheels are in."""
        names = dict(
            re.findall(r'^(\w+) = "(.*)"$', (self.folder / "version.bzl").read_text(), re.M)
        )
        version, url = names["VERSION"], names["URL"]
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        out = self.folder / "out/wheels"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        for name, tag in WHEELS.items():
            tag = tag or f"{python}-{python}-manylinux_2_27_x86_64"
            if name == "jaxmg":
                folder, pyproject = self.folder, "jaxmg/pyproject.toml"
                files = [folder / file for file in self.files if is_packaged(file)]
            else:
                folder, pyproject = self.plugin(), "xla_ffi/plugin/pyproject_cpu.toml"
                files = sorted((folder / name).iterdir())
            command = [sys.executable, "tools/build_wheel.py", "wheel", "--tag", tag]
            command += ["--common", "tools/wheel.toml", "--pyproject", pyproject]
            command += ["--readme", "README.md", "--url", url]
            command += ["--license=LICENSE=LICENSE", "--license=NOTICE=NOTICE"]
            command += [f"--replace=@VERSION@={version}", f"--replace=@URL@={url}"]
            command += ["--replace=@LICENSES@=Apache-2.0"]
            command += [f"--file={file.relative_to(folder)}={file}" for file in files]
            status, output = run([*command, out / f"{name}-{version}-{tag}.whl"], self.folder)
            if status:
                raise Broken(f"{name} can't be packed:\n{output}")
        return out

    def try_fault(self, mutant):
        """(test that found it or None, what happened)."""
        path, text = texts.put(mutant, self.folder, self.files)
        file = self.folder / path
        original = file.read_text()
        file.write_text(text)
        said = []
        try:
            for test in mutant["tests"]:
                start = time.monotonic()
                status, _ = self.run(test)
                seconds = f"{time.monotonic() - start:.0f} s"
                if status:
                    return test, f"found by {test} in {seconds}"
                said.append(f"{test} {'passed' if status == 0 else 'hung'} in {seconds}")
        finally:
            file.write_text(original)
        return None, "; ".join(said)


def judge(mutant, found, said):
    """(all is as it should be, line)."""
    reason = mutant.get("survives")
    if found:
        return not reason, said + (", though it should survive" if reason else "")
    return bool(reason), f"SURVIVES: {said}" + (f" ({reason})" if reason else "")


def record(path, outcomes, failures, seconds):
    """Appends what came out of a run: (fault, test or None, what happened) of each."""
    sys.path.append(str(ROOT / "benchmarks"))
    import records

    found = {mutant["what"]: test for mutant, test, _ in outcomes if test}
    entry = {
        **records.origin(None, records.python("tests/mutants/run.py", sys.argv[1:])),
        "faults": len(outcomes),
        "found": len(found),
        "failures": failures,
        "seconds": round(seconds),
        "found_by": found,
        "survived": {
            mutant["what"]: {"said": said, "reason": mutant.get("survives")}
            for mutant, test, said in outcomes
            if not test
        },
    }
    with open(path, "a") as file:
        print(json.dumps(entry), file=file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("/tmp/jaxmg_mutants"))
    parser.add_argument("--limit", type=float, default=120, help="seconds for a test")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", help="file to append to")
    parser.add_argument("--check", action="store_true", help="only whether they can be put in")
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    mutants = texts.load(pathlib.Path(__file__).parent)
    wanted = [m for m in mutants if not options.words or any(
        word in f"{m['what']} {m['source']} {m['file']}" for word in options.words)]  # fmt: skip

    if options.check:
        sys.exit(1 if check(wanted) else 0)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        trees = queue.SimpleQueue()
        for job in range(options.jobs):
            objects = Objects(options.cache)
            trees.put(Tree(pathlib.Path(work, str(job)), objects, options.limit))

        def in_tree(work):
            tree = trees.get()
            try:
                return work(tree)
            except Broken as error:
                return None, f"BROKEN: {error}"
            finally:
                trees.put(tree)

        failures = 0
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            tests = sorted({test for mutant in wanted for test in mutant["tests"]})
            outcomes = pool.map(lambda test: in_tree(lambda tree: tree.run(test)), tests)
            for test, (status, output) in zip(tests, outcomes, strict=True):
                if status != 0:
                    failures += 1
                    print(f"{test} fails without a fault: {output[-2000:]}", flush=True)
            outcomes = pool.map(lambda m: in_tree(lambda tree: tree.try_fault(m)), wanted)
            tried = []
            for mutant, (test, said) in zip(wanted, outcomes, strict=True):
                good, line = judge(mutant, test, said)
                good = good and not said.startswith("BROKEN")
                tried.append((mutant, test, said))
                failures += not good
                print(f"{'ok    ' if good else 'FAILED'} {mutant['what']}: {line}", flush=True)
    if options.out:
        record(options.out, tried, failures, time.monotonic() - start)
    found = sum(test is not None for _, test, _ in tried)
    print(f"{len(wanted)} faults: {found} found, {len(wanted) - found} not, {failures} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
