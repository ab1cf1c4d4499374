"""Errors of LU's routines against LAPACK's, for matrices that are hard for partial pivoting.

    JAX_NUM_CPU_DEVICES=8 JAX_ENABLE_X64=1 python tests/python/lu/lu_accuracy_test.py

prints a table of all orders from 1 to 40 on all numbers of ranks.

LAPACK factors the transpose, as the engine does: see xla_ffi/engine/README.md.
"""

import functools
import sys

import cases
import jax
import numpy as np
import pytest
import scipy.linalg

import jaxmg

RANKS = (1, 2, 3, 4, 5, 8)
TILES = (None, 1, 3, 8)


def _random(n):
    return cases.normal(cases.rng(n, 1), (n, n), "complex128")


def _kahan(n, angle=1.2):
    scale = np.sin(angle) ** np.arange(n)
    return scale[:, None] * (np.eye(n) - np.cos(angle) * np.triu(np.ones((n, n)), 1))


def _growth(n):
    """Returns Wilkinson's matrix: elements of its transpose's factor grow to 2^(n-1)."""
    matrix = np.eye(n) - np.tril(np.ones((n, n)), -1)
    matrix[:, -1:] = 1
    return matrix.T


def _graded(n, of):
    return of(np.logspace(0, -12, n)) * _random(n)


def _alternate(n, huge):
    return np.where(np.arange(n) % 2, huge, 1 / huge)


# Functions that return matrices of order n. `huge` has a square in the dtype's range; `unit` is its
# eps.
HARD = {
    "random": lambda n, huge, unit: _random(n),
    "graded by rows": lambda n, huge, unit: _graded(n, lambda w: w[:, None]),
    "graded by columns": lambda n, huge, unit: _graded(n, lambda w: w),
    "graded both ways": lambda n, huge, unit: _graded(n, lambda w: w[:, None] * w),
    "graded up": lambda n, huge, unit: _graded(n, lambda w: (w[:, None] * w)[::-1, ::-1]),
    "kahan": lambda n, huge, unit: _kahan(n),
    "growth": lambda n, huge, unit: _growth(n),
    "vandermonde": lambda n, huge, unit: np.vander(np.linspace(-1, 1, n)),
    "orthogonal": lambda n, huge, unit: np.linalg.qr(_random(n))[0],
    "circulant": lambda n, huge, unit: scipy.linalg.circulant(cases.rng(n, 2).standard_normal(n)),
    "hilbert": lambda n, huge, unit: 1 / (1 + np.arange(n)[:, None] + np.arange(n)),
    "nearly singular": lambda n, huge, unit: np.ones((n, n)) + 50 * unit * _random(n),
    "rows scaled": lambda n, huge, unit: _alternate(n, huge)[:, None] * _random(n),
    "columns scaled": lambda n, huge, unit: _alternate(n, huge) * _random(n),
}
# Kinds for which rounding changes no pivot: see `_clear`.
ALL_CLEAR = ("random", "orthogonal", "circulant", "rows scaled", "columns scaled")


def hard(kind, n, dtype):
    unit = cases.eps(dtype)
    made = HARD[kind](n, 1e100 if unit < 1e-10 else 1e15, unit)
    return (made if np.dtype(dtype).kind == "c" else made.real).astype(dtype)


@functools.cache
def _program(n, ranks, dtype, tile):
    """Returns one program that computes all measured results."""
    mesh = cases.line(ranks)

    def run(a, b):
        x, sign, logdet, status = jaxmg.gesv(
            a, b, tile, mesh, return_status=True, return_logdet=True
        )
        factor = jaxmg.lu_factor(a, tile, mesh)
        return {
            "x": x,
            "slogdet": (sign, logdet),
            "status": (status, factor.status),
            "kept": [factor.solve(b, trans) for trans in (0, 1, 2)],
            "kept slogdet": factor.slogdet(),
            "inverse": jaxmg.getri(a, tile, mesh),
            "packed": factor.packed(),
        }

    return jax.jit(run)


def ours(matrix, b, ranks, tile):
    """Returns the results of `_program`."""
    run = _program(len(matrix), ranks, matrix.dtype.name, tile)
    return jax.tree.map(np.asarray, run(cases.shard_rows(matrix, cases.line(ranks)), b))


def _slogdet(packed, pivots):
    diagonal = np.diagonal(packed)
    odd = np.count_nonzero(pivots != np.arange(len(pivots))) % 2
    return (-1) ** odd * np.prod(diagonal / abs(diagonal)), np.sum(np.log(abs(diagonal)))


