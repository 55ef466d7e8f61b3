"""A disk that lies."""

from __future__ import annotations

import random
from pathlib import Path


def flip(path: Path, chance: random.Random) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    at = chance.randrange(8 * len(data))
    data[at // 8] ^= 1 << at % 8
    path.write_bytes(data)
