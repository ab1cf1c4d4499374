"""Formats and checks the files that git tracks or would add.

bazel run //tools:format    fixes problems that can be fixed automatically
bazel run //tools:lint      reports, and fails if there is something to fix
"""

import fnmatch
import os
import pathlib
import subprocess

import prose
import recipes
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_bool("fix", False, "Fix what can be fixed.")
for _program in ("ruff", "clang_format", "buildifier", "actionlint", "hadolint"):
    flags.DEFINE_string(_program, None, "Path of the program.", required=True)

# Patterns of paths; * also matches folders.
PYTHON = ("*.py", "*.pyi")
CXX = ("*.h", "*.cc", "*.cu", "*.cuh")
STARLARK = ("*.bzl", "*BUILD", "MODULE.bazel", "WORKSPACE")
WORKFLOWS = (".github/workflows/*.yml",)
CONTAINERS = ("*Dockerfile",)
RECIPES = ("*recipe.yaml",)
PAGES = ("*.md",)
PACKAGE = ("jaxmg/*.py",)

# Bazel 7 still has these rules without a load, whose name changes between releases of rules_cc.
NATIVE = "-native-cc-binary,-native-cc-common,-native-cc-info,-native-cc-library,-native-cc-test"

# (program, its files, its arguments to check and to fix; None: it can't fix).
STEPS = [
    ("ruff", PYTHON, ["check", "-q"], ["check", "-q", "--fix"]),
    ("ruff", PYTHON, ["format", "-q", "--diff"], ["format", "-q"]),
    ("clang_format", CXX, ["--dry-run", "--Werror", "--ferror-limit=1"], ["-i"]),
    (
        "buildifier",
        STARLARK,
        ["-mode=diff", "-lint=warn", "-warnings=" + NATIVE],
        ["-mode=fix", "-lint=fix", "-warnings=" + NATIVE],
    ),
    ("actionlint", WORKFLOWS, [], None),
    ("hadolint", CONTAINERS, [], None),
]


def sources(root):
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    return [f for f in listed.stdout.splitlines() if (root / f).is_file()]


def chosen_of(files, patterns):
    return [f for f in files if any(fnmatch.fnmatchcase(f, p) for p in patterns)]


def main(_):
    root = pathlib.Path(os.environ["BUILD_WORKSPACE_DIRECTORY"])
    files = sources(root)
    failed = False
    for program, patterns, check, fix in STEPS:
        chosen = chosen_of(files, patterns)
        words = fix if FLAGS.fix else check
        if chosen and words is not None:
            command = [os.path.realpath(FLAGS[program].value), *words, *chosen]
            failed |= subprocess.run(command, cwd=root).returncode != 0
    if not FLAGS.fix:
        os.chdir(root)
        failed |= prose.spelling(chosen_of(files, PAGES + PYTHON + CXX))
        failed |= prose.phrases(root, chosen_of(files, PAGES + PACKAGE))
        failed |= prose.docstrings(root)
        failed |= recipes.render(chosen_of(files, RECIPES))
    return "lint: `bazel run //tools:format` fixes most of this" if failed else 0


if __name__ == "__main__":
    app.run(main)
