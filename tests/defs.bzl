"""pytest_test: one pytest file as one Bazel test."""

load("@rules_python//python:defs.bzl", "py_test")

def pytest_test(name, src, deps = [], **kwargs):
    py_test(
        name = name,
        srcs = [
            src,
            "//tests:pytest_main.py",
        ],
        args = ["$(rootpath %s)" % src],
        main = "//tests:pytest_main.py",
        deps = deps + ["@pypi_pytest"],
        **kwargs
    )
