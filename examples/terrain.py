"""The 344 x 403 heights of the Jacksboro fault in Tennessee, which come with matplotlib."""

import numpy as np
from matplotlib import cbook

KM = 111.2 * 0.000833333  # distance of rows; columns are closer by the cosine of the latitude


def terrain(n):
    """Returns (all heights, points, their heights, (2000 other points, their heights)).

    Points are (n, 2) in km. Heights are in m, relative to their mean.
    """
    heights = cbook.get_sample_data("jacksboro_fault_dem.npz")["elevation"].astype(float)
    heights -= heights.mean()
    chosen = np.random.default_rng(0).permutation(heights.size)
    points = places(*np.unravel_index(chosen, heights.shape))
    values = heights.ravel()[chosen]
    return heights, points[:n], values[:n], (points[n : n + 2000], values[n : n + 2000])


def places(row, column):
    """Returns the places of the heights, (n, 2) in km."""
    return np.stack([np.ravel(column) * KM * np.cos(np.radians(36.6)), np.ravel(row) * KM], axis=1)
