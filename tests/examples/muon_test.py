"""Muon with each matrix on one device takes the steps of optax's, and the transformer learns."""

import jax
import jax.numpy as jnp
import muon
import numpy as np
import pytest

WIDTH = 16


def _updates(optimizer, steps=3):
    w = jax.device_put(muon.initial(WIDTH), muon.EVERYWHERE)
    random, state, update = np.random.default_rng(1), optimizer.init(w), jax.jit(optimizer.update)
    for _ in range(steps):
        g = jax.tree.map(lambda x: jnp.asarray(random.standard_normal(x.shape), x.dtype), w)
        updates, state = update(g, state, w)
    return updates


def _distance(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(jnp.abs(x - y).max()) for x, y in pairs)


def test_updates_are_those_of_optax():
    expected = _updates(muon.muon_of_optax())
    assert _distance(_updates(muon.muon()), expected) < 1e-6
    assert _distance(_updates(muon.muon(ns_steps=4)), expected) > 1e-3


def test_a_byte_does_not_see_those_after_it():
    w, place = muon.initial(WIDTH), 20
    text = jnp.asarray(muon.reference_text()[0][: muon.LENGTH][None], jnp.int32)
    scores, other = (
        muon.scores_of_next(w, x) for x in (text, text.at[0, place].set(text[0, place] + 1))
    )
    np.testing.assert_allclose(scores[:, :place], other[:, :place], rtol=1e-6)
    assert (jnp.abs(scores - other)[:, place:].max(axis=2) > 1e-4).all()


@pytest.mark.parametrize("name", ["Muon", "Adam"])
def test_the_loss_falls(name):
    optimizer = muon.muon() if name == "Muon" else muon.optax.adam(muon.ADAM_RATE)
    _, losses, seconds = muon.train(optimizer, WIDTH, muon.reference_text(), 12)
    assert np.isfinite(losses).all() and losses[-1] < losses[0] - 0.5 and seconds > 0
