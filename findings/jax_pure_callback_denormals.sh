#!/usr/bin/env bash
# JAX 0.11.2 on CPU devices: NumPy and SciPy compute otherwise inside jax.pure_callback than outside
# of it: the thread that XLA calls them on takes denormal numbers for 0, so that a product that is
# denormal is 0, and a small unsymmetric difference vanishes.
# Guess: a callback is Python code like any other; the same NumPy call has the same result.
# jaxmg's handlers, which XLA calls on the same threads, set the default mode and restore XLA's.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
with_packages $JAX <<'PROGRAM'
import jax
import numpy as np

x = np.full(3, 2e-38, np.float32)


def quarter(x):
    return np.asarray(x) * np.float32(0.25)


def apart(x):  # of two different normal numbers
    x = np.asarray(x)
    return x * np.float32(1.0625) - x


for function in (quarter, apart):
    outside = function(x)
    call = lambda x: jax.pure_callback(function, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    inside = np.asarray(jax.jit(call)(x))
    print(function.__name__, "outside:", outside, " inside:", inside)
    assert (outside > 0).all()
    assert (inside.view(np.uint32) == 0).all(), "denormal numbers are kept"
PROGRAM
