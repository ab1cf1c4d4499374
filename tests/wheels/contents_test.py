"""What the wheels hold: names, metadata, symbols, size, and the same bytes each time."""

import base64
import configparser
import csv
import hashlib
import io
import os
import pathlib
import platform
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
CPU = os.environ.get("CPU", platform.machine())
GLIBC = (2, 27)
MAX_BYTES = 5_000_000

# What manylinux has on every machine, and nothing more.
SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
SYSTEM_LIBRARIES |= {{"aarch64": "ld-linux-aarch64.so.1", "x86_64": "ld-linux-x86-64.so.2"}[CPU]}


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
    platform_tag = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{CPU}"
    tag = "py3-none-any" if wheel == "jaxmg" else f"{CPYTHON}-{CPYTHON}-{platform_tag}"
    assert {str(t) for t in tags} == {tag}
    assert (name, version) == (metadata(wheel).name, metadata(wheel).version)
    assert f"Tag: {tag}\n" in read(wheel, r"/WHEEL$").decode()


@pytest.mark.parametrize("wheel", WHEELS)
def test_metadata(wheel):
    m = metadata(wheel)
    assert "3.11" in m.requires_python and "3.10" not in m.requires_python
    assert m.author == "the jaxmg developers"
    assert m.summary and m.keywords and all(m.keywords)
    assert m.description.startswith("# ") and m.description_content_type == "text/markdown"
    kinds = {c.split(" :: ")[0] for c in m.classifiers}
    assert kinds >= {"Development Status", "Intended Audience", "Programming Language", "Topic"}
    assert f"Programming Language :: Python :: 3.{sys.version_info.minor}" in m.classifiers


@pytest.mark.parametrize("wheel", WHEELS)
def test_urls(wheel):
    """The changelog and the documentation are those of this version."""
    m = metadata(wheel)
    home = m.project_urls["Homepage"]
    assert home.startswith("https://")
    assert m.project_urls == {
        "Homepage": home,
        "Source": home,
        "Issues": f"{home}/issues",
        "Documentation": f"{home}/tree/v{m.version}/docs",
        "Changelog": f"{home}/blob/v{m.version}/CHANGELOG.md",
    }


LINK = r"""\]\(([^) ]*)|\b(?:src|href)=["']([^"']*)|^\[[^]]+\]: *(\S*)"""


@pytest.mark.parametrize("wheel", WHEELS)
def test_links_are_absolute(wheel):
    """PyPI shows the README beside no file of the repository."""
    m = metadata(wheel)
    links = [a or b or c for a, b, c in re.findall(LINK, m.description, re.MULTILINE)]
    assert not [link for link in links if not re.match("https?://|#|mailto:", link)]
    assert f"{m.project_urls['Homepage']}/blob/v{m.version}/LICENSE" in links


def test_absolute_links():
    text = """[a](b.md#c) [d](#e) [f](https://g) ![h](i.svg) <a href="j"><img src="k"> [l][m] x](y
[m]: n.md
[![o](p.svg)](q.md)"""
    assert build_wheel.absolute_links(text, "https://u", "1") == (
        """[a](https://u/blob/v1/b.md#c) [d](#e) [f](https://g) ![h](https://u/raw/v1/i.svg) """
        """<a href="https://u/blob/v1/j"><img src="https://u/raw/v1/k"> [l][m] """
        """x](https://u/blob/v1/y
[m]: https://u/blob/v1/n.md
[![o](https://u/raw/v1/p.svg)](https://u/blob/v1/q.md)"""
    )


@pytest.mark.parametrize("wheel", WHEELS)
def test_licenses(wheel):
    """Each text that the metadata name is there, and no other; LICENSE and NOTICE are."""
    m = metadata(wheel)
    assert "Apache-2.0" in m.license_expression.split(" AND ")
    with zipfile.ZipFile(WHEELS[wheel]) as z:
        folder = f"{wheel}-{m.version}.dist-info/licenses/"
        texts = {n.removeprefix(folder) for n in z.namelist() if n.startswith(folder)}
    assert sorted(texts) == sorted(m.license_files)
    assert texts >= {"LICENSE", "NOTICE"}
    assert b"Apache License" in read(wheel, r"/licenses/LICENSE$")


