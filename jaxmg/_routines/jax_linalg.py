"""The programs of the functions of `jaxmg.linalg`: compositions of routines and of products."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jaxmg import _compat
from jaxmg._call import blocks, checks, layouts, programs, symmetry
from jaxmg._call.arguments import matrix_spec
from jaxmg._factors import cholesky_factor, condition, transposed
from jaxmg._factors import packed_lu as kept_lu
from jaxmg._factors.lu_factor import LUFactor
from jaxmg._routines import (
    cho_factor,
    exponential,
    gesv,
    getri,
    lu_factor,
    packed_lu,
    potri,
    potrs,
    structure,
    syevd,
    triangular,
)
from jaxmg._transform import batching, derivatives, hermitian, products

# Besides the routines' dtypes those of which JAX has powers of the same dtype: products need no
# native code.
_INTEGERS = tuple(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))

# Which part of a matrix is read, or what it has to be.
UPPER, LOWER, HERMITIAN, ANY = "upper", "lower", "hermitian", "any"
# SciPy's names of what a matrix is known to be; "": nothing.
ASSUMED = {
    "pos": "pos", "positive definite": "pos", "her": "her", "hermitian": "her", "sym": "sym",
    "symmetric": "sym", "gen": "gen", "general": "gen", None: "",
}  # fmt: skip
# Norms of which `cond` estimates that of the inverse; of the others it takes the inverse's.
ESTIMATED = (1, np.inf)


def triangle(lower):
    return LOWER if lower else UPPER


def eigh(a, name, mesh, spec, read=HERMITIAN):
    return run((a,), name, eigenvectors, ("small", "matrix"), mesh, spec, read)


def slogdet(a, name, mesh, spec):
    return run((a,), name, log_det, ("small", "small"), mesh, spec)


def cond(x, p, mesh, spec):
    if checks.is_array(x) and x.ndim > 1 and not x.size:
        raise ValueError(
            f"linalg.cond: an empty matrix has no condition number; x has shape {tuple(x.shape)}"
        )
    return run((x,), "cond", condition_number, ("small",), mesh, spec, p)


def expm(a, upper, squarings, mesh, spec):
    return run((a,), "expm", exponential_of, ("matrix",), mesh, spec, upper, squarings)


def lu_factor_of(a, mesh, spec):
    return tuple(run((a,), "lu_factor", factored, ("matrix", "small"), mesh, spec))


def lu(a, permute_l, mesh, spec):
    m, n = a.shape[-2:] if getattr(a, "ndim", 0) > 1 else (0, 0)
    shapes = ((m, m), (m, min(m, n)), (min(m, n), n))[permute_l:]
    return tuple(run((a,), "lu", decomposed, shapes, mesh, spec, permute_l))


def solve_again_by_lu(lu, pivots, b, trans, mesh, spec):
    """With L, U and LAPACK's pivots."""
    how = transposed.name(trans)
    if how is None:
        raise ValueError(
            "linalg.lu_solve: trans must be 0 or 'N' (a), 1 or 'T' (its transpose), or 2 or 'C' "
            f"(its conjugate transpose); got {trans!r}"
        )
    lu, b = promote(lu, b)
    checks.array("linalg.lu_solve", "lu", lu, checks.ALL)
    pivots = kept_lu.check_pivots("linalg.lu_solve", pivots, lu.shape[-1])

    def each(lu, pivots, b):
        arrays = (lu, b, pivots)
        return run(arrays, "lu_solve", solve_factored, ("like b",), mesh, spec, how)

    if not batching.is_batch(lu):
        return each(lu, pivots, b)
    mesh, spec = where_each_is("lu_solve", lu, mesh, matrix_spec("linalg.lu_solve", spec, None))
    for _ in lu.shape[:-2]:
        each = jax.vmap(each, (0, 0, 0 if b.ndim > 2 else None))
    return each(lu, pivots, b)


def solve_triangular(a, b, trans, lower, unit_diagonal, mesh, spec):
    """With one triangle of a."""
    how = transposed.name(trans)
    if how is None:
        raise ValueError(
            "linalg.solve_triangular: trans must be 0 or 'N' (a), 1 or 'T' (its transpose), or 2 "
            f"or 'C' (its conjugate transpose); got {trans!r}"
        )
    options = bool(lower), how, bool(unit_diagonal)
    return run((a, b), "solve_triangular", solve_one_triangle, ("like b",), mesh, spec, *options)


