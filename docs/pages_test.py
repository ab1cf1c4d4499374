"""The code in the pages runs unchanged on four CPU devices.

Each page runs in a process of its own, from top to bottom: its ```python blocks run in sequence, in
one namespace. A block that needs GPUs, ```python title="on GPUs", is only compiled.
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
HOWTO = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/howto/*.md"))
# These pages show how to get four devices, so the test doesn't set them.
ALONE = ["README.md", "docs/start.md", "docs/migration.md", "docs/howto/cpu_devices.md"]
PAGES = sorted({*ALONE, *HOWTO, "docs/faq.md", "docs/precision.md"})

ON_CPU, ON_GPUS = "python", 'python title="on GPUs"'
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<code>.*?)^```$", re.M | re.S)

RUN = """
import sys
names = {"__name__": "__main__"}
for block in sys.stdin.read().split("\\f"):
    exec(compile(block, sys.argv[1], "exec"), names)
import jax
assert len(jax.devices()) == 4, jax.devices()
"""


def blocks(page):
    """Yields (info string, code) of the fenced blocks; the code has the line numbers of the
    page."""
    text = (ROOT / page).read_text()
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        yield match["info"], "\n" * line + match["code"]


def run(page, source, folder):
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    environment.pop("XLA_FLAGS", None)
    if page not in ALONE:
        environment["JAX_NUM_CPU_DEVICES"] = "4"
    return subprocess.run(
        [sys.executable, "-c", RUN, page],
        input=source,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("page", PAGES)
def test_its_blocks_run(page, tmp_path):
    source = [code for info, code in blocks(page) if info == ON_CPU]
    assert source
    result = run(page, "\f".join(source), tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", PAGES)
def test_what_needs_gpus_is_marked(page):
    infos = [info for info, _ in blocks(page) if "py" in info]
    assert set(infos) <= {ON_CPU, ON_GPUS}
    assert infos.count(ON_GPUS) < infos.count(ON_CPU)
    for info, code in blocks(page):
        if info == ON_GPUS:
            compile(code, page, "exec")


def test_a_block_that_fails_is_found(tmp_path):
    result = run("page.md", "x = 1\f\n\nassert x == 2", tmp_path)
    assert result.returncode == 1 and 'File "page.md", line 3' in result.stderr
