"""Starts Python processes for the tests."""

import os
import subprocess
import sys

import jax
import pytest


def run(*arguments, timeout=120, **environment):
    """Runs this Python with this process's import path; raises after ``timeout`` seconds."""
    if jax.process_count() > 1:
        pytest.skip("starts processes of its own, which would look for a job of theirs")
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
