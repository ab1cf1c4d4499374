"""Python processes that the tests start."""

import os
import subprocess
import sys


def run(*arguments, timeout=120, **environment):
    """Runs this Python with what this process can import; raises after ``timeout`` seconds."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
