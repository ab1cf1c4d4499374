"""Starts Python such that it can import this checkout's package and plugin, and the tests'
packages.

tools/python starts it; the arguments are Python's own: SCRIPT, -m MODULE, -c CODE or none.
"""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).parent

# Also for processes that a script starts. Without this folder, which Python puts first.
paths = [path for path in sys.path if path and pathlib.Path(path) != HERE]
os.environ["PYTHONPATH"] = os.pathsep.join(paths)
os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
