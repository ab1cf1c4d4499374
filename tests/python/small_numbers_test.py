"""What is denormal on the way counts: a scaled problem is solved as well as the problem itself.

XLA's CPU code takes denormals for 0, and the native code would inherit that.
"""

import jax
import numpy as np
import pytest
from cases import DTYPES, check_potri, check_potrs, check_syevd, line, positive_definite

import jaxmg

_N = 40


def _scale(dtype):
    """A power of two: entries of the scaled matrix are normal, but not what their digits are."""
    return np.ldexp(
        np.ones((), np.finfo(dtype).dtype), -1010 if np.finfo(dtype).bits == 64 else -118
    )


@pytest.fixture(autouse=True)
def _only_cpu():
    if jax.devices()[0].platform != "cpu":
        pytest.skip("GPUs take denormals for what they are")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [1, 4])
def test_potrs(ranks, dtype):
    matrix, b = positive_definite("well", _N, dtype), np.arange(1, _N + 1).astype(dtype)
    scale = _scale(dtype)
    check_potrs(matrix, np.asarray(jaxmg.potrs(matrix * scale, b * scale, 8, line(ranks))), b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [1, 4])
def test_potri(ranks, dtype):
    matrix, scale = positive_definite("well", _N, dtype), _scale(dtype)
    check_potri(matrix, np.asarray(jaxmg.potri(matrix / scale, 8, line(ranks))) / scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [1, 4])
def test_syevd(ranks, dtype):
    matrix, scale = positive_definite("well", _N, dtype), _scale(dtype)
    w, v = jaxmg.syevd(matrix * scale, 8, line(ranks))
    check_syevd(matrix, np.asarray(w) / scale, np.asarray(v))
