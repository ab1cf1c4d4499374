"""What the wheels hold: names, metadata, symbols, size, and the same bytes each time."""

import base64
import configparser
import csv
import hashlib
import io
import os
import pathlib
import re
import sys
import zipfile

import pytest
from elftools.elf.elffile import ELFFile
from packaging.metadata import Metadata
from packaging.utils import parse_wheel_filename

from tools import build_wheel

WHEELS = {p.name.split("-")[0]: p for p in pathlib.Path().glob("**/*.whl")}
PLUGINS = [name for name in WHEELS if name != "jaxmg"]
CPYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
MAX_BYTES = 3_000_000

# What manylinux_2_28 has on every machine, and nothing more.
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
SYSTEM_LIBRARIES |= {"ld-linux-x86-64.so.2"}


def read(wheel, pattern):
    with zipfile.ZipFile(WHEELS[wheel]) as z:
        (name,) = (n for n in z.namelist() if re.search(pattern, n))
        return z.read(name)


def metadata(wheel):
    return Metadata.from_email(read(wheel, r"\.dist-info/METADATA$"), validate=True)


def elf(wheel):
    return ELFFile(io.BytesIO(read(wheel, r"/_native\.so$")))


def test_all_wheels_are_there():
    assert sorted(WHEELS) == os.environ["WHEELS"].split()


@pytest.mark.parametrize("wheel", WHEELS)
def test_tag(wheel):
    name, version, _, tags = parse_wheel_filename(WHEELS[wheel].name)
    tag = "py3-none-any" if wheel == "jaxmg" else f"{CPYTHON}-{CPYTHON}-manylinux_2_28_x86_64"
    assert {str(t) for t in tags} == {tag}
    assert (name, version) == (metadata(wheel).name, metadata(wheel).version)
    assert f"Tag: {tag}\n" in read(wheel, r"/WHEEL$").decode()


@pytest.mark.parametrize("wheel", WHEELS)
def test_metadata(wheel):
    m = metadata(wheel)
    assert m.license_expression == "Apache-2.0"
    assert "3.11" in m.requires_python and "3.10" not in m.requires_python
    assert m.description.startswith("# ")
    assert b"Apache License" in read(wheel, r"/licenses/LICENSE$")


def test_types():
    """A type checker looks at neither without the other."""
    assert read("jaxmg", r"^jaxmg/py\.typed$") == b""
    assert b"@overload" in read("jaxmg", r"^jaxmg/__init__\.pyi$")


def test_requirements():
    requires = metadata("jaxmg").requires_dist
    base = {str(r) for r in requires if not r.marker}
    assert base == {"jax>=0.6.2", "numpy"}
    extras = {}
    for r in requires:
        if r.marker:
            (extra,) = re.findall(r'extra == "(.*)"', str(r.marker))
            r.marker = None
            extras.setdefault(extra, set()).add(str(r))
    version = metadata("jaxmg").version
    plugin = {p: f"jaxmg-plugin-{p}=={version}" for p in ("cpu", "cuda12", "cuda13")}
    assert extras == {
        "cpu": {plugin["cpu"]},
        "cuda12": {plugin["cuda12"], "jax[cuda12]>=0.6.2"},
        "cuda12-local": {plugin["cuda12"], "jax[cuda12-local]>=0.6.2"},
        "cuda13": {plugin["cuda13"], "jax[cuda13]>=0.7.2"},
        "cuda13-local": {plugin["cuda13"], "jax[cuda13-local]>=0.7.2"},
        "plot": {"matplotlib"},
    }
    assert sorted(metadata("jaxmg").provides_extra) == sorted(extras)


@pytest.mark.parametrize("wheel", PLUGINS)
def test_requirements_of_plugin(wheel):
    assert {str(r) for r in metadata(wheel).requires_dist} == {
        "jaxmg_plugin_cpu": {"jaxlib>=0.6.2", "scipy"},
        "jaxmg_plugin_cuda12": {"jaxlib>=0.6.2"},
        "jaxmg_plugin_cuda13": {"jaxlib>=0.7.2"},
    }[wheel]


@pytest.mark.parametrize("wheel", PLUGINS)
def test_entry_point(wheel):
    parser = configparser.ConfigParser()
    parser.read_string(read(wheel, r"/entry_points\.txt$").decode())
    assert dict(parser["jaxmg_plugins"]) == {wheel.removeprefix("jaxmg_plugin_"): wheel}


@pytest.mark.parametrize("wheel", PLUGINS)
def test_glibc_and_libraries(wheel):
    """Loads wherever glibc is 2.28 or newer, and brings no C++ runtime to fight over."""
    dynamic = elf(wheel).get_section_by_name(".dynamic")
    needed = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}
    assert needed <= SYSTEM_LIBRARIES
    assert not list(dynamic.iter_tags("DT_RUNPATH")) + list(dynamic.iter_tags("DT_RPATH"))
    versions = {
        aux.name
        for _, auxiliaries in elf(wheel).get_section_by_name(".gnu.version_r").iter_versions()
        for aux in auxiliaries
    }
    glibc = [tuple(map(int, v[6:].split("."))) for v in versions if v.startswith("GLIBC_")]
    assert len(glibc) == len(versions), versions
    assert max(glibc) <= (2, 28), versions


@pytest.mark.parametrize("wheel", PLUGINS)
def test_exports_only_the_module(wheel):
    symbols = elf(wheel).get_section_by_name(".dynsym").iter_symbols()
    assert {s.name for s in symbols if s.name and s["st_shndx"] != "SHN_UNDEF"} == {
        "PyInit__native"
    }


@pytest.mark.parametrize("wheel", WHEELS)
def test_size(wheel):
    assert WHEELS[wheel].stat().st_size < MAX_BYTES


@pytest.mark.parametrize("wheel", WHEELS)
def test_nothing_but_the_package(wheel):
    with zipfile.ZipFile(WHEELS[wheel]) as z:
        tops = {name.split("/")[0] for name in z.namelist()}
        assert tops == {wheel, f"{wheel}-{metadata(wheel).version}.dist-info"}
        assert not [n for n in z.namelist() if "__pycache__" in n or n.endswith("BUILD")]


@pytest.mark.parametrize("wheel", WHEELS)
def test_record(wheel):
    """Lists every file with its digest and size, as pip and those who audit an installation read
    it."""
    with zipfile.ZipFile(WHEELS[wheel]) as z:
        (name,) = (n for n in z.namelist() if n.endswith(".dist-info/RECORD"))
        expected = {name: ("", "")}
        for other in set(z.namelist()) - {name}:
            data = z.read(other)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            expected[other] = (f"sha256={digest}", str(len(data)))
        rows = list(csv.reader(io.StringIO(z.read(name).decode())))
    assert {path: tuple(rest) for path, *rest in rows} == expected
    assert len(rows) == len(expected)


@pytest.mark.parametrize("wheel", WHEELS)
def test_same_bytes_when_built_again(wheel, tmp_path):
    with zipfile.ZipFile(WHEELS[wheel]) as z:
        # Not the time either: it may be the same by chance, to the two seconds that it is kept in.
        assert {info.date_time for info in z.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        contents = {n: z.read(n) for n in reversed(z.namelist()) if not n.endswith("/RECORD")}
    umask = os.umask(0o077)
    try:
        dist_info = f"{wheel}-{metadata(wheel).version}.dist-info"
        build_wheel.write_wheel(tmp_path / "again.whl", dist_info, contents)
    finally:
        os.umask(umask)
    assert (tmp_path / "again.whl").read_bytes() == WHEELS[wheel].read_bytes()
