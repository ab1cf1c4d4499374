"""The CUDA plugins import without CUDA; all that they ask of NVIDIA's libraries is there."""

import importlib
import os
import pathlib

import pytest

RELEASES = {
    name.removeprefix("SYMBOLS_"): [pathlib.Path(p) for p in paths.split()]
    for name, paths in os.environ.items()
    if name.startswith("SYMBOLS_")
}


def test_all_releases_are_there():
    assert sorted(RELEASES) in (
        ["cu12", "cu12_oldest", "cu13", "cu13_oldest"],
        ["cu13", "cu13_oldest"],
        ["cu12_aarch64", "cu13_aarch64"],
    )


@pytest.mark.parametrize("release", RELEASES)
def test_functions_exist(release):
    """Under the soname that the plugin asks for, both as file name and in the library."""
    defined = {}
    for path in RELEASES[release]:
        soname, *names = path.read_text().splitlines()
        assert path.name == soname + ".symbols"
        defined[soname] = names
    native = importlib.import_module(f"jaxmg_plugin_cuda{release[2:4]}._native")
    asked = {soname: set(functions) for soname, functions in native.symbols()}
    assert asked.pop("libcuda.so.1")  # the driver's, which no wheel has
    assert sorted(asked) == sorted(defined)
    for soname, functions in asked.items():
        missing = functions.difference(defined[soname])
        assert functions and not missing, f"{soname} lacks {missing}"
