"""Runs pytest on the files named in the arguments, for Bazel and CI.

Bazel's --test_filter is an expression for pytest's -k; --test_arg passes any other argument. A
filter that matches no test is a failure, and the names to choose from are printed.

Under Bazel, tests that are marked `extended`, `breadth` or `slow` are left out, unless --breadth or
a filter selects them; and XLA optimizes nothing, since optimizing takes as long as much of the
tested work. Other runs have these tests, and XLA's optimization.
"""

import itertools
import os
import sys

import pytest

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    # One thread for BLAS: there are more devices than cores, and several tests run at once.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MPLBACKEND": "Agg",
    # The error of a rank that waits in vain should come before the test's own time limit.
    "JAXMG_RENDEZVOUS_TIMEOUT": "40",
}


class Names:
    """Records all tests that were found, before any are left out."""

    found = ()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        self.found = [item.name for item in items]


class Core:
    """Leaves out the tests that other runs have: with wheels, on GPUs, and without Bazel."""

    others = ("extended", "breadth", "slow")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config, items):
        def is_left_out(item):
            return any(item.get_closest_marker(marker) for marker in self.others)

        config.hook.pytest_deselected(items=[item for item in items if is_left_out(item)])
        items[:] = [item for item in items if not is_left_out(item)]


class Shard:
    """Keeps a part of the selected tests, for targets with `shard_count`. A shard has all cases of
    a test function, since they share most of their compiled programs: its time grows about as the
    square root of their number. Each function goes to the shard with the least work so far."""

    index = int(os.environ.get("TEST_SHARD_INDEX", 0))
    total = int(os.environ.get("TEST_TOTAL_SHARDS", 1))
    chosen = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        if status := os.environ.get("TEST_SHARD_STATUS_FILE"):
            open(status, "w").close()
        self.chosen = len(items)
        functions = {}
        for item in items:
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
        shards, times = [[] for _ in range(self.total)], [0.0] * self.total
        for tests in functions.values():
            first = times.index(min(times))
            shards[first].extend(tests)
            times[first] += len(tests) ** 0.5
        items[:] = shards.pop(self.index)
        config.hook.pytest_deselected(items=[*itertools.chain(*shards)])


def pytest_configure(config):
    """Registers the shard if this module is a plugin, `pytest -p pytest_main`, also in workers of
    pytest-xdist."""
    config.pluginmanager.register(Shard())


def main():
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    args = ["-q", "-p", "no:cacheprovider", "--durations=10"]
    if tmp := os.environ.get("TEST_TMPDIR"):
        os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=0"
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.path.join(tmp, "hypothesis")
        os.environ["MPLCONFIGDIR"] = os.path.join(tmp, "matplotlib")
        args += ["--basetemp", os.path.join(tmp, "pytest")]
    if report := os.environ.get("XML_OUTPUT_FILE"):
        args.append("--junitxml=" + report)
    if only := os.environ.get("TESTBRIDGE_TEST_ONLY"):
        args += ["-k", only]
    words = [word for word in sys.argv[1:] if word != "--breadth"]
    names, shard = Names(), Shard()
    plugins = [names, shard]
    if tmp and not only and words == sys.argv[1:]:
        plugins.append(Core())
    code = pytest.main(args + words, plugins=plugins)
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        if shard.chosen:
            code = 0  # fewer tests than shards
        else:
            print("no test was chosen; there are", *names.found, sep="\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
