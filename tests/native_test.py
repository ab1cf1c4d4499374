"""The native sources: folders stay small, and the page that lists the fields of Tuning has them."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
# More files in one folder are no longer found by reading their names.
MOST = 16


def test_a_folder_of_kernels_has_few_files():
    top = ROOT / "xla_ffi/device/cuda"
    files = [path for suffix in ("cc", "h", "cu", "cuh") for path in top.rglob(f"*.{suffix}")]
    assert len(files) > MOST
    for folder in {path.parent for path in files}:
        names = sorted(path.name for path in files if path.parent == folder)
        assert len(names) <= MOST, f"{folder.relative_to(ROOT)}: {len(names)} files, {names}"


def test_the_page_has_each_field_of_the_tuning_and_no_other():
    header = (ROOT / "xla_ffi/device/tuning.h").read_text()
    body = header[header.index("struct Tuning {") :]
    fields, nested = set(), []
    for line in body.split("\n"):
        if field := re.match(r"\s+(?:bool|int64_t|double) (\w+) = ", line):
            if line.startswith("    "):
                nested.append(field[1])
            else:
                fields.add(field[1])
        elif end := re.match(r"  \} (\w+);", line):
            fields |= {f"{end[1]}.{name}" for name in nested}
            nested = []
    page = (ROOT / "docs/architecture.md").read_text()
    table = re.search(r"^\| field of `Tuning`.*?\n\n", page, re.M | re.S)[0]
    listed = {
        name
        for row in table.split("\n")[2:]
        for name in re.findall(r"`([\w.]+)`", row.split(" | ")[0])
    }
    assert fields == listed
