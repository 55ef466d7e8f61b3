"""A random rotation that all parties share: it spreads what is large over all numbers before they are rounded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from atoll.core.keys import draw
from atoll.core.tree import Array
from atoll.core.wire import About, Codec, Heard, Memory, Wire
from atoll.stages.forms import Address, common, finite, real, tail

LONGEST, SHORTEST = 4096, 256


@dataclass(frozen=True)
class Rotate:
    """Flip signs at random and take the Hadamard transform: linear, lossless, keeps lengths. Put Sign() after it.

    The transform needs a power of two. Numbers are dealt out, like cards, to blocks of 4,096, or of fewer where zeros
    would fill up much, and each block is rotated by itself: faster than all at once, and still a rotation.
    """

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        real(wire, "Rotate()")
        size = wire.size - tail(wire)
        length, blocks = _blocks(size)
        total = length * blocks

        def encode(x: Array, memory: Memory, about: About) -> tuple[Array, Memory]:
            rows = np.zeros((len(x), after.size), x.dtype)
            rows[:, :size] = finite(x[:, :size])
            rows[:, total:] = x[:, size:]
            with np.errstate(over="ignore", invalid="ignore"):
                for row in rows:
                    row[:total] *= _flips(common("rotate", about), total)
                    _hadamard(row[:total].reshape(length, blocks))
            return finite(rows), memory

        def decode(x: Array, memory: Memory, heard: Heard) -> tuple[Array, Memory]:
            whole = x[:total].copy()
            _hadamard(whole.reshape(length, blocks))
            whole *= _flips(common("rotate", heard), total)
            return np.concatenate([whole[:size], x[total:]]), memory

        l2 = None if wire.l2 is None else wire.l2 * (1 + (length.bit_length() + 2) * float(np.finfo(wire.dtype).eps))
        after = replace(wire, size=total + tail(wire), l2=l2, shapes=())
        return after, Codec(encode, decode)


def _blocks(size: int) -> tuple[int, int]:
    """Choose the longest blocks that add at most a sixteenth; return their length and number."""
    length = min(LONGEST, 1 << (size - 1).bit_length())
    while length > SHORTEST and -size % length > size / 16:
        length //= 2
    return length, -(-size // length)


def _hadamard(x: Array) -> None:
    """Transform the columns of a matrix of 2^m rows, in place, without changing their lengths."""
    length, blocks = x.shape
    x *= x.dtype.type(length**-0.5)
    half = 1
    while half < length:
        pairs = x.reshape(length // (2 * half), 2, half * blocks)
        upper, lower = pairs[:, 0], pairs[:, 1]
        difference = upper - lower
        upper += lower
        lower[...] = difference
        half *= 2


@lru_cache(maxsize=4)
def _flips(address: Address, size: int) -> Array:
    words = draw(*address, np.arange(-(-size // 64))).astype("<u8")
    flips = 1 - 2 * np.unpackbits(words.view(np.uint8))[:size].astype(np.int8)
    flips.setflags(write=False)
    return flips
