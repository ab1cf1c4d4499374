"""Kernel ridge regression on handwritten digits, solved across four devices with `jaxmg.potrs`.

    ./tools/bazel run //examples:quickstart
    python examples/quickstart.py            where jaxmg is installed

Runs on the GPUs of JAX's default backend, or else on four CPU devices. A kernel ridge model with
kernel k, penalty alpha, training data X and targets Y is f(x) = k(x, X) C, where C solves the
symmetric positive definite system (k(X, X) + alpha I) C = Y.
"""

import os
import sys
import time

# Sets four CPU devices before the import of JAX; no effect on GPUs. The user's flags take
# precedence.
os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count=4 {os.environ.get('XLA_FLAGS', '')}"
)
print("loading JAX, scikit-learn and the digits ...", flush=True)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from sklearn.kernel_ridge import KernelRidge  # noqa: E402
from sklearn.model_selection import train_test_split  # noqa: E402

import jaxmg  # noqa: E402

# JAX computes in single precision by default, and jaxmg never changes this setting.
jax.config.update("jax_enable_x64", True)

GAMMA, ALPHA = 0.05, 1e-3  # the kernel is exp(-gamma |x - y|^2); the penalty
MESH = Mesh(np.array(jax.devices()), ("rank",))
BY_ROWS = P("rank", None)


def main():
    """Fits, compares with scikit-learn, and returns the exit code."""
    images, labels = load_digits(return_X_y=True)
    x, y = images / 16.0, np.eye(10)[labels]  # pixels from 0 to 1; one column per digit
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=0)
    kind = MESH.devices.flat[0].device_kind
    print(f"{len(x)} images; {MESH.size} devices: {kind}", flush=True)

    good = True
    coefficients = None
    for name, points, targets in (("training set", x_train, y_train), ("all data", x, y)):
        solution, passed = solve(name, points, targets)
        coefficients = solution if coefficients is None else coefficients
        good &= passed

    ours = np.asarray(kernel(x_test, x_train) @ coefficients)
    print("the same with scikit-learn's KernelRidge ...", flush=True)
    start = time.perf_counter()
    model = KernelRidge(kernel="rbf", gamma=GAMMA, alpha=ALPHA).fit(x_train, y_train)
    print(f"  time            {time.perf_counter() - start:.3f} s")
    theirs = model.predict(x_test)
    difference = float(np.abs(ours - theirs).max())
    print(f"test accuracy     {accuracy(ours, y_test):.4f}")
    print(f"  scikit-learn    {accuracy(theirs, y_test):.4f}")
    print(f"largest difference of the predictions: {difference:.1e}")

    good &= difference < 1e-8 and accuracy(ours, y_test) == accuracy(theirs, y_test) > 0.9
    print("all right" if good else "WRONG")
    return 0 if good else 1


def solve(name, x, y):
    """Returns (the coefficients, whether they are accurate) for the points x and targets y."""
    n = len(x)
    print(f"{name}: a system of order {n}, compiling ...", flush=True)
    compiled = fit.lower(x, y).compile()
    print("  solving ...", flush=True)
    start = time.perf_counter()
    coefficients, status = jax.block_until_ready(compiled(x, y))
    seconds = time.perf_counter() - start
    error, limit = float(backward_error(x, y, coefficients)), 10 * n * np.finfo(np.float64).eps
    print(f"  time            {seconds:.3f} s, kernel matrix included")
    print(f"  backward error  {error:.1e} (limit {limit:.1e}), status {int(status)}", flush=True)
    return coefficients, int(status) == 0 and error <= limit


@jax.jit
def fit(x, y):
    """Returns the coefficients and the status: jaxmg needs only this call, under jit."""
    return jaxmg.potrs(system(x), y, mesh=MESH, in_specs=BY_ROWS, return_status=True)


@jax.jit
def backward_error(x, y, c):
    """Returns |A C - Y| / (|A| |C| + |Y|) in the Frobenius norm."""
    a = system(x)
    norm = jnp.linalg.norm
    return norm(a @ c - y) / (norm(a) * norm(c) + norm(y))


def system(x):
    """Returns k(X, X) + alpha I. Each device computes its own rows, although their number isn't
    divisible by the number of devices."""
    a = kernel(x, x) + ALPHA * jnp.eye(len(x))
    return jax.lax.with_sharding_constraint(a, NamedSharding(MESH, BY_ROWS))


def kernel(x, y):
    """Returns the matrix exp(-gamma |x_i - y_j|^2)."""
    squares = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(y**2, axis=1) - 2 * x @ y.T
    return jnp.exp(-GAMMA * jnp.maximum(squares, 0))


def accuracy(scores, targets):
    return float(np.mean(scores.argmax(axis=1) == targets.argmax(axis=1)))


if __name__ == "__main__":
    sys.exit(main())
