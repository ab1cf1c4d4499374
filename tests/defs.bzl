"""pytest_test: one pytest file as one Bazel test."""

load("@rules_python//python:defs.bzl", "py_test")

# Eight CPU devices; a thread each for BLAS, so that tests don't crowd the machine.
_ENV = {
    "JAX_PLATFORMS": "cpu",
    "MPLBACKEND": "Agg",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
}

def pytest_test(name, src, data = [], deps = [], env = {}, **kwargs):
    py_test(
        name = name,
        srcs = [src, "//tests:pytest_main.py"],
        args = ["$(rootpath %s)" % src],
        data = data,
        env = _ENV | env,
        main = "//tests:pytest_main.py",
        deps = deps + ["@pypi_pytest"],
        **kwargs
    )
