import cases
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxmg

_SIZE = st.integers(0, 300)
_TILE = st.integers(1, 40)
_RANKS = st.integers(1, 16)


def _block_cyclic(matrix, tile, ranks):
    """Returns the block-cyclic matrix, tile by tile: rank r holds the tiles r, r + P, r + 2 P,
    ..."""
    tiles = np.split(matrix, len(matrix) // tile)
    return np.concatenate([part for rank in range(ranks) for part in tiles[rank::ranks]])


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("tile, tiles", [(1, 5), (3, 4), (5, 1)])
def test_layout(ranks, tile, tiles):
    mesh = cases.line(ranks)
    dtype = cases.DTYPES[(ranks + tile) % 4]
    matrix = cases.normal(cases.rng(ranks, tile), (ranks * tile * tiles, 6), dtype)
    a = cases.shard(matrix, mesh, "r", None)
    dealt = jaxmg.cyclic_1d(a, tile)
    np.testing.assert_array_equal(dealt, _block_cyclic(matrix, tile, ranks))
    jaxmg.verify_cyclic(a, dealt, tile)
    assert dealt.sharding.is_equivalent_to(a.sharding, 2)
    np.testing.assert_array_equal(a, matrix)
    back = jaxmg.cyclic_1d(dealt, tile, inverse=True)
    assert np.asarray(back).tobytes() == matrix.tobytes()


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(rows=st.integers(1, 70), tile=st.integers(1, 9), ranks=st.sampled_from([1, 2, 3, 5, 8]))
def test_round_trip_of_any_size(rows, tile, ranks):
    """The round trip is exact, with rows of zeros appended if the tiles don't divide the rows."""
    ranks = min(ranks, len(jax.devices()))
    mesh = cases.line(ranks)
    matrix = cases.normal(cases.rng(rows, tile), (rows, 3), "complex64")
    dealt = jaxmg.cyclic_1d(cases.shard_rows(matrix, mesh), tile, mesh)
    assert dealt.shape == (-(-rows // (ranks * tile)) * ranks * tile, 3)
    jaxmg.verify_cyclic(matrix, dealt, tile)
    back = np.asarray(jaxmg.cyclic_1d(dealt, tile, inverse=True))
    assert back[:rows].tobytes() == matrix.tobytes()
    assert not back[rows:].any()


def test_verify_finds_a_wrong_row():
    mesh = cases.line(min(2, len(jax.devices())))
    matrix = np.arange(24.0).reshape(12, 2)
    dealt = np.asarray(jaxmg.cyclic_1d(cases.shard(matrix, mesh, "r", None), 3)).copy()
    dealt[4, 1] = -1
    with pytest.raises(AssertionError, match="1 of 12 rows differ, the first is row 4"):
        jaxmg.verify_cyclic(matrix, cases.shard(dealt, mesh, "r", None), 3)
    with pytest.raises(ValueError, match="a multiple of ranks"):
        jaxmg.verify_cyclic(matrix, matrix[:11], 3)


@given(_SIZE, _TILE)
def test_padding_fills_the_last_tile(size, tile):
    padding = jaxmg.calculate_padding(size, tile)
    assert padding == (-size) % tile
    assert 0 <= padding < tile
    assert (size + padding) % tile == 0


@given(_SIZE, _TILE, _RANKS, st.integers(0, 5))
def test_columns(size, tile, ranks, slack):
    batch = max(1, -(-size // ranks) + slack)
    moves = jaxmg.get_cols_cyclic(size, batch, tile, ranks)
    assert [column for column, _, _ in moves] == list(range(size))
    for column, source, destination in moves:
        assert source == column // batch
        assert destination == column // tile % ranks
        assert 0 <= source < ranks


@pytest.mark.parametrize("rows", [(3,), (3, 4), (3, 2, 2)])
def test_pad_and_unpad(rows):
    a = np.ones(rows)
    padded = jaxmg.pad_rows(a, 2)
    assert padded.shape == (5, *rows[1:])
    np.testing.assert_array_equal(padded[3:], 0)
    np.testing.assert_array_equal(jaxmg.unpad_rows(padded, 2), a)
    np.testing.assert_array_equal(jaxmg.unpad_rows(jaxmg.pad_rows(a, 0), 0), a)


@pytest.mark.slow
def test_plot():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    figure = jaxmg.plot_block_to_cyclic(22, 4, 3, N_rows=5)
    images = [axis.images[0].get_array() for axis in figure.axes]
    assert [image.shape for image in images] == [(5, 22), (5, 22)]
    np.testing.assert_array_equal(images[0][0], np.arange(22) // 8)
    np.testing.assert_array_equal(images[1][0], np.sort(np.arange(22) // 4 % 3))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: jaxmg.calculate_padding(4, 0), "T_A must be at least 1; got 0"),
        (lambda: jaxmg.calculate_padding(-1, 2), "shard_size must not be negative; got -1"),
        (lambda: jaxmg.get_cols_cyclic(9, 4, 1, 2), "N must be at most .* = 8; got 9"),
        (lambda: jaxmg.unpad_rows(np.ones((2, 2)), 3), "padding is 3, but a has only 2 rows"),
        (lambda: jaxmg.pad_rows(np.ones((2, 2)), -1), "padding must not be negative; got -1"),
        (lambda: jaxmg.cyclic_1d(np.ones(3), 2), r"2 dimensions; it has shape \(3,\)"),
        (
            lambda: jaxmg.cyclic_1d(np.ones((3, 3)), 2, pad=False),
            "pad=False the number of rows of a, 3, must",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_tile_width_is_required():
    with pytest.raises(TypeError, match="T_A, the tile width, must be an integer"):
        jaxmg.cyclic_1d(np.ones((3, 3)), None)
