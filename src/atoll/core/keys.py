"""Randomness with an address: (seed, round, party, purpose) names a draw. No generator is kept anywhere."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _word(part: object) -> Array:
    """Turn one part of an address into 64-bit words; an array stays an array."""
    if isinstance(part, str):
        digest = hashlib.blake2b(part.encode(), digest_size=8).digest()
        return np.frombuffer(digest, "<u8")
    return np.atleast_1d(np.asarray(part)).astype(np.int64).view(np.uint64)


def _mix(z: Array) -> Array:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def draw(*address: object) -> Array:
    """Return the 64 random bits at an address. Array parts broadcast, so a whole cohort is drawn in one call.

    Equal addresses give equal bits in any process and any order; this is for simulation, never for secrets.

    >>> bool(draw(0, "batch", np.arange(3))[2] == draw(0, "batch", 2)[0])
    True
    """
    bits = np.zeros(1, np.uint64)
    for part in address:
        bits = _mix((bits + _GOLDEN) ^ _mix(_word(part) * _GOLDEN + _GOLDEN))
    return bits


def uniform(*address: object) -> Array:
    """Return numbers in [0, 1) at an address."""
    return (draw(*address) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def rng(*address: object) -> np.random.Generator:
    """Return the generator that starts at an address, for draws that are not one number each."""
    return np.random.Generator(np.random.Philox(key=int(draw(*address)[0])))