def test_the_package_alone_is_all_ours():
    m = metadata("jaxmg")
    assert (m.license_expression, m.license_files) == ("Apache-2.0", ["LICENSE", "NOTICE"])


# What is linked in: a part of its license's name, a line of its text.
THIRD_PARTY = {
    "pybind11/LICENSE": ("BSD-3-Clause", "Copyright (c) 2016 Wenzel Jakob"),
    "libcxx/LICENSE.TXT": ("LLVM-exception", "The libc++ library"),
    "libcxxabi/LICENSE.TXT": ("LLVM-exception", "The libc++abi library"),
    "libunwind/LICENSE.TXT": ("LLVM-exception", "The libunwind library"),
    "ziglang/LICENSE": ("MIT", "Copyright (c) Zig contributors"),
}


@pytest.mark.parametrize("wheel", PLUGINS)
def test_third_party_licenses(wheel):
    """Of all that is linked in, the text is there, and NOTICE says where."""
    m = metadata(wheel)
    notice = read(wheel, r"/licenses/NOTICE$").decode()
    assert set(m.license_files) == {"LICENSE", "NOTICE", *THIRD_PARTY}
    for place, (name, line) in THIRD_PARTY.items():
        assert line in read(wheel, f"/licenses/{place}$").decode()
        assert name in m.license_expression and name in notice and place in notice


@pytest.mark.parametrize("wheel", WHEELS)
def test_description_asks_for_this_major_version(wheel):
    """PyPI's jaxmg before 2 is another package."""
    m = metadata(wheel)
    assert f'"jaxmg[cpu]>={m.version.major}"' in m.description
    found = re.findall(r"jaxmg\[\w+\]>=([\d.]+)", m.description)
    assert set(found) == {str(m.version.major)}


def test_types():
    """They stand in the modules, and a type checker reads them where py.typed is."""
    assert read("jaxmg", r"^jaxmg/py\.typed$") == b""
    assert b"@overload" in read("jaxmg", r"^jaxmg/_cholesky/potrs\.py$")
    with zipfile.ZipFile(WHEELS["jaxmg"]) as z:
        assert not [name for name in z.namelist() if name.endswith(".pyi")]


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
        "lineax": {"lineax"},
        "optax": {"optax>=0.2.6"},
        "plot": {"matplotlib"},
    }
    assert sorted(metadata("jaxmg").provides_extra) == sorted(extras)


@pytest.mark.parametrize("wheel", PLUGINS)
def test_requirements_of_plugin(wheel):
    assert {str(r) for r in metadata(wheel).requires_dist} == {
        "jaxmg_plugin_cpu": {"jaxlib>=0.6.2", "scipy"},
        "jaxmg_plugin_cuda12": {"jaxlib>=0.6.2", *_for_cusolvermp(12)},
        "jaxmg_plugin_cuda13": {"jaxlib>=0.7.2", *_for_cusolvermp(13)},
    }[wheel]


def _for_cusolvermp(cuda):
    names = f"nvidia-cusolvermp-cu{cuda}>=0.9.1", f"nvidia-nccl-cu{cuda}>=2.29"
    return {f'{name}; extra == "mp"' for name in names}


@pytest.mark.parametrize("wheel", PLUGINS)
def test_entry_point(wheel):
    parser = configparser.ConfigParser()
    parser.read_string(read(wheel, r"/entry_points\.txt$").decode())
    assert dict(parser["jaxmg_plugins"]) == {wheel.removeprefix("jaxmg_plugin_"): wheel}


@pytest.mark.parametrize("wheel", PLUGINS)
def test_glibc_and_libraries(wheel):
    """Loads wherever glibc is what the tag says, and brings no C++ runtime to fight over."""
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
    assert max(glibc) <= GLIBC, versions


@pytest.mark.parametrize("wheel", PLUGINS)
def test_machine(wheel):
    assert elf(wheel)["e_machine"] == {"aarch64": "EM_AARCH64", "x86_64": "EM_X86_64"}[CPU]
    # Linux on aarch64 may have pages of 64 KiB, as on Grace.
    page = {"aarch64": 0x10000, "x86_64": 0x1000}[CPU]
    aligned = [s["p_align"] for s in elf(wheel).iter_segments("PT_LOAD")]
    assert aligned and min(aligned) >= page


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
