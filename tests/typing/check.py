"""What mypy and pyright say of a user's script, user.py, and whether all that is public has a type;
in a checkout of the package what they say of that, too.

    ./tools/bazel run //tools:typecheck     this checkout
    python tests/typing/check.py            what is installed, and a checkout that this file is in

Needs mypy and basedpyright, which is pyright as one can install it with pip alone.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
ROOT = pathlib.Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", HERE.parents[1]))
CONFIG = "tests/typing/mypy.ini"


def main():
    package = ["jaxmg"] if (ROOT / "jaxmg").is_dir() else []
    files = [*package, "tests/typing/user.py"]
    failed = [
        step[0]
        for step in (
            ("mypy", "--config-file", CONFIG, *files),
            ("basedpyright", "--project", "tests/typing", *files),
        )
        if run(*step).returncode
    ]
    if not all_typed():
        failed.append("public names without types")
    print(f"FAILED: {', '.join(failed)}" if failed else "all right")
    return 1 if failed else 0


def run(*command, **options):
    """Runs a module in a Python that finds what this one does."""
    print(f"== {' '.join(command)}", flush=True)
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]),
    }
    command = [sys.executable, "-m", *command]
    return subprocess.run(command, cwd=ROOT, env=environment, **options)


def all_typed():
    """Returns whether pyright knows the types of all public names, and of all that they refer to;
    prints those that it doesn't know.

    jaxmg.lineax and jaxmg.optax have types of lineax and optax: each counts only where its package
    is installed.
    """
    verify = ("basedpyright", "--verifytypes", "jaxmg", "--ignoreexternal", "--outputjson")
    result = run(*verify, stdout=subprocess.PIPE)
    symbols = json.loads(result.stdout)["typeCompleteness"]["symbols"]
    assert len(symbols) > 50, "pyright did not find the package"
    unknown = [symbol for symbol in symbols if not symbol["isTypeKnown"]]
    for extra in ("lineax", "optax"):
        if importlib.util.find_spec(extra) is None:
            unknown = [x for x in unknown if not x["name"].startswith(f"jaxmg.{extra}.")]
    for symbol in unknown:
        print(symbol["name"], *(x["message"] for x in symbol["diagnostics"]), sep="\n    ")
    return not unknown


if __name__ == "__main__":
    sys.exit(main())
