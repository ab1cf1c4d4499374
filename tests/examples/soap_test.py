"""A batch spread over the mesh makes the steps of one device's eigh, and SOAP beats Adam."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import soap

N, STEPS = 29, 25  # 29 is divided by no number of devices


@pytest.fixture(scope="module")
def trained():
    known, others = soap.digits(N, jnp.float64)
    spread = functools.partial(soap.jaxmg.eigh, mesh=soap.MESH)
    run = functools.partial(soap.train, n=N, known=known, others=others, steps=STEPS)
    found = {
        "adam": run(optax.adam(soap.ADAM_RATE)),
        "jaxmg": run(soap.soap(soap.SOAP_RATE, spread)),
    }
    # All of it on one device: over four of them, XLA's CPU client of JAX 0.10 waits for ever.
    with pytest.MonkeyPatch.context() as patch:
        one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        patch.setattr(soap, "EVERYWHERE", one)
        patch.setattr(soap, "BY_IMAGES", one)
        found["jax"] = run(soap.soap(soap.SOAP_RATE, jnp.linalg.eigh))
    return found


def test_same_steps_as_with_jax(trained):
    # Sums over devices round otherwise, and small eigenvalues let their axes turn with that.
    np.testing.assert_allclose(trained["jaxmg"][2][:15], trained["jax"][2][:15], rtol=5e-3)


def test_falls_faster_than_adams(trained):
    adam, ours = (np.array(trained[name][2]) for name in ("adam", "jaxmg"))
    assert np.isfinite(ours).all()
    assert ours[-1] < 0.95 * adam[-1] < adam[0]


def test_wrong_eigenvectors_are_found(trained):
    a = trained["jaxmg"][1][0].statistics
    assert a.shape == (2 * soap.LAYERS, N, N)
    w, v = jax.jit(functools.partial(soap.jaxmg.eigh, mesh=soap.MESH))(a)
    limit = 10 * N * np.finfo(np.float64).eps
    assert max(soap.errors(a, w, v, jnp.linalg.eigh(a)[0]).values()) <= limit
    # Those of one matrix in another's place, a scaled eigenvector, a shifted eigenvalue.
    swapped = soap.errors(a, w, v.at[:2].set(v[1::-1]), w)
    assert swapped["residual"] > limit >= swapped["orthogonality"]
    assert soap.errors(a, w, v.at[-1, :, 0].multiply(1 + 1e-9), w)["orthogonality"] > limit
    assert soap.errors(a, w.at[5, -1].multiply(1 + 1e-9), v, w)["eigenvalues"] > limit


def test_step_is_adams_in_the_eigenbases():
    """The first step of SOAP on one matrix: signs of the gradient in its singular vectors."""
    g = np.random.default_rng(0).standard_normal((1, 7, 7))
    optimizer = soap.soap(0.1, functools.partial(soap.jaxmg.eigh, mesh=soap.MESH))
    update, _ = jax.jit(optimizer.update)(g, optimizer.init(jnp.zeros((1, 7, 7))))
    u, _, vt = np.linalg.svd(g[0])
    # In them g is diagonal; Adam's first step is the sign of each element, here of 7.
    np.testing.assert_allclose(update[0], -0.1 * u @ vt, atol=1e-6)