def function(a, func, name, mesh, spec):
    """A function of a Hermitian matrix, by that of its eigenvalues."""
    (a,) = promote(a)
    if batching.is_batch(a):
        where = where_each_is(name, a, mesh, matrix_spec(f"linalg.{name}", spec, None))
        return _over_leading(name, lambda a: function(a, func, name, *where), (a,))
    if _compat.transformation(a):
        mesh, spec = _seen_below(name, (a,), mesh, matrix_spec(f"linalg.{name}", spec, None))
    w, v = eigh(a, name, mesh, spec)
    points = w.astype(v.dtype)
    values = jnp.asarray(func(points))
    if values.shape != w.shape:
        raise ValueError(
            f"linalg.{name}: func must give as many values as it gets, {w.shape}; it gave "
            f"{values.shape}"
        )
    if not (_compat.TRANSFORMS and layouts.traced((a, values))):
        with _compat.default_promotion():  # of a real v and complex values
            return run((v, values), name, scaled, ("matrix",), mesh, spec)
    slopes = jax.jvp(func, (points,), (jnp.ones_like(points),))[1]
    return _of_eigenvalues((name, mesh, spec), a, w, v, values, slopes)


def _of_eigenvalues(where, *arrays):
    """V values V^H of (a, w, v, values, slopes), with the derivative

        V (F o V^H dA V) V^H,  F_ij = (values_i - values_j) / (w_i - w_j), slopes_i if w_i = w_j

    (N. J. Higham, "Functions of Matrices", SIAM 2008, theorem 3.11). On the diagonal are the
    tangents of the values, which may depend on more than on A. The tangents of w and v have no part
    in it: those of eigenvectors are infinite where eigenvalues are equal.
    """
    name, mesh, spec = where

    def value(a, w, v, values, slopes):
        return run((v, values), name, scaled, ("matrix",), mesh, spec)

    def derivative(primals, tangents):
        result = _of_eigenvalues(where, *primals)
        (a, w, v, values, slopes), (a_dot, *_, values_dot, _) = primals, tangents
        values_dot = jnp.zeros_like(values) if values_dot is None else values_dot
        if a_dot is None:
            return result, value(a, w, v, values_dot, slopes)
        layout = layouts.infer(f"linalg.{name}", (a,), *_seen_below(name, (a,), mesh, spec))
        x = hermitian.rows(layout, v)
        a_dot = hermitian.full(layout, hermitian.rows(layout, a_dot))
        inner = hermitian.adjoint_times(layout, x, hermitian.times(layout, a_dot, x))
        inner = hermitian.divided(layout, inner, w, values, slopes, values_dot)
        x = x.astype(inner.dtype)
        rows = hermitian.times_adjoint(layout, hermitian.times(layout, x, inner), x)
        return result, hermitian.laid_out_like(layout, rows, result)

    return derivatives.differentiable(value, derivative, *arrays)


def run(arrays, name, program, results, mesh, spec, *options):
    """The results of ``program(call, *arrays)``, compiled as a program of its own or traced; a
    single one comes without a list.

    Args:
        arrays: the matrix, right-hand sides, and integers that go with them.
        results: of each whether it is a "matrix" like the first array, "like b" or "small", which
            every device has; or the shape of a matrix that lies as one of that shape would. Or a
            function of the layout that gives all that.
        options: what the program finds as the call's attributes.
    """
    spec = matrix_spec(f"linalg.{name}", spec, None)
    for argument, array in zip(("a", "b"), arrays, strict=False):
        checks.usable(f"linalg.{name}", argument, array)
    if not _is_product(program, options):
        arrays = (*promote(*arrays[:2]), *arrays[2:])
    if any(map(batching.is_batch, arrays)):
        mesh, spec = where_each_is(name, arrays[0], mesh, spec)
        return _jit_batch(name, program, results, mesh, spec, *options)(*arrays)
    if any(map(_compat.transformation, arrays)):
        mesh, spec = _seen_below(name, arrays, mesh, spec)
        return _jit_run(name, program, results, mesh, spec, *options)(*arrays)
    return _run(arrays, name, program, results, mesh, spec, *options)


