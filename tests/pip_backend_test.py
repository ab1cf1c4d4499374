"""pip builds a checkout's wheels by Bazel, which a stand-in replaces here."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
BAZEL = """#!/bin/sh
[ -z "$FAILS" ] || exit 1
echo "$@" >> calls
case $1 in
  build) mkdir -p out; echo wheel > out/jaxmg-2.0.0-py3-none-any.whl ;;
  cquery) echo out/jaxmg-2.0.0-py3-none-any.whl ;;
esac
"""


@pytest.fixture
def checkout(tmp_path):
    for name in ("tools/pip_backend.py", "xla_ffi/plugin/build_plugin.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    bazel = tmp_path / "tools/bazel"
    bazel.write_text(BAZEL)
    bazel.chmod(0o755)
    return tmp_path


def build(checkout, folder, module, settings=None, **environment):
    """Runs the backend as pip does, in the folder of the project."""
    (checkout / "wheels").mkdir(exist_ok=True)
    code = (
        f"import sys; sys.path.insert(0, '.' if {module!r} == 'build_plugin' else 'tools')\n"
        f"import {module}; print({module}.build_wheel({str(checkout / 'wheels')!r}, {settings!r}))"
    )
    return subprocess.run(
        [sys.executable, "-c", code], cwd=checkout / folder, env=os.environ | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("folder", "module", "settings", "target"),
    [
        (".", "pip_backend", None, "//jaxmg:wheel"),
        (".", "pip_backend", {"plugin": "cuda13"}, "//jaxmg:wheel"),
        ("xla_ffi/plugin", "build_plugin", None, "//xla_ffi/plugin:wheel_cpu"),
        ("xla_ffi/plugin", "build_plugin", {"plugin": "cuda13"}, "//xla_ffi/plugin:wheel_cuda13"),
    ],
)
def test_builds_for_this_python(checkout, folder, module, settings, target):
    done = build(checkout, folder, module, settings)
    assert done.stdout.split() == ["jaxmg-2.0.0-py3-none-any.whl"], done.stderr
    assert (checkout / "wheels/jaxmg-2.0.0-py3-none-any.whl").read_text() == "wheel\n"
    python = f"--repo_env=JAXMG_PYTHON={sys.version_info.major}.{sys.version_info.minor}"
    calls = (checkout / "calls").read_text().splitlines()
    assert [call.split()[0] for call in calls] == ["build", "cquery"]
    assert all(call.endswith(target) and python in call.split() for call in calls)


def test_unknown_plugin(checkout):
    done = build(checkout, "xla_ffi/plugin", "build_plugin", {"plugin": "rocm"})
    assert done.returncode == 1
    assert "plugin must be one of cpu, cuda12, cuda13; got 'rocm'" in done.stderr


def test_failed_build_says_what_it_needs(checkout):
    done = build(checkout, ".", "pip_backend", FAILS="1")
    assert done.returncode == 1
    assert "Bazel did not build //jaxmg:wheel" in done.stderr
    assert "needs the network" in done.stderr and "--no-index" in done.stderr


def test_files_name_the_backends():
    for folder, backend, path in (
        ("", "pip_backend", "tools"), ("xla_ffi/plugin", "build_plugin", "."),
    ):  # fmt: skip
        text = (ROOT / folder / "pyproject.toml").read_text()
        assert f'build-backend = "{backend}"' in text and f'backend-path = ["{path}"]' in text
        assert (ROOT / folder / path / f"{backend}.py").exists()
