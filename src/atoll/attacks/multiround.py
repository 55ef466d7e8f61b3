"""Many sums, one party: least squares on the sums of many rounds, against secure aggregation of changing cohorts."""

from __future__ import annotations

import numpy as np

from atoll.core.errors import Mismatch
from atoll.core.tree import Array


def recover(matrix: Array, sums: Array) -> Array:
    """Estimate every party's vector, a row each, from who took part (rounds × parties) and the sum of each round.

    Taken to be the same in all rounds, vectors solve matrix · models = sums; of many solutions this is the shortest.
    """
    if len(matrix) != len(sums):
        raise Mismatch(f"{len(matrix)} rounds took place and {len(sums)} sums were seen: give one sum for each round")
    p, s = np.asarray(matrix, np.float64), np.asarray(sums, np.float64)
    return np.linalg.lstsq(p, s.reshape(len(s), -1), rcond=None)[0]


def leak(matrix: Array, models: Array) -> Array:
    """Return how far off the server's estimate of each party's vector is, relative to its length: 0 gives it away."""
    if np.shape(matrix)[1] != len(models):
        raise Mismatch(f"the matrix has {np.shape(matrix)[1]} parties and there are {len(models)} models: one for each")
    truth = np.asarray(models, np.float64).reshape(len(models), -1)
    length = np.linalg.norm(truth, axis=1)
    if not length.all():
        raise Mismatch(f"the model of party {int(np.argmin(length))} is zero: an error relative to it has no meaning")
    return np.linalg.norm(recover(matrix, np.asarray(matrix, np.float64) @ truth) - truth, axis=1) / length
