#!/usr/bin/env bash
# Dask 2026.8.0: dask.array.linalg.solve pivots only within the chunks on the diagonal. A general
# matrix whose first chunk is small then gives x with a residual of 1e-3 and more, without a warning,
# and one whose first chunk is 0 raises "singular matrix"; neither matrix is near a singular one.
# Guess: partial pivoting over whole columns, and residuals as small as NumPy's.
# jaxmg.linalg.solve of a general matrix pivots over all ranks' rows.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
# shellcheck disable=SC2086  # several requirements
with_packages $NUMPY "dask[array]==2026.8.0" <<'PROGRAM'
import dask.array as da
import numpy as np

rng = np.random.default_rng(0)
a, b = rng.standard_normal((8, 8)), rng.standard_normal(8)


def residual(x):
    return np.abs(a @ x - b).max()


def in_chunks():
    return da.linalg.solve(da.from_array(a, chunks=4), da.from_array(b, chunks=4)).compute()


a[:4, :4] *= 1e-13
ours, numpy = residual(in_chunks()), residual(np.linalg.solve(a, b))
print(f"residual: Dask {ours:.1e}, NumPy {numpy:.1e}, condition {np.linalg.cond(a):.0f}")
assert ours > 1e-3 and numpy < 1e-13
a[:4, :4] = 0
assert residual(np.linalg.solve(a, b)) < 1e-13
try:
    in_chunks()
except Exception as error:
    print(f"first chunk 0: {type(error).__name__}: {error}")
else:
    raise AssertionError("no error")
PROGRAM
