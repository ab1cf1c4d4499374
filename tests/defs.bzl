"""pytest_test: one pytest file, or a few, as one Bazel test."""

load("@rules_python//python:defs.bzl", "py_test")

def pytest_test(name, src = None, srcs = [], deps = [], size = "small", **kwargs):
    """Those that take more than half a minute are "medium"; .bazelrc says how long each may take."""
    files = [src] if src else srcs
    py_test(
        name = name,
        srcs = files + ["//tests:pytest_main.py"],
        args = ["$(rootpath %s)" % file for file in files],
        main = "//tests:pytest_main.py",
        size = size,
        deps = deps + ["@pypi_pytest"],
        **kwargs
    )
