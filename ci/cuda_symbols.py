"""Looks up every CUDA function that a plugin asks for in NVIDIA's libraries.

    cuda_symbols.py PLUGIN_WHEEL WHEEL ...

The plugin's wheel must be for the Python that runs this. The other wheels are NVIDIA's: each
library must be in one of them, under the soname that the plugin asks for. No GPU is needed.
"""

import importlib.util
import pathlib
import struct
import sys
import tempfile
import zipfile


def dynamic(data):
    """(soname, names of the defined dynamic symbols) of a 64-bit little-endian ELF file."""
    (section_offset,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = []
    for i in range(count):
        _, kind, _, _, offset, length, link = struct.unpack_from(
            "<IIQQQQI", data, section_offset + i * size
        )
        sections.append((kind, offset, length, link))

    def text(table, at):
        start = sections[table][1] + at
        return data[start : data.index(b"\0", start)].decode()

    soname, names = None, set()
    for kind, offset, length, link in sections:
        if kind == 6:  # SHT_DYNAMIC
            for at in range(offset, offset + length, 16):
                tag, value = struct.unpack_from("<QQ", data, at)
                if tag == 14:  # DT_SONAME
                    soname = text(link, value)
        elif kind == 11:  # SHT_DYNSYM
            for at in range(offset, offset + length, 24):
                name, _, _, section = struct.unpack_from("<IBBH", data, at)
                if section != 0:
                    names.add(text(link, name))
    return soname, names


def plugin_symbols(wheel, folder):
    """What the native module in the wheel says that it asks for."""
    with zipfile.ZipFile(wheel) as z:
        (member,) = (name for name in z.namelist() if name.endswith("/_native.so"))
        path = z.extract(member, folder)
    spec = importlib.util.spec_from_file_location("_native", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.symbols()


def read(wheels, soname):
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as z:
            for name in z.namelist():
                if pathlib.PurePath(name).name == soname:
                    return z.read(name)
    return None


def main():
    plugin, *wheels = sys.argv[1:]
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        symbols = plugin_symbols(plugin, folder)
    for soname, functions in symbols:
        if soname == "libcuda.so.1":  # the driver's; no wheel has it
            continue
        data = read(wheels, soname)
        if data is None:
            print(f"{soname}: in none of the wheels")
            bad += 1
            continue
        actual, names = dynamic(data)
        missing = [name for name in functions if name not in names]
        bad += len(missing) + (actual != soname)
        print(f"{soname} (soname {actual}): {len(functions)} functions, missing: {missing}")
    sys.exit(bad != 0)


main()
