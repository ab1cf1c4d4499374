"""`scale_by_muon`, `scale_by_shampoo` and `scale_by_soap`: optax transformations by `jaxmg.tree`.

The update of each matrix is computed on one device; the devices share the matrices. This module
needs optax (the extra ``jaxmg[optax]``) and JAX 0.10; no other module of this package imports it.

    optimizer = optax.chain(
        jaxmg.optax.scale_by_muon(mesh=mesh, in_specs=P()), optax.scale_by_learning_rate(0.02)
    )

Leaves are matrices (..., m, n); leading dimensions are a batch. Updates of other leaves pass
through unchanged; `optax.partition` can give these leaves to another transformation.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

import jaxmg.tree
from jaxmg import _compat, _names
from jaxmg._call import checks
from jaxmg._call.arguments import either_spec
from jaxmg._layouts import layouts
from jaxmg._trees.optimizer_leaves import Form, Leaves, adjoint, as_dtype_of, wide
from jaxmg._types import MeshLike

try:
    import optax
    from optax.contrib import MuonDimensionNumbers, MuonState  # noqa: F401  of 0.2.6
except ImportError as error:
    raise ImportError(
        'jaxmg.optax needs optax 0.2.6 or newer: pip install "jaxmg[optax]>=2", or '
        'pip install "optax>=0.2.6"'
    ) from error

__all__ = [
    "ShampooState", "SoapState", "scale_by_muon", "scale_by_shampoo", "scale_by_soap",
]  # fmt: skip

_HIGHEST = jax.lax.Precision.HIGHEST


def scale_by_muon(
    ns_coeffs: Sequence[float] | Sequence[Sequence[float]] = (3.4445, -4.7750, 2.0315),
    ns_steps: SupportsIndex = 5,
    beta: Any = 0.95,
    eps: float = 1e-8,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Literal["frobenius", "spectral", "aol", "schatten"] = "frobenius",
    weight_dimension_numbers: Any = None,
    method: Literal["newton-schulz", "polar-express", "exact"] = "newton-schulz",
    ns_dtype: Any = None,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
    in_specs: Any = None,
) -> optax.GradientTransformation:
    """Replaces updates by their orthogonalized momenta, as `optax.contrib.scale_by_muon`.

    The results are those of optax up to rounding (K. Jordan et al., "Muon: An optimizer for hidden
    layers in neural networks", 2024). The state is optax's ``MuonState``: if all leaves are
    matrices, a checkpoint of one transformation continues with the other.

    Args:
        ns_coeffs, ns_steps, preconditioning: As ``coefficients``, ``steps`` and
            ``preconditioning`` of `jaxmg.tree.orthogonalize`. "polar-express" has coefficients of
            its own; "exact" ignores these three and ``eps``.
        beta: Decay rate of the momentum.
        eps: As in `jaxmg.tree.orthogonalize`.
        mu_dtype: Dtype of the momentum in the state. None: the parameter's.
        nesterov, adaptive: As in optax. ``adaptive`` scales a batch as a whole, as optax does.
        weight_dimension_numbers: Pytree of ``optax.contrib.MuonDimensionNumbers`` that is a prefix
            of the parameters, or a function that returns one for the updates. Leaves with the entry
            None pass through. None: the last two dimensions are the matrix; optax takes leaves of
            two dimensions only.
        method: Algorithm, as for `jaxmg.tree.orthogonalize`.
        ns_dtype: Dtype of the iteration, such as ``jnp.bfloat16``. None: the update's dtype, but at
            least float32.
        mesh, matrix_specs, in_specs: As in `jaxmg.tree.map`, for the leaves of the updates. Under
            ``jit`` on automatic axes a mesh and specs are needed if there is no context mesh.

    Returns:
        A transformation. Updates keep their dtypes and shardings. Arithmetic is in at least
        float32.

    Only ``beta`` may be traced, as by `optax.inject_hyperparams`.

    Raises:
        TypeError, ValueError: An option is invalid; this is checked when the transformation is
            created. Updates raise the errors of `jaxmg.tree.orthogonalize`.
        NotImplementedError: JAX is older than 0.10.

    Examples:
        >>> optimizer = optax.chain(jaxmg.optax.scale_by_muon(), optax.scale_by_learning_rate(0.02))
    """
    if in_specs is not None:
        matrix_specs = either_spec("optax.scale_by_muon", matrix_specs, in_specs)
    name = "optax.scale_by_muon"
    _require_jax(name)
    options: dict[str, Any] = {"method": method}
    if method != "exact":
        options |= {"eps": eps, "preconditioning": preconditioning, "dtype": ns_dtype}
        options["steps"] = checks.positive(name, "ns_steps", ns_steps)
    if method == "newton-schulz":
        options["coefficients"] = ns_coeffs
    _check_rate(name, "beta", beta)
    jaxmg.tree.orthogonalize({}, **options)  # checks the options

    @_compat.default_promotion()
    def init(params):
        leaves = Leaves.of(name, "params", params, weight_dimension_numbers)
        mu = leaves.map(lambda x: jnp.zeros_like(x, dtype=mu_dtype or x.dtype), leaves.arrays)
        return MuonState(jnp.zeros((), jnp.int32), _tree(leaves, mu), jnp.asarray(ns_coeffs))

    @_compat.default_promotion()
    def update(updates, state, params=None):
        del params
        leaves = Leaves.of(name, "updates", updates, weight_dimension_numbers, mesh, matrix_specs)
        count, mu = optax.safe_increment(state.count), leaves.like(state.mu)
        here, ahead = ((1 - beta**n) for n in (count, optax.safe_increment(count)))

        def average(g, mean):
            return beta * wide(mean, g) + (1 - beta) * wide(g, mean)

        def momentum(g, mean):
            here_, ahead_ = (n.astype(jnp.finfo(mean.dtype).dtype) for n in (here, ahead))
            if not nesterov:
                return mean / here_
            return beta / ahead_ * mean + (1 - beta) / here_ * wide(g)

        means = leaves.map(average, leaves.arrays, mu)
        momenta = leaves.map(momentum, leaves.arrays, means)
        matrices = leaves.map(Form.to_matrices, leaves.forms, momenta)
        specs = leaves.map(lambda form: form.matrix_spec, leaves.forms)
        near = leaves.call(functools.partial(jaxmg.tree.orthogonalize, **options), specs, matrices)
        near = leaves.map(Form.from_matrices, leaves.forms, near)
        if adaptive:
            near = leaves.map(lambda x, y: y * jnp.sum(x.conj() * y), momenta, near)
        mu = _tree(leaves, leaves.map(as_dtype_of, means, mu))
        state = MuonState(count, mu, leaves.replicated(state.ns_coeffs))
        return leaves.updated(near), state

    return optax.GradientTransformation(init, update)


class ShampooState(NamedTuple):
    """Holds the state of `scale_by_shampoo`.

    Attributes:
        count: Number of updates.
        statistics: Pytree like the parameters, with a pair for each leaf: the averages L of G G^H
            and R of G^H G.
        preconditioners: Pytree like ``statistics``, with the inverse roots of L and R.
    """

    count: Any
    statistics: Any
    preconditioners: Any


def scale_by_shampoo(
    beta2: float = 0.999,
    matrix_epsilon: float = 1e-6,
    preconditioning_compute_steps: SupportsIndex = 1,
    stats_dtype: Any = None,
    *,
    exponent_override: SupportsIndex = 0,
    max_precond_dim: SupportsIndex = 8192,
    method: Literal["eigh", "newton"] = "eigh",
    precision: Any = _HIGHEST,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
    in_specs: Any = None,
) -> optax.GradientTransformation:
    """Preconditions updates by inverse roots of their second moments, as Shampoo does.

    The update G becomes L^(-1/4) G R^(-1/4), where L and R are averages of G G^H and G^H G (V.
    Gupta et al., "Shampoo: Preconditioned Stochastic Tensor Optimization", 2018; R. Anil et al.,
    "Scalable Second Order Optimization for Deep Learning", 2020).

    Args:
        beta2: Decay rate of the averages, which are corrected for their bias as Adam's are. 1:
            sums, as in the paper of 2018.
        matrix_epsilon: Ridge relative to the largest eigenvalue, as ``epsilon`` of
            `jaxmg.tree.inverse_pth_root`.
        preconditioning_compute_steps: Number of updates per computation of the roots.
        stats_dtype: Dtype of the averages of real leaves in the state: bfloat16, float32 or
            float64. None: the parameter's, but at least float32. bfloat16 loses changes of less
            than 1/256, so it needs a ``beta2`` well below 0.99, and a ridge of at least 1/128.
        exponent_override: Order of the roots. 0: twice the number of preconditioners of a leaf.
        max_precond_dim: A dimension above this has no preconditioner; a leaf without one passes
            through.
        method: As in `jaxmg.tree.inverse_pth_root`.
        precision: Precision of the products, as for `jax.numpy.matmul`. A low precision may make
            averages indefinite; the results are then NaN.
        mesh, matrix_specs, in_specs: As in `scale_by_muon`.

    Returns:
        A transformation, whose state is a `ShampooState`. Updates keep their dtypes and shardings.
        The rows of L are sharded like those of G, and the rows of R like the columns of G. An
        average that is 0 has the preconditioner 0.

    There is no grafting, no momentum and no division of large matrices into blocks. `optax.trace`
    adds momentum.

    Cost: two products for the averages, two for the update, and the roots of L and R. XLA
    distributes the products as their operands are sharded. Memory: twice L and R.

    Raises:
        TypeError, ValueError, NotImplementedError: As in `scale_by_muon`.
    """
    if in_specs is not None:
        matrix_specs = either_spec("optax.scale_by_shampoo", matrix_specs, in_specs)
    name = "optax.scale_by_shampoo"
    _require_jax(name)
    _check_rate(name, "beta2", beta2, most=1)
    every = checks.positive(name, "preconditioning_compute_steps", preconditioning_compute_steps)
    override = checks.non_negative(name, "exponent_override", exponent_override)
    most = checks.non_negative(name, "max_precond_dim", max_precond_dim)
    dtype = _check_stats_dtype(name, stats_dtype)
    jaxmg.tree.inverse_pth_root({}, 4, matrix_epsilon, method)  # checks the options
    if dtype == jnp.bfloat16:
        matrix_epsilon = max(matrix_epsilon, float(jnp.finfo(dtype).eps))
    decay, new = (1, 1) if beta2 == 1 else (beta2, 1 - beta2)

    @_compat.default_promotion()
    def init(params):
        leaves = Leaves.of(name, "params", params, None, mesh, matrix_specs, most)
        pairs = (_tree(leaves, leaves.squares(dtype, *least)) for least in ((), ("float32",)))
        return ShampooState(jnp.zeros((), jnp.int32), *pairs)

    @_compat.default_promotion()
    def update(updates, state, params=None):
        del params
        leaves = Leaves.of(name, "updates", updates, None, mesh, matrix_specs, most)
        count = optax.safe_increment(state.count)
        statistics = leaves.averages(leaves.like(state.statistics), decay, new, precision)
        bias = 1 if beta2 == 1 else 1 - beta2**count

        def compute(statistics, _):
            statistics = leaves.of_pairs(lambda x: _over(wide(x), bias), statistics)
            roots = [(None, None)] * len(statistics)
            orders = leaves.map(lambda form: override or 2 * sum(form.sides), leaves.forms)
            for p in sorted({order for order in orders if order}):
                root = functools.partial(
                    jaxmg.tree.inverse_pth_root, p=p, epsilon=matrix_epsilon, method=method
                )
                specs, chosen = (
                    [x if p == of else None for x, of in zip(values, orders, strict=True)]
                    for values in (leaves.square_specs, statistics)
                )
                found: Any = leaves.call(root, specs, chosen)
                roots = [b if p == of else a for a, b, of in zip(roots, found, orders, strict=True)]
            return leaves.squarely(_zero_of_zero, roots, statistics)

        which = jnp.where(state.count % every == 0, 0, 1) if every > 1 else np.int32(0)
        old = leaves.like(state.preconditioners)
        preconditioners = _branch(which, (compute, _keep), statistics, old)

        def apply(form, g, pair):
            def product(g, pair):
                left, right = pair
                return _between(wide(g), left, right, precision)

            return form.on(product, form.spec, g, pair)

        results = leaves.map(apply, leaves.forms, leaves.arrays, preconditioners)
        state = ShampooState(count, _tree(leaves, statistics), _tree(leaves, preconditioners))
        return leaves.updated(results), state

    return optax.GradientTransformation(init, update)


class SoapState(NamedTuple):
    """Holds the state of `scale_by_soap`.

    Attributes:
        count: Number of updates.
        mu: Averages of the updates, a pytree like the parameters.
        nu: Averages of the squares of the rotated updates.
        statistics: Pytree like the parameters, with a pair for each leaf: the averages L of G G^H
            and R of G^H G.
        bases: Pytree like ``statistics``, with the eigenvectors of L and R in columns.
    """

    count: Any
    mu: Any
    nu: Any
    statistics: Any
    bases: Any


def scale_by_soap(
    b1: Any = 0.95,
    b2: Any = 0.95,
    eps: Any = 1e-8,
    shampoo_beta: Any = None,
    precondition_frequency: SupportsIndex = 10,
    max_precond_dim: SupportsIndex = 8192,
    mu_dtype: Any = None,
    stats_dtype: Any = None,
    *,
    method: Literal["qr", "eigh"] = "qr",
    precision: Any = _HIGHEST,
    mesh: MeshLike | None = None,
    matrix_specs: Any = None,
    in_specs: Any = None,
) -> optax.GradientTransformation:
    """Rescales updates by Adam in the eigenvectors of their second moments, as SOAP does.

    N. Vyas et al., "SOAP: Improving and Stabilizing Shampoo using Adam", 2024, algorithm 3, with
    Adam's bias corrections. As in the authors' program, the first update is 0 and only computes the
    first eigenvectors. Each later update is rotated by the eigenvectors that earlier updates
    computed.

    Args:
        b1, b2, eps: As in `optax.scale_by_adam`.
        shampoo_beta: Decay rate of the averages L of G G^H and R of G^H G. None: ``b2``.
        precondition_frequency: Number of updates per improvement of the eigenvectors.
        max_precond_dim: A dimension above this isn't rotated.
        mu_dtype: Dtype of the momentum in the state. None: the parameter's. The squares have the
            parameter's real dtype, but at least float32.
        stats_dtype: Dtype of the averages L and R of real leaves in the state: bfloat16, float32 or
            float64. None: the parameter's, but at least float32.
        method: How the eigenvectors are improved. "qr": by `jaxmg.tree.orthogonal_iteration`, with
            one product and one QR decomposition. "eigh": by `jaxmg.tree.eigh`, which always
            computes the first eigenvectors.
        precision: Precision of the products, as for `jax.numpy.matmul`.
        mesh, matrix_specs, in_specs: As in `scale_by_muon`.

    Returns:
        A transformation, whose state is a `SoapState`. Updates keep their dtypes and shardings. The
        rows of L are sharded like those of G, and the rows of R like the columns of G. Their
        eigenvectors are sharded likewise.

    Cost: two products for L and R and six for the rotations, which XLA distributes as the operands
    are sharded, and the eigenvectors of L and R. Memory: twice L and R, and twice the parameters.

    Raises:
        TypeError, ValueError, NotImplementedError: As in `scale_by_muon`.
    """
    if in_specs is not None:
        matrix_specs = either_spec("optax.scale_by_soap", matrix_specs, in_specs)
    name = "optax.scale_by_soap"
    _require_jax(name)
    for argument, value in (("b1", b1), ("b2", b2), ("shampoo_beta", shampoo_beta)):
        _check_rate(name, argument, value)
    every = checks.positive(name, "precondition_frequency", precondition_frequency)
    most = checks.non_negative(name, "max_precond_dim", max_precond_dim)
    dtype = _check_stats_dtype(name, stats_dtype)
    if method not in ("qr", "eigh"):
        raise ValueError(f"{name}: method must be 'qr' or 'eigh'; got {method!r}")
    decay = b2 if shampoo_beta is None else shampoo_beta

    @_compat.default_promotion()
    def init(params):
        leaves = Leaves.of(name, "params", params, None, mesh, matrix_specs, most)
        mu = leaves.map(lambda x: jnp.zeros_like(x, dtype=mu_dtype or x.dtype), leaves.arrays)
        nu = leaves.map(lambda x: jnp.zeros_like(x, dtype=_real(x.dtype)), leaves.arrays)
        trees = (mu, nu, leaves.squares(dtype), leaves.squares(dtype, "float32"))
        return SoapState(jnp.zeros((), jnp.int32), *(_tree(leaves, each) for each in trees))

    @_compat.default_promotion()
    def update(updates, state, params=None):
        del params
        leaves = Leaves.of(name, "updates", updates, None, mesh, matrix_specs, most)
        # Operands of `step`, because an explicit mesh forbids closures over arrays.
        steps = jnp.maximum(state.count, 1)
        numbers = (state.count == 0, b1, b2, eps, 1 - b1**steps, 1 - b2**steps)

        def step(numbers, g, mu, nu, bases):
            first, b1, b2, eps, bias1, bias2 = numbers
            rotate = functools.partial(_rotate, bases=bases, precision=precision)
            x = wide(g)
            mean = jnp.where(first, 0, b1 * wide(mu, x) + (1 - b1) * x)
            squares = jnp.where(first, 0, b2 * nu + (1 - b2) * jnp.abs(rotate(x)) ** 2)
            direction = rotate(_over(mean, bias1)) / (jnp.sqrt(_over(squares, bias2)) + eps)
            result = jnp.where(first, 0, rotate(direction, back=True))
            return result, mean.astype(mu.dtype), squares.astype(nu.dtype)

        def adam(form, *arrays):
            return form.on(step, (form.spec,) * 3, numbers, *arrays)

        mu, nu, old = (leaves.like(each) for each in (state.mu, state.nu, state.bases))
        triples = leaves.map(adam, leaves.forms, leaves.arrays, mu, nu, old)
        results, mu, nu = (leaves.map(lambda triple, i=i: triple[i], triples) for i in range(3))
        statistics = leaves.averages(leaves.like(state.statistics), decay, 1 - decay, precision)

        def compute(statistics, _):
            wider = leaves.of_pairs(wide, statistics)
            pairs = leaves.call(jaxmg.tree.eigh, leaves.square_specs, wider)
            return leaves.squarely(_descending, pairs)

        def improve(statistics, old):
            wider = leaves.of_pairs(wide, statistics)
            function = jaxmg.tree.orthogonal_iteration
            return leaves.call(function, leaves.square_specs, wider, old)

        due = jnp.where(state.count % every == 0, 0, 1)
        which = jnp.where(state.count == 0, 2, due) if method == "qr" else due
        branches = (improve, _keep, compute) if method == "qr" else (compute, _keep)
        bases = _branch(which, branches, statistics, old)
        trees = (_tree(leaves, each) for each in (mu, nu, statistics, bases))
        return leaves.updated(results), SoapState(optax.safe_increment(state.count), *trees)

    return optax.GradientTransformation(init, update)


def _tree(leaves, values):
    return leaves.tree(values, optax.MaskedNode())


def _branch(which, branches, *operands):
    """Runs one of the branches. An eager call compiles only that one."""
    if layouts.traced((which, *jax.tree.leaves(operands))) and not isinstance(which, np.integer):
        return jax.lax.switch(which, branches, *operands)
    return branches[int(which)](*operands)


def _keep(_, old):
    return old


def _between(x, left, right, precision):
    """Returns L X R."""
    x = x if left is None else jnp.matmul(left, x, precision=precision)
    return x if right is None else jnp.matmul(x, right, precision=precision)


def _rotate(x, bases, precision, back=False):
    """Returns Q^H X P for the bases (Q, P), or Q X P^H."""
    left, right = bases
    if back:
        return _between(x, left, right if right is None else adjoint(right), precision)
    return _between(x, left if left is None else adjoint(left), right, precision)


def _zero_of_zero(root, a):
    """Returns the root of A, or 0 if A is 0. A is positive semidefinite."""
    trace = jnp.trace(a, axis1=-2, axis2=-1)[..., None, None]
    return jnp.where(trace == 0, 0, root)


def _descending(pair):
    """Returns eigenvectors in the order of descending eigenvalues."""
    return jnp.flip(pair.eigenvectors, -1)


def _real(dtype):
    """Returns the real dtype of at least float32."""
    return jnp.finfo(jnp.promote_types(dtype, jnp.float32)).dtype


def _over(x, number):
    """Divides x by a real number, in the precision of x."""
    return x / jnp.asarray(number, jnp.finfo(x.dtype).dtype)


def _require_jax(name):
    if not checks.ALL:
        raise NotImplementedError(f"{name}: needs JAX 0.10 or newer; this is {jax.__version__}")


def _check_rate(name, argument, value, most=None):
    """Checks a decay rate, which is below 1, or at most ``most``. A tracer passes."""
    if value is None or not isinstance(value, (int, float)):
        return
    if not (0 <= value < 1 or value == most):
        limit = "below 1" if most is None else f"at most {most}"
        raise ValueError(f"{name}: {argument} must be at least 0 and {limit}; got {value!r}")


def _check_stats_dtype(name, dtype):
    if dtype is None:
        return None
    if str(jnp.dtype(dtype)) not in ("bfloat16", "float32", "float64"):
        raise TypeError(f"{name}: stats_dtype must be bfloat16, float32 or float64; got {dtype!r}")
    return jnp.dtype(dtype)


if not TYPE_CHECKING:  # with it type checkers would accept any attribute

    def __getattr__(name):
        raise _names.missing(__name__, name)
