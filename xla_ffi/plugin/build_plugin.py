"""Makes tools/pip_backend.py the backend of plugins: pip loads it from the folder it builds."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[2] / "tools"))

import pip_backend  # noqa: E402

build_sdist = pip_backend.build_sdist


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Builds the wheel of a plugin, "cpu" unless ``--config-settings plugin=cuda13`` is passed."""
    return pip_backend.build_plugin(wheel_directory, config_settings)
