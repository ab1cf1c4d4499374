"""Sets up the tests: eight CPU devices, or GPUs with JAXMG_TEST_PLATFORM=cuda, in 64-bit mode."""

import collections
import os

_PLATFORM = os.environ.get("JAXMG_TEST_PLATFORM")

# These must be set before JAX starts. By default, BLAS would start threads for each rank.
if _PLATFORM:
    os.environ["JAX_PLATFORMS"] = f"{_PLATFORM},cpu"  # callbacks of tests run on a CPU device
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    _FLAG = "--xla_force_host_platform_device_count=8"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()

import jax  # noqa: E402

jax.config.update("jax_enable_x64", True)
if os.environ.get("JAXMG_TEST_STRICT"):  # the settings of JAX's and lineax's own tests
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_check_tracer_leaks", True)

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

from jaxmg._call import by_one  # noqa: E402
from jaxmg._linalg import on_one  # noqa: E402
from jaxmg._plugin import plugins  # noqa: E402

# Small matrices of tests are for all ranks. on_one_test.py and by_one_test.py have what one device
# does for all.
on_one.MOST = by_one.MOST = 0

# Examples are the same in every run, and no database stores them.
settings.register_profile("jaxmg", derandomize=True, database=None, deadline=None)
settings.load_profile("jaxmg")


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "extended: routines that are derived from others, and further cases of what the core has; "
        "bazel test leaves them out, of .ci/run py313 has them, and so have all other runs",
    )
    config.addinivalue_line(
        "markers",
        "core(*words): the cases with none of the words among those of their id are extended",
    )
    config.addinivalue_line(
        "markers",
        "breadth: more combinations of what other cases of the same test have each in its turn; "
        "bazel test and .ci/run leave them out, and all other runs have them",
    )
    config.addinivalue_line(
        "markers", "slow: more than a second for what others show in part; left out in the same way"
    )
    config.addinivalue_line(
        "markers",
        "repeated: two of three cases of a test's core, set here; .ci/run has them with one JAX "
        "alone, and in one process",
    )
    config.addinivalue_line(
        "markers",
        "leaks_in_jax: JAX 0.11 itself reports a leak from what these tests differentiate, as it "
        "does from jit(grad(f)) where f is a shard_map of lambda x: lax.psum(x * x, 'r') + x; "
        "JAXMG_TEST_STRICT looks for no leaks there",
    )


def pytest_itemcollected(item):
    core = item.get_closest_marker("core")
    if core and not {item.callspec.id, *item.callspec.id.split("-")}.intersection(core.args):
        item.add_marker("extended")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items):
    functions = collections.defaultdict(list)
    for item in items:
        if not any(map(item.get_closest_marker, ("extended", "breadth", "slow"))):
            functions[item.nodeid.partition("[")[0]].append(item)
    for cases in functions.values():
        # Later cases usually have more ranks; the last of each three isn't marked.
        for i, item in enumerate(reversed(cases)):
            if i % 3:
                item.add_marker("repeated")


@pytest.fixture(scope="session")
def plugin():
    """Returns the plugin of the platform, loaded, for tests of functions that don't load it."""
    return plugins.load(jax.default_backend())


@pytest.fixture(autouse=True)
def _no_search_for_leaks_of_jax(request):
    off = request.node.get_closest_marker("leaks_in_jax") and jax.config.jax_check_tracer_leaks
    if off:
        jax.config.update("jax_check_tracer_leaks", False)
    yield
    if off:
        jax.config.update("jax_check_tracer_leaks", True)