@functools.lru_cache(maxsize=512)
def _jit_run(*call):
    """A function of arrays that are traced: what JAX differentiates or batches eagerly it would
    else compile operation by operation."""
    return jax.jit(lambda *arrays: _run(arrays, *call))


def _seen_below(name, arrays, mesh, spec):
    """The mesh and the spec of arrays that are being differentiated or batched."""
    called = f"linalg.{name}"
    layouts.refuse_manual_axes(called)
    layout = layouts.infer(called, arrays, mesh, spec)
    return layout.mesh, layout.spec


@functools.lru_cache(maxsize=512)
def _jit_batch(name, program, results, mesh, spec, *options):
    def each(*arrays):
        return run(arrays, name, program, results, mesh, spec, *options)

    dtypes, square = _dtypes(program, options), not _any_shape(program)
    return jax.jit(lambda *arrays: _over_leading(name, each, arrays, dtypes, square))


def _is_product(program, options):
    """Whether a program multiplies matrices and does nothing else."""
    return program is power and options[0] >= 0


def _any_shape(program):
    """Whether a program takes matrices that aren't square."""
    return getattr(program, "any_shape", False)


def _dtypes(program, options):
    """The dtypes of the arrays that a program takes."""
    return checks.DTYPES + (_INTEGERS if _is_product(program, options) else ())


def promote(*arrays):
    """The arrays as JAX promotes them to one inexact dtype; what is no array as it is."""
    if not all(checks.is_array(array) for array in arrays):
        return arrays
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) == 1 and all(jnp.issubdtype(dtype, jnp.inexact) for dtype in dtypes):
        return arrays
    scalars = [
        jax.ShapeDtypeStruct((), array.dtype, weak_type=getattr(array, "weak_type", False))
        for array in arrays
    ]
    # Functions of one and of two arrays that promote them so.
    dtype = jax.eval_shape(jnp.exp if len(scalars) == 1 else jnp.divide, *scalars).dtype
    return tuple(_convert(array, dtype) for array in arrays)


def _convert(array, dtype):
    wide = str(array.dtype) in ("float64", "complex128")
    if array.dtype == dtype or (wide and not _compat.x64_enabled()):  # which is refused later
        return array
    return array.astype(dtype)


def _over_leading(name, function, arrays, dtypes=checks.DTYPES, square=True):
    """``function`` of each matrix of a batch, and of right-hand sides, whose leading dimensions
    broadcast against each other's as in NumPy."""
    called = f"linalg.{name}"
    for argument, array in zip(("a", "b"), arrays, strict=False):
        checks.array(called, argument, array, checks.ALL, dtypes)
    a, *b = arrays
    checks.batch(called, "a", a, True, square)
    if not b or b[0].ndim <= 2 or b[0].shape[:-2] == a.shape[:-2]:
        return batching.over_leading(
            called, ("a", "b"), function, arrays, dtypes=dtypes, square=square
        )
    try:
        leading = np.broadcast_shapes(*(array.shape[:-2] for array in arrays))
    except ValueError:
        raise ValueError(
            f"{called}: the leading dimensions of b, of shape {tuple(b[0].shape)}, don't broadcast "
            f"against those of a, of shape {tuple(a.shape)}"
        ) from None
    # An array without a dimension, or with one of 1 where the other has more, is the same for all.
    there = []
    for array in arrays:
        sizes = (1,) * (len(leading) - max(array.ndim - 2, 0)) + array.shape[:-2]
        there.append([size == most for size, most in zip(sizes, leading, strict=True)])
    arrays = [
        array.reshape(*itertools.compress(leading, marks), *array.shape[-2:])
        for array, marks in zip(arrays, there, strict=True)
    ]
    for axis in reversed(range(len(leading))):
        function = jax.vmap(function, [0 if marks[axis] else None for marks in there])
    return function(*arrays)


def where_each_is(name, a, mesh, spec):
    """The mesh and the spec for each matrix of a batch."""
    on = layouts.mesh_of(f"linalg.{name}", (a,)) if mesh is None else mesh
    sharding = layouts.sharding_below(a)
    if spec is not None or sharding is None or sharding.mesh != on:
        return on, spec
    each = P(*sharding.spec[a.ndim - 2 :])
    return on, each if any(each) else None


