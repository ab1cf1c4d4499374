"""Functions of `jaxmg.linalg` and `jaxmg.tree` and their degrees: f(2^k A) = 2^(dk) f(A) exactly,
as long as no entry of A or of the result leaves the normal range. scales_test.py and
tests/fuzz/scales.py use them."""

import typing

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxmg import linalg, tree

DTYPES = ("float32", "float64", "complex64", "complex128")
SHAPES = {"square": (6, 6), "definite": (6, 6), "tall": (24, 3), "wide": (3, 24)}


class Function(typing.NamedTuple):
    """A function of (a, b, where).

    Attributes:
        call: returns an array, or several.
        degrees: the degree of each result in A, or in A and b. A fraction's denominator divides k.
        kinds: the kinds of matrices.
        differentiable: whether the gradient is compared, too.
        batches: whether it takes a batch.
        step: a divisor of k.
    """

    call: typing.Callable
    degrees: tuple
    kinds: tuple = ("square", "tall", "wide")
    differentiable: bool = True
    batches: bool = True
    step: int = 1


_SQUARE, _DEFINITE, _TALL = ("square",), ("definite",), ("tall",)


def _tree(name, *arguments, **options):
    return lambda a, b, o: getattr(tree, name)([a], *arguments, **options, **o)[0]


def _metric(a):
    return (np.eye(6) + np.eye(6, k=1) / 4 + np.eye(6, k=-1) / 4).astype(a.dtype)


def _norms():
    for order in ("fro", 1, -1, np.inf, -np.inf, 2, -2, "nuc"):
        yield (
            f"norm {order}",
            Function(lambda a, b, o, order=order: linalg.norm(a, order, (-2, -1), **o), (1,)),
        )
    for order in (None, 1, 2, 3, 0.5, -1, -2, np.inf, -np.inf):
        yield (
            f"vectors' norm {order}",
            Function(lambda a, b, o, order=order: linalg.norm(a, order, -1), (1,)),
        )


def _conditions():
    for p in (None, -2, 1, -1, np.inf, -np.inf, "fro", "nuc"):
        call = lambda a, b, o, p=p: linalg.cond(a, p, **o)  # noqa: E731
        kinds = ("square", "tall") if p in (None, -2) else _SQUARE
        yield f"cond {p}", Function(call, (0,), kinds, p not in (1, np.inf))