def lapacks(matrix, b):
    """Returns LAPACK's results, as `ours` does."""
    getrf, getrs, getri = scipy.linalg.get_lapack_funcs(("getrf", "getrs", "getri"), (matrix,))
    packed, pivots, info = getrf(matrix.T)
    if info:
        return {"status": (info,), "packed": (packed.T, pivots)}
    x, transposed = (getrs(packed, pivots, b, trans=trans)[0] for trans in (1, 0))
    adjoint = getrs(packed, pivots, b.conj())[0].conj()
    slogdet = _slogdet(packed, pivots)
    return {
        "x": x,
        "slogdet": slogdet,
        "status": (info,),
        "kept": [x, transposed, adjoint],
        "kept slogdet": slogdet,
        "inverse": getri(packed, pivots)[0].T,
        "packed": (packed.T, pivots),
    }


def _eliminate(matrix, pivots):
    """Returns L and U in one matrix, and the candidates for each pivot, in the precision of
    ``matrix``."""
    m, candidates = matrix.copy(), []
    for k, pivot in enumerate(pivots):
        m[[k, pivot]] = m[[pivot, k]]
        candidates.append(m[k:, k].copy())
        m[k + 1 :, k] /= m[k, k]
        m[k + 1 :, k + 1 :] -= np.outer(m[k + 1 :, k], m[k, k + 1 :])
    return m, candidates


def _split(packed):
    """Returns (L, U)."""
    return np.tril(packed, -1) + np.eye(len(packed)), np.triu(packed)


def _clear(matrix, pivots):
    """Returns (L and U in extended precision, the number of LAPACK's first pivots that rounding
    can't change). Such a pivot exceeds the other candidates by more than eight times their
    errors."""
    wider = matrix.astype("clongdouble" if matrix.dtype.kind == "c" else "longdouble")
    exact, values = _eliminate(wider, pivots)
    _, rounded = _eliminate(matrix, pivots)
    lower, upper = map(abs, _split(exact))
    products = lower @ upper
    for k, (value, other) in enumerate(zip(values, rounded, strict=True)):
        size = abs(value.real) + abs(value.imag)  # as LAPACK's i?amax
        error = 8 * (abs(value - other) + cases.eps(matrix.dtype) * products[k:, k])
        if (size[0] - error[0] <= (size + error)[1:]).any():
            return exact, k
    return exact, len(pivots)


def _products(packed, pivots):
    """Returns |L| |U| of the transpose, its rows in the order of A^T: a bound on |A| by the
    factors.

    Rounding in L and U by itself changes A by eps times as much, and the order of sums in a
    substitution changes x by no more. If elements grow in partial pivoting, this is far above |A|.
    A solution with a small residual is then luck, for LAPACK too.
    """
    lower, upper = _split(cases.wide(packed).T)
    products = abs(lower) @ abs(upper)
    for k in range(len(pivots))[::-1]:
        products[[k, pivots[k]]] = products[[pivots[k], k]]
    return products.T


def _error(matrix, x, b, products):
    """Returns the largest component of |A x - b| / (products |x| + |b|), which a scaling of the
    rows doesn't change."""
    matrix, x, b = map(cases.wide, (matrix, x, b))
    size = products @ abs(x) + abs(b)
    return np.max(abs(matrix @ x - b) / np.where(size, size, 1), initial=0)


def _backward(matrix, x, b, products):
    """Returns |A x - b| / (products |x| + |b|) in the maximum norm, which is invariant under
    scaling by powers."""
    matrix, x, b = map(cases.wide, (matrix, x, b))
    size = np.max(products @ abs(x) + abs(b), initial=0)
    return np.max(abs(matrix @ x - b), initial=0) / (size or 1)


def _sizes(exact):
    """Returns |V| |W| |L| |U|, where L U is the exact factorization, V = 1 / U and W = 1 / L. Times
    n eps, this bounds the errors of an inverse (see engine/lu/getri.h)."""
    lower, upper = map(cases.wide, _split(exact))
    trtri = scipy.linalg.get_lapack_funcs("trtri", (upper,))
    inverses = trtri(upper)[0], trtri(lower, lower=True)[0]
    return functools.reduce(np.matmul, map(abs, (*inverses, lower, upper)))


