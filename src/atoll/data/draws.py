"""Randomness with an address: the same seed and words give the same draws, whatever was drawn before."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np


def generator(seed: int, *address: str | int) -> np.random.Generator:
    """Return a fresh generator for one purpose; no state is shared between two addresses."""
    words = "/".join(str(word) for word in (seed, *address))
    key = int.from_bytes(blake2b(words.encode(), digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))