FUNCTIONS = {
    **dict(_norms()),
    **dict(_conditions()),
    "cholesky": Function(lambda a, b, o: linalg.cholesky(a, **o), (0.5,), _DEFINITE, step=2),
    "cho_solve": Function(
        lambda a, b, o: linalg.cho_solve(linalg.cho_factor(a, **o), b, **o),
        (-1,), _DEFINITE, False, False, 2,
    ),
    "cg": Function(lambda a, b, o: linalg.cg(a, b, **o)[0], (-1,), _DEFINITE),
    "pivoted_cholesky": Function(
        lambda a, b, o: linalg.pivoted_cholesky(a, 3, **o)[:3:2], (0.5, 1), _DEFINITE, step=2
    ),
    "det": Function(lambda a, b, o: linalg.det(a, **o), ("n",), _SQUARE),
    "eigh": Function(lambda a, b, o: linalg.eigh(a, **o), (1, 0), _DEFINITE),
    "eigsh": Function(
        lambda a, b, o: linalg.eigsh(a, 2, which="SA", **o), (1, 0), _DEFINITE
    ),
    "eigvalsh": Function(lambda a, b, o: linalg.eigvalsh(a, **o), (1,), _DEFINITE),
    "inv": Function(lambda a, b, o: linalg.inv(a, **o), (-1,), _SQUARE),
    "inv of definite": Function(lambda a, b, o: linalg.inv(a, **o), (-1,), _DEFINITE, step=2),
    "least_squares": Function(lambda a, b, o: linalg.least_squares(a, b, **o), (-1,)),
    "lstsq": Function(lambda a, b, o: linalg.lstsq(a, b, **o)[::3], (-1, 1), ("tall", "wide")),
    "lu": Function(lambda a, b, o: linalg.lu(a, **o)[1:], (0, 1), _SQUARE),
    "lu_solve": Function(
        lambda a, b, o: linalg.lu_solve(linalg.lu_factor(a, **o), b, **o), (-1,), _SQUARE,
        False, False,
    ),
    "matrix_power 2": Function(lambda a, b, o: linalg.matrix_power(a, 2, **o), (2,), _SQUARE),
    "matrix_power -2": Function(lambda a, b, o: linalg.matrix_power(a, -2, **o), (-2,), _SQUARE),
    "matrix_rank": Function(
        lambda a, b, o: linalg.matrix_rank(a, **o).astype(float), (0,), differentiable=False
    ),
    "null_space": Function(lambda a, b, o: linalg.null_space(a, rank=3, **o), (0,), ("wide",)),
    "orth": Function(lambda a, b, o: linalg.orth(a, rank=3, **o), (0,), _TALL),
    "pinv": Function(lambda a, b, o: linalg.pinv(a, **o), (-1,)),
    "pinv by an array": Function(
        lambda a, b, o: linalg.pinv(a, jnp.full(a.shape[:-2], 1e-5, abs(b).dtype), **o), (-1,)
    ),
    "polar": Function(lambda a, b, o: linalg.polar(a, **o), (0, 1)),
    "qr": Function(lambda a, b, o: linalg.qr(a, **o), (0, 1), ("square", "tall")),
    "qr pivoting": Function(
        lambda a, b, o: linalg.qr(a, pivoting=True, **o)[:2], (0, 1), _TALL, batches=False
    ),
    "qr complete": Function(
        lambda a, b, o: linalg.qr(a, "complete", **o), (0, 1), _TALL, False
    ),
    "qr_multiply": Function(
        lambda a, b, o: linalg.qr_multiply(a, b, "left", **o), (0, 1), _SQUARE
    ),
    "slogdet": Function(lambda a, b, o: linalg.slogdet(a, **o)[0], (0,), _SQUARE, False),
    "solve": Function(lambda a, b, o: linalg.solve(a, b, **o), (-1,), _SQUARE),
    "solve pos": Function(
        lambda a, b, o: linalg.solve(a, b, assume_a="pos", **o), (-1,), _DEFINITE, step=2
    ),
    "solve_triangular": Function(
        lambda a, b, o: linalg.solve_triangular(a, b, **o), (-1,), _DEFINITE, batches=False
    ),
    "sqrtm": Function(lambda a, b, o: linalg.sqrtm(a, **o), (0.5,), _DEFINITE, step=2),
    "svd": Function(lambda a, b, o: linalg.svd(a, False, **o), (0, 1, 0)),
    "svdvals": Function(lambda a, b, o: linalg.svdvals(a, **o), (1,)),
    "svd_lowrank": Function(
        lambda a, b, o: linalg.svd_lowrank(a, 2, oversample=1, **o)[:3], (0, 1, 0),
        differentiable=False,
    ),
    "eigh of two": Function(
        lambda a, b, o: linalg.eigh(a, _metric(a), type=2, **o), (1, 0), _DEFINITE, batches=False
    ),
    "tree.cholesky": Function(_tree("cholesky"), (0.5,), _DEFINITE, step=2),
    "tree.eigh": Function(_tree("eigh"), (1, 0), _DEFINITE),
    "tree.inv": Function(_tree("inv"), (-1,), _SQUARE),
    "tree.qr": Function(_tree("qr"), (0, 1), ("square", "tall")),
    "tree.svd": Function(_tree("svd", False), (0, 1, 0)),
    "tree.orthogonalize": Function(_tree("orthogonalize"), (0,)),
    "tree.orthogonalize exact": Function(_tree("orthogonalize", method="exact"), (0,)),
    "tree.inverse_pth_root": Function(_tree("inverse_pth_root", 4), (-0.25,), _DEFINITE, step=4),
    "tree.inverse_pth_root newton": Function(
        _tree("inverse_pth_root", 4, method="newton"), (-0.25,), _DEFINITE, False, step=4
    ),
    "tree.orthogonal_iteration": Function(
        lambda a, b, o: tree.orthogonal_iteration([a], [b], **o)[0], (0,), _DEFINITE
    ),
}  # fmt: skip


def times_power(x, k):
    """Returns x 2^k, exactly."""
    x = np.asarray(x)
    if x.dtype.kind == "c":
        parts = np.ldexp(x.real, k), np.ldexp(x.imag, k)
        return np.stack(parts, -1).view(x.dtype)[..., 0]
    return np.ldexp(x, k)


def _exponents(x):
    """Returns the exponents of the nonzero entries, or of their real and imaginary parts."""
    x = np.asarray(x)
    parts = np.stack([x.real, x.imag]) if x.dtype.kind == "c" else x
    return np.frexp(parts[parts != 0])[1]


def _matrices(random, function, kind, dtype, batch):
    def normal(*shape):
        value = random.standard_normal(shape)
        return value + 1j * random.standard_normal(shape) if np.dtype(dtype).kind == "c" else value

    lead, (m, n) = (3,) * batch, SHAPES[kind]
    a = normal(*lead, m, n)
    if kind == "definite":
        a = a @ a.conj().swapaxes(-1, -2) / n + np.eye(n)
    columns = m if function == "tree.orthogonal_iteration" else 2
    return a.astype(dtype), normal(*lead, m, columns).astype(dtype)


def _degree(degree, n):
    return n if degree == "n" else degree


