"""Rules: one vector for the rows of an (n, d) matrix. Pure functions, no party, no wire."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atoll.core.tree import Array
from atoll.core.wire import Mismatch, Rule

_BLOCK = 1 << 14  # columns sorted at a time: their transpose stays in the cache


@dataclass(frozen=True)
class Mean(Rule):
    """The mean of the rows.

    Example:
        >>> import atoll
        >>> import numpy as np
        >>> atoll.Mean()(np.array([[1.0, 2.0], [3.0, 6.0]])).tolist()
        [2.0, 4.0]
    """

    def __call__(self, rows: Array) -> Array:
        return np.asarray(rows.mean(axis=0))


@dataclass(frozen=True)
class Median(Rule):
    """The median of every coordinate: it stays bounded whatever fewer than half of the parties send.

    Example:
        >>> import atoll
        >>> import numpy as np
        >>> atoll.Median()(np.array([[1.0, 2.0], [3.0, 6.0], [1e9, -1e9]])).tolist()
        [3.0, 2.0]
    """

    def __call__(self, rows: Array) -> Array:
        return _sorted_mean(rows, (len(rows) - 1) // 2)


@dataclass(frozen=True)
class TrimmedMean(Rule):
    """Drop the f largest and the f smallest values of every coordinate, then take the mean.

    Needs: more than 2·f answers.

    Args:
        f: values to drop at either end, 0 or more. Default 1.

    Example:
        >>> import atoll
        >>> import numpy as np
        >>> atoll.TrimmedMean(1)(np.array([[1.0], [2.0], [4.0], [1e9]])).tolist()
        [3.0]
    """

    f: int = 1

    def __post_init__(self) -> None:
        if self.f < 0:
            raise Mismatch(f"TrimmedMean(f={self.f}): f is how many to drop at either end, at least 0")

    @property
    def min_rows(self) -> int:
        """The fewest rows it can do with."""
        return 2 * self.f + 1

    def __call__(self, rows: Array) -> Array:
        if len(rows) <= 2 * self.f:
            raise Mismatch(f"TrimmedMean(f={self.f}) needs more than {2 * self.f} answers, {len(rows)} came")
        return _sorted_mean(rows, self.f)


def _sorted_mean(rows: Array, drop: int) -> Array:
    """Sort each column, drop this many at either end, average the rest."""
    out = np.empty(rows.shape[1], rows.dtype)
    for a in range(0, rows.shape[1], _BLOCK):
        columns = np.sort(np.ascontiguousarray(rows[:, a : a + _BLOCK].T), axis=1)
        out[a : a + _BLOCK] = columns[:, drop : len(rows) - drop].mean(axis=1)
    return out
