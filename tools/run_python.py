"""Python where this checkout's package and plugin, and what the tests use, can be imported.

tools/python starts it; the arguments are Python's own: SCRIPT, -m MODULE, -c CODE or none.
"""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).parent

# For the processes that a script starts, too. Not this folder, which Python puts first.
paths = [path for path in sys.path if path and pathlib.Path(path) != HERE]
os.environ["PYTHONPATH"] = os.pathsep.join(paths)
os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