def measure(matrix, exact, slogdet, found):
    """Returns {routine: its error in units of n eps}, and the growth of the elements."""
    n, b = len(matrix), np.ones(len(matrix), matrix.dtype)
    sizes, eps = _sizes(exact), cases.eps(matrix.dtype)
    products = _products(*found["packed"])
    errors = {"gesv": _error(matrix, found["x"], b, products)}
    ops = (matrix, products), (matrix.T, products.T), (matrix.conj().T, products.T)
    for name, (op, of_op), x in zip("NTC", ops, found["kept"], strict=True):
        errors[f"trans {name}"] = _backward(op, x, b, of_op)
    residual = cases.wide(found["inverse"]).T @ cases.wide(matrix).T - np.eye(n)
    errors["getri"] = np.max(abs(residual) / np.where(sizes, sizes, 1))
    condition = max(np.trace(sizes), np.sum(abs(np.log(abs(np.diagonal(exact))))))
    for name in ("slogdet", "kept slogdet"):
        error = sum(abs(a - b) for a, b in zip(found[name], slogdet, strict=True)) / condition
        errors[name] = error if n * eps * condition < 0.1 else 0  # if not, no digit of it is exact
    growth = abs(np.tril(found["packed"][0])).max() / abs(matrix).max()
    return {**{name: error / (n * eps) for name, error in errors.items()}, "growth": growth}


def compare(kind, n, ranks, dtype, tile):
    """Returns (our errors, LAPACK's, the number of clear pivots); asserts all except the errors'
    sizes.

    A pivot at rounding level is 0 by chance, in our factor or LAPACK's. Then there are no errors to
    compare.
    """
    matrix, b = hard(kind, n, dtype), np.ones(n, dtype)
    found, reference = ours(matrix, b, ranks, tile), lapacks(matrix, b)
    pivots = reference["packed"][1]
    exact, clear = _clear(matrix.T, pivots)
    if zeros := [int(s) - 1 for s in (*found["status"], *reference["status"]) if s]:
        lower, upper = map(abs, _split(exact))
        rounding = n * cases.eps(matrix.dtype) * np.diagonal(lower @ upper)
        assert (np.diagonal(upper) <= rounding)[zeros].all()
        return {}, {}, clear
    slogdet = _slogdet(exact, pivots)
    errors, usual = (measure(matrix, exact, slogdet, results) for results in (found, reference))
    np.testing.assert_array_equal(found["packed"][1][:clear], pivots[:clear])
    if kind in ALL_CLEAR:
        assert clear == n
    return errors, usual, clear


def beyond(errors, usual):
    """Returns {name: (our error, LAPACK's)} for our errors beyond the limit that LAPACK's sets."""
    return {
        name: (error, usual[name])
        for name, error in errors.items()
        if not error <= 4 * usual[name] + 4
    }


@pytest.mark.core("13")
@pytest.mark.parametrize(
    "n, ranks, dtype",
    cases.broad(
        [
            (n, ranks, cases.DTYPES[(n // 2 + i) % 4])
            for n in range(1, 41)
            for i, ranks in enumerate((RANKS[n % 6], RANKS[(n + 3) % 6]))
        ],
        core=lambda n, ranks, dtype: (n, ranks) in ((13, 2), (34, 5)),
    ),
)
def test_as_accurate_as_lapack(n, ranks, dtype):
    """Errors are like LAPACK's for each kind of matrix: every order on two numbers of ranks."""
    for kind in HARD:
        errors, usual, _ = compare(kind, n, ranks, dtype, TILES[n % 4])
        assert not beyond(errors, usual), kind


def test_growth_is_that_of_lapack():
    """Elements grow by 2^(n-1) on any number of ranks, the worst case of partial pivoting."""
    n = 24
    for ranks in (1, 4):
        lu, _ = jaxmg.lu_factor(hard("growth", n, "float64"), 4, cases.line(ranks)).packed()
        assert np.max(abs(np.asarray(lu))) == 2.0 ** (n - 1)


def main(orders, dtypes):
    """Prints the largest errors over all orders, dtypes and numbers of ranks as Markdown."""
    worst, clear, wrong = {}, 0, 0
    for n, dtype, ranks in ((n, d, r) for n in orders for d in dtypes for r in RANKS):
        for kind in HARD:
            *both, count = compare(kind, n, ranks, dtype, TILES[n % 4])
            if found := beyond(*both):
                print(f"WRONG {kind} n={n} {ranks} rank(s) {dtype}: {found}", flush=True)
                wrong += 1
            clear += count
            for errors, place in zip(both, (0, 1), strict=True):
                for name, error in errors.items():
                    row = worst.setdefault(kind, {}).setdefault(name, [0, 0])
                    row[place] = max(row[place], error)
        _program.cache_clear()
    names = list(next(iter(worst.values())))
    print(f"\n| n = {orders[0]} to {orders[-1]} | {' | '.join(names)} |")
    print("|" + "---|" * (len(names) + 1))
    for kind, row in worst.items():
        cells = (f"{ours:.2g} ({usual:.2g})" for ours, usual in row.values())
        print(f"| {kind} | {' | '.join(cells)} |")
    print(f"\n{clear} pivots are those of LAPACK; {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(range(1, 41), cases.DTYPES))
