"""A random rotation that all parties share: it spreads what is large over all numbers before they are rounded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from atoll.core.keys import draw
from atoll.core.tree import Array
from atoll.core.wire import Codec, Coded, DecodeContext, EncodeContext, Stage, StageMemory, Wire
from atoll.stages.encodings import Address, common, finite, real

LONGEST, SHORTEST = 4096, 256


@dataclass(frozen=True)
class Rotate(Stage):
    """Rotate the vector at random, the same way for all parties: random signs and a Hadamard transform.

    The rotation is linear and loses nothing. It spreads large values over all numbers, so that a following Sign() has a
    smaller error. Numbers are distributed over blocks of 4,096 (or fewer, if padding would be large), and each block is
    rotated separately.

    Proves: nothing new; it keeps the norm bound up to rounding.
    Needs: real numbers.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_stage
        >>> round(check_stage(atoll.Rotate(), first=(atoll.Clip(1.0),)).l2, 4)
        1.0
    """

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        real(wire, "Rotate()")
        size = wire.row.size - wire.tail
        length, blocks = _blocks(size)
        total = length * blocks

        def encode(x: Array, memory: StageMemory, about: EncodeContext) -> Coded:
            rows = np.zeros((len(x), after.row.size), x.dtype)
            rows[:, :size] = finite(x[:, :size])
            rows[:, total:] = x[:, size:]
            with np.errstate(over="ignore", invalid="ignore"):
                for row in rows:
                    row[:total] *= _flips(common("rotate", about), total)
                    _hadamard(row[:total].reshape(length, blocks))
            return Coded(finite(rows), memory)

        def decode(x: Array, memory: StageMemory, context: DecodeContext) -> Coded:
            whole = x[:total].copy()
            _hadamard(whole.reshape(length, blocks))
            whole *= _flips(common("rotate", context), total)
            return Coded(np.concatenate([whole[:size], x[total:]]), memory)

        slack = 1 + (length.bit_length() + 2) * float(np.finfo(wire.row.dtype).eps)
        l2 = None if wire.l2 is None else wire.l2 * slack
        after = wire.of_size(total + wire.tail, l2)
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
