"""The build backend of a checkout (PEP 517): pip install . builds jaxmg's wheel by Bazel, and pip
install ./xla_ffi/plugin builds the wheel of the plugin in the config setting "plugin".
"""

import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
PLUGINS = ("cpu", "cuda12", "cuda13")
# Variables that pip sets for its own subprocesses, and that would affect Bazel's.
_OF_PIP = ("PYTHONPATH", "PYTHONNOUSERSITE", "VIRTUAL_ENV")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Builds jaxmg's wheel into a folder and returns its name."""
    return build("//jaxmg:wheel", wheel_directory)


def build_plugin(wheel_directory, config_settings=None):
    """Builds a plugin's wheel into a folder and returns its name."""
    plugin = (config_settings or {}).get("plugin", "cpu")
    if plugin not in PLUGINS:
        _fail(f"plugin must be one of {', '.join(PLUGINS)}; got {plugin!r}")
    return build(f"//xla_ffi/plugin:wheel_{plugin}", wheel_directory)


def build_sdist(sdist_directory, config_settings=None):
    """Refuses, because a source distribution would lack files that Bazel needs."""
    _fail("there is no source distribution; install from a checkout, or from wheels")


def build(target, folder):
    """Builds a wheel for the running Python into ``folder`` and returns its name."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    options = ["--config=ci", f"--repo_env=JAXMG_PYTHON={version}"]
    built = _bazel("build", *options, target)
    if built.returncode != 0:
        _fail(
            f"Bazel did not build {target} for Python {version}; its output is above. The first "
            "build downloads Bazel, a compiler and packages of Python (from GitHub or Debian, and "
            "PyPI), about 0.5 GB, so it needs the network and some minutes. Without a network "
            'install wheels: pip install --no-index --find-links FOLDER "jaxmg[cpu]>=2"'
        )
    found = _bazel("cquery", *options, "--output=files", target, stdout=subprocess.PIPE)
    wheel = ROOT / found.stdout.split()[-1]
    shutil.copyfile(wheel, os.path.join(folder, wheel.name))
    return wheel.name


def _bazel(*arguments, **options):
    environment = {k: v for k, v in os.environ.items() if k not in _OF_PIP}
    return subprocess.run(
        [ROOT / "tools/bazel", *arguments], cwd=ROOT, env=environment, text=True, check=False,
        **options,
    )  # fmt: skip


def _fail(message):
    sys.exit(f"jaxmg: {message}")