@programs.cache_plans
def _run(arrays, name, program, results, mesh, spec, *options):
    called = f"linalg.{name}"
    layouts.refuse_manual_axes(called)
    a = arrays[0]
    checks.matrix(
        called, "a", a, True, checks.ALL, _dtypes(program, options), square=not _any_shape(program)
    )
    if (not callable(results) and "like b" in results) or getattr(program, "with_b", False):
        checks.right_hand_side(called, a, arrays[1], checks.ALL, square=not _any_shape(program))
    layout = layouts.infer(called, arrays, mesh, spec)
    results = results(layout) if callable(results) else results
    specs = {
        "matrix": lambda: layout.result_spec(a.shape),
        "like b": lambda: layouts.spec_of(arrays[1], layout),
        "small": P,
    }
    call = programs.Call(
        f"linalg_{name}", program, layout, a.shape, 0, "",
        tuple(
            layout.result_spec(result) if isinstance(result, tuple) else specs[result]()
            for result in results
        ),
        options,
    )  # fmt: skip
    run = programs.runner(call, arrays)
    return (lambda *arrays: run(*arrays)[0]) if len(results) == 1 else run


# Programs: of a call, whose first attribute says what to read of its matrix, and of global arrays.


def _program(function):
    @functools.wraps(function)
    def program(call, a, *others):
        # On its way to the mesh a matrix may have got rows of padding.
        return function(call, blocks.join_rows(a, call.layout, call.shape[0]), *others)

    return program


def program_of_any_shape(function, with_b=False):
    """A program of matrices (m, n), and of b with as many rows if ``with_b``."""
    program: Any = _program(function)
    program.any_shape, program.with_b = True, with_b
    return program


def _upper(call, a):
    """A matrix of which the upper triangle is what the routine has to read."""
    read = call.attributes[0]
    if read == HERMITIAN:
        return symmetry.nan_unless_hermitian(a, call.layout)
    return _adjoint(a, call.layout) if read == LOWER else a


def _adjoint(a, layout):
    if _compat.COMPILES_EXCHANGES:
        return products.adjoint(a, layout)
    a = layouts.constrain(a, layout, P())
    # JAX 0.6.2 can't lower `conj` in a context of explicit axes.
    return (jax.lax.complex(a.real, -a.imag) if jnp.iscomplexobj(a) else a).T


def _where(call):
    return {"mesh": call.layout.mesh, "matrix_specs": call.layout.spec}


def _by_structure(call, definite, general, known=False):
    """`structure.ByStructure` of functions of (call, arrays), which are hashable."""
    return structure.ByStructure(
        call.layout, functools.partial(definite, call), functools.partial(general, call), known
    ).of


def _whole(call, a, read, symmetric):
    """The whole Hermitian, or symmetric, matrix of which one triangle is read."""
    half = (jnp.tril if read == LOWER else jnp.triu)(a, -1 if read == LOWER else 1)
    eye = jnp.eye(call.shape[0], dtype=bool)
    other = products.transposed(half, call.layout)
    if symmetric:
        return half + other + jnp.where(eye, a, 0)
    return half + other.conj() + jnp.where(eye, a.real.astype(a.dtype), 0)


@_program
def solve(call, a, b):
    read, assumed = call.attributes
    if assumed == "pos":
        return (potrs.potrs(_upper(call, a), b, **_where(call)),)
    if assumed == "gen":
        return (_solve_general(call, a, b),)
    if assumed:
        real = not jnp.iscomplexobj(a)
        a = _whole(call, a, read, assumed == "sym")
        if assumed == "sym" and not real:
            return (_solve_general(call, a, b),)
    return (_by_structure(call, _solve_definite, _solve_general, bool(assumed))(a, b),)


def _solve_definite(call, a, b):
    return potrs.potrs(a, b, return_status=True, **_where(call))


def _solve_general(call, a, b):
    return gesv.gesv(a, b, **_where(call))


@_program
def inverse(call, a):
    return (_inverse(call, a),)


def _inverse(call, a) -> Any:
    return _by_structure(call, _invert_definite, _invert_general)(a)


def _invert_definite(call, a):
    return potri.potri(a, return_status=True, **_where(call))


def _invert_general(call, a):
    return getri.getri(a, **_where(call))


@program_of_any_shape
def factored(call, a):
    """LAPACK's L and U, and pivots: those of the transposed matrix's transpose."""
    return packed_lu.packed(a, call.layout)


