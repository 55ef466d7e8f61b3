"""Normal numbers for simulations, drawn by address and quickly: a table of quantiles and random bits.

Within a cell of the table numbers are uniform, beyond its ends exact: in total variation the distribution is off by
less than 10⁻⁴. This is for simulated noise only; what really hides anybody is in `discrete`.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np

from atoll.core.keys import Array, draw

_CELLS = 1 << 16


def normal(size: int, *address: object) -> Array:
    """Return standard normal numbers (float32) at an address."""
    table, end = _table()
    generator = np.random.SFC64(int(draw(*address)[0]))
    bits = generator.random_raw(-(-size // 2)).view(np.uint32)[:size]
    cell = table.take((bits >> np.uint32(16)).astype(np.intp), mode="clip")  # none is out of range; no check is quicker
    z = np.bitwise_and(bits, np.uint32(0xFFFF)).astype(np.float32)
    z *= cell.imag
    z += cell.real
    outer = np.nonzero((bits + np.uint32(1 << 16)) < np.uint32(1 << 17))[
        0
    ]  # the first cell or, wrapped around, the last
    if len(outer):
        z[outer] = np.where(bits[outer] < 1 << 16, -1.0, 1.0) * _beyond(end, len(outer), np.random.Generator(generator))
    return z


@lru_cache(maxsize=1)
def _table() -> tuple[Array, float]:
    """Return each cell's lower end, with its width over 2¹⁶ as the imaginary part, and where the last cell begins."""
    inverse = NormalDist().inv_cdf
    upper = np.array([inverse(0.5 + i / _CELLS) for i in range(_CELLS // 2)])
    ends = np.concatenate([-upper[:0:-1], upper])  # of all cells but the outermost
    low, width = np.concatenate([[0.0], ends]), np.concatenate([[0.0], np.diff(ends), [0.0]])
    return (low + 1j * width / _CELLS).astype(np.complex64), float(upper[-1])


def _beyond(a: float, size: int, generator: np.random.Generator) -> Array:
    """Return normal numbers above a (Marsaglia 1964)."""
    found = np.empty(0)
    while len(found) < size:
        x = np.sqrt(a * a - 2 * np.log1p(-generator.random(2 * size + 8)))
        found = np.concatenate([found, x[generator.random(len(x)) * x < a]])
    return found[:size]