def _gradient(function, weights, o):
    """Returns a function that computes one gradient by A for each result: of its weighted sum's
    real part."""

    def gradients(a, b):
        def part(a, i):
            result = jax.tree.leaves(function.call(a, b, o))[i]
            return jnp.sum((result * weights[i]).real)

        return [jax.grad(part)(a, i) for i in range(len(function.degrees))]

    return gradients


def _compile(name, kind, dtype, ranks, batch, gradient, random):
    """Returns (a function of (a, b) that returns a list of results, the degree of each)."""
    function = FUNCTIONS[name]
    a, b = _matrices(random, name, kind, dtype, batch)
    where = {"mesh": Mesh(np.array(jax.devices()[:ranks]), ("r",))}
    degrees = [_degree(d, a.shape[-1]) for d in function.degrees]

    def values(a, b):
        return jax.tree.leaves(function.call(a, b, where))

    if gradient:
        shapes = jax.eval_shape(values, a, b)
        weights = [random.standard_normal(x.shape).astype(np.finfo(x.dtype).dtype) for x in shapes]
        values = _gradient(function, weights, where)
        degrees = [d - 1 for d in degrees]
    return jax.jit(values), degrees


def find_wrong(name, kind, dtype, ranks, batch, gradient, seed, powers=2, matrices=1):
    """Compares a function at several scales with itself at scale 1.

    Args:
        seed: of all random numbers.
        powers: number of random powers of two to try in addition to the least and the largest one.
        matrices: number of matrices to try. One compiled function takes them all, since compiling
            takes a thousand times as long as calling.

    Returns:
        (the difference as a string or None, the number of scales that were compared)
    """
    random = np.random.default_rng(seed)
    values, degrees = _compile(name, kind, dtype, ranks, batch, gradient, random)
    count = 0
    for _ in range(matrices):
        a, b = _matrices(random, name, kind, dtype, batch)
        results = [np.asarray(x) for x in values(a, b)]
        if not all(np.isfinite(x).all() for x in results):
            return f"{results} at scale 1", count
        margin = 2 * np.finfo(dtype).nmant if gradient else 0
        numbers = [*zip(degrees, results, strict=True)]
        if name == "det":  # its gradient is a multiple of it
            numbers.append((a.shape[-1], np.linalg.det(a)))
        if name == "lu_solve":  # its operand is the factor
            numbers.append((1, np.triu(linalg.lu_factor(a)[0])))
        low, high = _range(a, numbers, margin, FUNCTIONS[name].step)
        for k in sorted({low, high, *random.integers(low, high + 1, powers)}):
            k = int(k) * FUNCTIONS[name].step
            wrong = _difference(values(times_power(a, k), b), results, degrees, k)
            count += 1
            if wrong:
                return wrong, count
    return None, count


def _range(a, numbers, margin, step):
    """Returns the least and the largest k / step for which no number leaves the normal range.

    Args:
        numbers: pairs of (degree, numbers of this degree).
        margin: number of powers to keep from the ends of the range. Cotangents are multiplied by
            powers of two, too, and their small entries may become denormal.
    """
    info = np.finfo(a.dtype)
    least, most = info.minexp + 1 + margin, info.maxexp - margin
    limits = [(1, _exponents(a))]
    for degree, x in numbers:
        # Entries that are rounding errors don't count.
        significant = np.abs(x) > 10 * info.eps * np.abs(x).max(initial=0)
        limits.append((degree, _exponents(np.where(significant, x, 0))))
    low, high = -(10**6), 10**6
    for degree, of in limits:
        if degree and of.size:
            ends = (least - of.min()) / degree, (most - 1 - of.max()) / degree
            low, high = max(low, min(ends)), min(high, max(ends))
    return int(np.ceil(low / step)), int(np.floor(high / step))


def _difference(found, results, degrees, k):
    """Returns a description of what is wrong with the results of 2^k A, or None."""
    for i, (x, result, degree) in enumerate(zip(found, results, degrees, strict=True)):
        info = np.finfo(result.dtype)
        expected = times_power(result, round(degree * k))
        same = np.asarray(x) == expected
        normal = np.abs(expected) >= info.tiny
        if expected.dtype.kind == "c":
            normal = (np.abs(expected.real) >= info.tiny) & (np.abs(expected.imag) >= info.tiny)
        same |= ~normal & (np.abs(np.asarray(x) - expected) <= info.tiny)
        if not same.all():
            with np.errstate(all="ignore"):
                off = np.abs(np.asarray(x, np.clongdouble) - expected.astype(np.clongdouble))
                off = off.max() / np.abs(expected.astype(np.clongdouble)).max()
                off = off / info.eps
            return f"result {i} of 2^{k} A is {off:.3g} eps of the largest off"
    return None