@_program
def solve_factored(call, lu, b, pivots):
    """With P A = L U the factor of A^T is there, of which A is the transpose."""
    (how,) = call.attributes
    columns = products.transposed(lu, call.layout)
    factor = LUFactor.from_packed(columns, pivots, **_where(call))
    if how == "C":
        return (factor.solve(b.conj()).conj(),)
    return (factor.solve(b, "T" if how == "N" else "N"),)


@program_of_any_shape
def decomposed(call, a):
    """(P, L, U), or (P L, U), of A = P L U."""
    (permute_l,) = call.attributes
    (m, n), layout = call.shape, call.layout
    lu, pivots = packed_lu.packed(a, layout)
    order = jax.lax.linalg.lu_pivots_to_permutation(pivots, m)
    lower = jnp.tril(lu, -1)[:, :n] + jnp.eye(m, n, dtype=a.dtype)
    lower, upper = lower[:, : min(m, n)], blocks.join_rows(jnp.triu(lu), layout, min(m, n))
    if permute_l:
        columns = products.transposed(lower, layout)[:, jnp.argsort(order)]
        return products.transposed(columns, layout), upper
    permutation = order[None, :] == jnp.arange(m)[:, None]
    return permutation.astype(jnp.finfo(a.dtype).dtype), lower, upper


@_program
def solve_one_triangle(call, a, b):
    return (triangular.solve(a, b, call.layout, *call.attributes),)


@_program
def cholesky(call, a):
    _, upper = call.attributes
    u = cho_factor.cho_factor(_upper(call, a), **_where(call)).upper()
    return (u if upper else _adjoint(u, call.layout),)


@_program
def solve_again(call, c, b):
    return (cholesky_factor.CholeskyFactor.from_upper(_upper(call, c), **_where(call)).solve(b),)


@_program
def eigenvectors(call, a):
    return syevd.syevd(_upper(call, a), **_where(call))


@_program
def eigenvalues(call, a):
    return (syevd.syevd(_upper(call, a), return_eigenvectors=False, **_where(call)),)


@_program
def log_det(call, a):
    return _by_structure(call, _log_det_definite, _log_det_general)(a)


def _log_det_definite(call, a):
    factor = cho_factor.cho_factor(a, **_where(call))
    return (jnp.ones((), a.dtype), factor.logdet()), factor.status


def _log_det_general(call, a):
    return lu_factor.lu_factor(a, **_where(call)).slogdet()


@_program
def condition_number(call, a):
    (p,) = call.attributes
    if p in ESTIMATED:
        function = functools.partial(_estimate_condition, call)
        value: Any = derivatives.differentiable(function, condition.refuse("linalg.cond", "x"), a)
    else:
        value = jnp.linalg.norm(a, p) * jnp.linalg.norm(_inverse(call, a), p)
    return (jnp.where(jnp.isnan(value) & ~jnp.isnan(a).any(), jnp.inf, value),)


def _estimate_condition(call, a):
    (p,) = call.attributes
    factor = lu_factor.lu_factor(a, **_where(call))
    return jnp.linalg.norm(a, p) * condition.inverse_norm(factor, p)


@_program
def exponential_of(call, a):
    upper, squarings = call.attributes
    return (exponential.exponential(jnp.triu(a) if upper else a, call.layout, squarings),)


@_program
def scaled(call, v, values):
    """V values V^H, where the eigenvalues may be complex and the eigenvectors real."""
    values = blocks.replicate(values, call.layout)
    inexact = jnp.issubdtype(values.dtype, jnp.inexact)
    dtype = np.promote_types(v.dtype, values.dtype) if inexact else v.dtype
    v, values = v.astype(dtype), values.astype(dtype)
    return (products.rows_times_adjoint(v * values[None], v, call.layout),)


@_program
def power(call, a):
    (exponent,) = call.attributes
    if exponent < 0:
        a, exponent = _inverse(call, a), -exponent

    def times(x, y):
        return products.rows_times_rows(x, y, call.layout)

    result: Any = None
    while exponent:
        if exponent % 2:
            result = a if result is None else times(result, a)
        exponent //= 2
        a = times(a, a) if exponent else a
    return (jnp.eye(call.shape[0], dtype=a.dtype) if result is None else result,)
