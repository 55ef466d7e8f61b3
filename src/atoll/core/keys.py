"""Randomness with an address: (seed, round, party, purpose) names a draw. No generator is kept anywhere."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np

from atoll.core.tree import Array

_GOLDEN = 0x9E3779B97F4A7C15
_ALL = 2**64 - 1


@lru_cache(maxsize=256)
def _word(part: str | int) -> int:
    """Turn a name or a number of an address into 64 bits."""
    if isinstance(part, int):
        return part & _ALL
    return int.from_bytes(hashlib.blake2b(part.encode(), digest_size=8).digest(), "little")


def _mix(z: Any) -> Any:
    """Scramble 64 bits, of one number or of an array of them (the finaliser of SplitMix64)."""
    if isinstance(z, int):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _ALL
        return z ^ (z >> 31)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _step(bits: Any, word: Any) -> Any:
    if isinstance(bits, int) and isinstance(word, int):
        return _mix(((bits + _GOLDEN) & _ALL) ^ _mix((word * _GOLDEN + _GOLDEN) & _ALL))
    bits, word = (np.asarray(v, np.uint64) for v in (bits, word))
    golden = np.full(1, _GOLDEN, np.uint64)  # an array, because NumPy warns when a lone number wraps
    return _mix((bits + golden) ^ _mix(word * golden + golden))


def draw(*address: object) -> Array:
    """Return the 64 random bits at an address. Array parts broadcast, so a whole cohort is drawn in one call.

    Equal addresses give equal bits in any process and any order; this is for simulation, never for secrets.

    Args:
        *address: what names the draw: the seed, then words, whole numbers or arrays of them.

    Example:
        >>> bool(draw(0, "batch", np.arange(3))[2] == draw(0, "batch", 2)[0])
        True
    """
    bits: Any = 0
    for part in address:
        if isinstance(part, np.ndarray):
            whole = part if part.dtype.itemsize == 8 else part.astype(np.int64)
            bits = _step(bits, whole.view(np.uint64))
        else:
            bits = _step(bits, _word(part if isinstance(part, str) else int(part)))  # type: ignore[call-overload]
    return np.atleast_1d(np.asarray(bits, np.uint64))


def uniform(*address: object) -> Array:
    """Return numbers in [0, 1) at an address.

    Args:
        *address: what names the draw, as for `draw`.
    """
    return (draw(*address) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def generator(seed: int, *address: str | int) -> np.random.Generator:
    """Return the generator of a seed and words; data is drawn by it, and released data stays as it is.

    Args:
        seed: the seed.
        *address: words and whole numbers.
    """
    words = "/".join(str(word) for word in (seed, *address))
    key = int.from_bytes(hashlib.blake2b(words.encode(), digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))


def rng(*address: object) -> np.random.Generator:
    """Return the generator that starts at an address, for draws that are not one number each.

    Args:
        *address: what names the draw, as for `draw`, without arrays.
    """
    return np.random.Generator(np.random.Philox(key=int(draw(*address)[0])))
