"""What mypy and pyright say of a user's script, user.py, and whether all that is public has a type;
in a checkout of the package too, whose types mypy's stubtest compares with its functions.

    ./tools/bazel run //tools:typecheck     this checkout
    python tests/typing/check.py            what is installed, and a checkout that this file is in

Needs mypy and basedpyright, which is pyright as one can install it with pip alone.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
ROOT = pathlib.Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", HERE.parents[1]))
CONFIG = "tests/typing/mypy.ini"


def main():
    package = ["jaxmg"] if (ROOT / "jaxmg").is_dir() else []
    files = [*package, "tests/typing/user.py"]
    steps = [
        ("mypy", "--config-file", CONFIG, *files),
        ("basedpyright", "--project", "tests/typing", *files),
        ("basedpyright", "--verifytypes", "jaxmg", "--ignoreexternal"),
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as private:
        private.write(r"jaxmg\._\w+\..*")  # has no stubs to compare
        private.write("\njaxmg.lineax")  # needs packages that aren't here
        private.flush()
        if package:
            allowed = ("--allowlist", private.name)
            steps.append(("mypy.stubtest", "jaxmg", "--mypy-config-file", CONFIG, *allowed))
        failed = [step[0] for step in steps if run(*step)]
    print(f"FAILED: {', '.join(failed)}" if failed else "all right")
    return 1 if failed else 0


def run(*command):
    """A module in a Python that finds what this one does."""
    print(f"== {' '.join(command)}", flush=True)
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]),
    }
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
