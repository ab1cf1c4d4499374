"""Runs pytest on the files named in the arguments, as Bazel and CI want it run."""

import os
import sys

import pytest

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    # A thread each for BLAS: there are more devices than cores, and more tests than one.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MPLBACKEND": "Agg",
    # A rank that waits in vain is to be found out before the test's own time is over.
    "JAXMG_RENDEZVOUS_TIMEOUT": "40",
}


class Shard:
    """Keeps every n-th test, for targets with `shard_count`."""

    index = int(os.environ.get("TEST_SHARD_INDEX", 0))
    total = int(os.environ.get("TEST_TOTAL_SHARDS", 1))

    def pytest_collection_modifyitems(self, config, items):
        if status := os.environ.get("TEST_SHARD_STATUS_FILE"):
            open(status, "w").close()
        others = [item for i, item in enumerate(items) if i % self.total != self.index]
        config.hook.pytest_deselected(items=others)
        items[:] = items[self.index :: self.total]


def main():
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    args = ["-q", "-p", "no:cacheprovider", "--durations=10"]
    if tmp := os.environ.get("TEST_TMPDIR"):
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.path.join(tmp, "hypothesis")
        os.environ["MPLCONFIGDIR"] = os.path.join(tmp, "matplotlib")
        args += ["--basetemp", os.path.join(tmp, "pytest")]
    if report := os.environ.get("XML_OUTPUT_FILE"):
        args.append("--junitxml=" + report)
    if only := os.environ.get("TESTBRIDGE_TEST_ONLY"):
        args += ["-k", only]
    code = pytest.main(args + sys.argv[1:], plugins=[Shard()])
    if code == pytest.ExitCode.NO_TESTS_COLLECTED and Shard.total > 1:
        code = 0  # fewer tests than shards
    sys.exit(code)


if __name__ == "__main__":
    main()
