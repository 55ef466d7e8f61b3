"""Normal numbers for simulations, drawn by address and quickly: a table of quantiles and random bits.

Within a cell of the table numbers are uniform, beyond its ends exact: in total variation the distribution is off by
less than 10⁻⁴. This is for simulated noise only; what really hides anybody is in `discrete`.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np

from atoll.core.keys import Array, draw, rng

_CELLS = 1 << 16


def normal(size: int, *address: object) -> Array:
    """Return standard normal numbers (float32) at an address."""
    low, slope, end = _table()
    generator = np.random.SFC64(int(draw(*address)[0]))
    bits = generator.random_raw(-(-size // 2)).view(np.uint32)[:size]
    cell = (bits >> np.uint32(16)).astype(np.intp)
    z = np.bitwise_and(bits, np.uint32(0xFFFF)).astype(np.float32)
    z *= slope.take(cell, mode="clip")  # no number is out of range; not to check is quicker
    z += low.take(cell, mode="clip")
    outer = np.nonzero((bits + np.uint32(1 << 16)) < np.uint32(1 << 17))[
        0
    ]  # the first cell or, wrapped around, the last
    if len(outer):
        z[outer] = np.where(cell[outer] == 0, -1.0, 1.0) * _beyond(end, len(outer), *address)
    return z


@lru_cache(maxsize=1)
def _table() -> tuple[Array, Array, float]:
    """Return each cell's lower end, its width in steps of 2⁻¹⁶, and where the last cell begins."""
    inverse = NormalDist().inv_cdf
    upper = np.array([inverse(0.5 + i / _CELLS) for i in range(_CELLS // 2)])
    ends = np.concatenate([-upper[:0:-1], upper])  # of all cells but the outermost
    low = np.concatenate([[0.0], ends]).astype(np.float32)
    slope = np.concatenate([[0.0], np.diff(ends), [0.0]]).astype(np.float32) / np.float32(_CELLS)
    return low, slope, float(upper[-1])


def _beyond(a: float, size: int, *address: object) -> Array:
    """Return normal numbers above a (Marsaglia 1964)."""
    generator, found = rng(*address, "tail"), np.empty(0)
    while len(found) < size:
        x = np.sqrt(a * a - 2 * np.log1p(-generator.random(2 * size + 8)))
        found = np.concatenate([found, x[generator.random(len(x)) * x < a]])
    return found[:size]
