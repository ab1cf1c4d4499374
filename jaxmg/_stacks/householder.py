"""Reduction of each real symmetric matrix of a stack to tridiagonal form: LAPACK's sytrd, by a
kernel in which each matrix has a multiprocessor of the GPU for itself.

A step of the reduction reads and writes all that is left of a matrix, and needs sums over all of
it. As operations on arrays these would be 5 n kernels, most of them shorter than their launch; in
one kernel a step takes as long as a multiprocessor needs to read and write the matrix in the
cache.
"""

import functools

import jax
import jax.numpy as jnp

from jaxmg import _compat
from jaxmg._stacks import products, sections

# Bytes of the rows that a thread block has in registers at a time, and its most warps: at order 512
# the fastest of 2^14 to 2^17 and of 4 to 32.
_TILE_BYTES, _MOST_ROWS = 2**15, 128
_MOST_WARPS = 16
# Reflectors that are applied at a time.
_WIDTH = 64


def reduce(a, interpret=False):
    """(d, e, reflectors, tau) with A = Q T Q^T, Q = H_0 H_1 ..., of symmetric A (count, n, n) with
    entries near 1 at most, of which both triangles are read.

    T has the diagonal d (count, n) and e (count, n - 1) beside it. H_j = 1 - tau_j v_j v_j^T, with
    v_j row j of the reflectors, 0 up to element j and 1 in the next. ``interpret``: on any device,
    and slowly, as `pallas_call` has it.
    """
    count, n = a.shape[:2]
    if n == 1:
        return a[:, 0], a[:, :0, 0], jnp.zeros_like(a), jnp.zeros_like(a[:, 0])
    kernels = _compat.pallas_triton()
    if kernels is None:
        raise NotImplementedError(
            f"householder.reduce: needs JAX 0.8 or later; this is {jax.__version__}"
        )
    pallas, triton = kernels
    width = _power_of_two(n)
    row = jax.ShapeDtypeStruct((count, n), a.dtype)

    def of_matrix(*shape):
        return pallas.BlockSpec((None, *shape), lambda i: (i, *[0] * len(shape)))

    call = pallas.pallas_call(
        functools.partial(_kernel, pallas, triton, n, not interpret),
        out_shape=(jax.ShapeDtypeStruct(a.shape, a.dtype), row, row, row, row),
        grid=(count,),
        in_specs=[of_matrix(n, n)],
        out_specs=(of_matrix(n, n), *[of_matrix(n)] * 4),
        input_output_aliases={0: 0},
        compiler_params=triton.CompilerParams(
            num_warps=min(max(width // 32, 4), _MOST_WARPS), num_stages=1
        ),
        interpret=interpret,
    )
    reflectors, d, e, tau, _ = call(a)
    return d, e[:, :-1], reflectors, tau


def _power_of_two(n):
    return max(1 << (n - 1).bit_length(), 16)


def _kernel(pallas, triton, n, concurrent, _, a, d, e, tau, last_w):
    """One matrix, of entries near 1. Row j of ``a`` becomes v_j once it is reduced.

    The update of step j - 1, A - v w^T - w v^T, is done together with the product A v_j, so that a
    step goes over the matrix once. ``last_w`` is w, where threads get at what others have of it.
    """
    load, store = triton.load, triton.store
    barrier = triton.debug_barrier if concurrent else lambda: None
    state, first = None, 0
    for stop in _stops(n):
        # What is left of the rows and columns begins at `first`.
        width = _power_of_two(n - first)
        columns, start = first + jnp.arange(width), first
        rows = min(max(_TILE_BYTES // (width * a.dtype.itemsize), 1), _MOST_ROWS)

        def reduce(j, state, columns=columns, start=start, rows=rows):
            v, w = state
            inside = columns < n
            # The sum is traced: JAX refuses a constant slice beyond the end, masked or not.
            across = pallas.ds(start + 0 * j, len(columns))
            before = jnp.maximum(j - 1, 0)

            def of_vectors(i):
                return (jnp.where(j > 0, x, 0) for x in (a[before, i], last_w[i]))

            v_here, w_here = of_vectors(j)
            v_next, w_next = of_vectors(j + 1)
            diagonal = a[j, j] - 2 * v_here * w_here
            head = a[j, j + 1] - v_next * w_here - w_next * v_here
            x = load(a.at[j, across], mask=inside & (columns > j + 1), other=0)
            tail = jnp.where(columns > j + 1, x - v * w_here - w * v_here, 0)
            rest = jnp.sum(jnp.square(tail))
            length = jnp.sqrt(jnp.square(head) + rest)
            nothing = rest == 0  # or far below rounding
            beta = jnp.where(nothing, head, jnp.where(head > 0, -length, length))
            safe = jnp.where(nothing, 1, head - beta)
            factor = jnp.where(nothing, 0, -safe / jnp.where(nothing, 1, beta))
            new = jnp.where(columns == j + 1, 1, jnp.where(nothing, 0, tail / safe))
            barrier()  # all have read row j
            store(a.at[j, across], new, mask=inside)
            d[j], e[j], tau[j] = diagonal, beta, factor
            barrier()

            def place(i):
                first = j + 1 + i * rows
                among = first + jnp.arange(rows) < n
                both = among[:, None] & (inside & (columns > j))[None, :]
                return pallas.ds(first, rows), among, both

            def read(i):
                down, among, both = place(i)
                earlier = among & (j > 0)
                return (
                    load(a.at[down, across], mask=both, other=0),
                    load(a.at[before, down], mask=earlier, other=0),
                    load(last_w.at[down], mask=earlier, other=0),
                    load(a.at[j, down], mask=among, other=0),
                )

            def update(i, state):
                total, (tile, v_down, w_down, new_down) = state
                following = read(i + 1)  # arrives while this is used
                tile = tile - v_down[:, None] * w[None, :] - w_down[:, None] * v[None, :]
                down, _, both = place(i)
                store(a.at[down, across], tile, mask=both)
                return total + new_down[:, None] * tile, following

            begin = jnp.zeros((rows, len(columns)), a.dtype), read(0)
            total, _ = jax.lax.fori_loop(0, (n - 1 - j + rows - 1) // rows, update, begin)
            y = jnp.sum(total, axis=0) * factor
            w = y - jnp.sum(y * new) * (factor / 2) * new
            barrier()
            store(last_w.at[across], w, mask=inside)
            barrier()
            return new, w

        if state is None:
            state = (jnp.zeros(width, a.dtype),) * 2
        else:  # all of the width is inside of the matrix
            across = pallas.ds(first, width)
            state = a[first - 1, across], last_w[across]
        state = jax.lax.fori_loop(first, stop, reduce, state)
        first = stop
    # Nothing is left to reduce of the last row.
    last = n - 1
    d[last] = a[last, last] - 2 * a[last - 1, last] * last_w[last]
    e[last] = tau[last] = jnp.zeros((), a.dtype)


def _stops(n):
    """Where the reduction goes on with half the width."""
    stops, width = [], _power_of_two(n)
    while width > 64 and n > width // 2:
        width //= 2
        stops.append(n - width)
    return [*stops, n - 1]


@_compat.default_promotion()
def multiply(reflectors, tau, x):
    """Q X for the Q of `reduce`, the last reflectors first, in the compact form of qr.py."""
    count, n, _ = x.shape
    padded = sections.padded(n, _WIDTH)
    v = jnp.swapaxes(sections.pad(jnp.triu(reflectors, 1), padded, n), 1, 2)
    v = jnp.moveaxis(v.reshape(count, n, -1, _WIDTH), 2, 1)
    tau = jnp.pad(tau, ((0, 0), (0, padded - n))).reshape(count, -1, _WIDTH)
    gram = jnp.triu(products.multiply(v, v, products.TRANSPOSE), 1)
    eye = jnp.eye(_WIDTH, dtype=x.dtype)
    t = jax.lax.linalg.triangular_solve(
        tau[..., None] * gram + eye, tau[..., None] * eye, left_side=True, lower=False,
        unit_diagonal=True,
    )  # fmt: skip
    for i in reversed(range(v.shape[1])):
        begin = i * _WIDTH
        rest = x[:, begin:]
        inner = products.multiply(v[:, i, begin:], rest, products.TRANSPOSE)
        rest = rest - products.multiply(v[:, i, begin:], products.multiply(t[:, i], inner))
        x = sections.put(x, rest, begin)
    return x
