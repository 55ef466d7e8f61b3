"""Real vectors as integers of a ring, so that sums are exact and can be masked or encrypted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import Any

import numpy as np

from atoll.core.tree import Array
from atoll.core.wire import Codec, Coded, DecodeContext, EncodeContext, Mismatch, RingBounds, Stage, StageMemory, Wire
from atoll.core.world import World


@dataclass(frozen=True)
class Ring(Stage):
    """Round each number at random to an integer of `bits` bits, modulo 2^width, for hidden sums.

    The range is the norm bound of the stage before it. Sums are exact: a cohort for which the ring is too small is
    refused.

    Proves: integers of a ring; a norm bound in steps of the ring.
    Needs: a norm bound, so it comes after Clip(), and with weights after Weigh(max_weight=…).

    Args:
        bits: bits of one party's number, the sign included: 2 to 30, with `width` 64 to 48. Default 16.
        width: bits of the ring, 32 or 64. Default 32.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_stage
        >>> check_stage(atoll.Ring(bits=16), first=(atoll.Clip(1.0),)).row.dtype
        'uint32'
    """

    bits: int = 16
    width: int = 32

    def __post_init__(self) -> None:
        if self.width not in (32, 64):
            raise Mismatch(f"Ring(width={self.width}): the ring is 2^32 or 2^64")
        if not 2 <= self.bits <= min(self.width - 2, 48):
            raise Mismatch(f"Ring(bits={self.bits}): from 2 to {min(self.width - 2, 48)} bits a number")

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        if wire.ring is not None:
            raise Mismatch("Ring() stands after another stage that makes integers: keep one")
        if wire.row.encoding is not None:
            raise Mismatch("Ring() cannot add up vectors that were compressed one by one: use RandomK() or LowRank()")
        l2 = wire.need_bound("Ring()", "the size of its steps")
        top = 2 ** (self.bits - 1) - 1
        scale = top / l2
        if wire.total.max_cohort * top >= 2 ** (self.width - 1):
            fits = self.width - 1 - wire.total.max_cohort.bit_length()
            raise Mismatch(
                f"{wire.total.cohort:,} numbers of {self.bits} bits do not fit into the ring 2^{self.width}: "
                f"use Ring(bits={max(fits, 2)}) or Ring(width=64)"
            )
        bound = _after_rounding(top, wire.row.size)
        whole = np.dtype(f"int{self.width}")
        real = np.dtype(wire.row.dtype) if self.bits <= 20 else np.dtype(np.float64)  # of which a step is a small part

        def encode(x: Array, memory: StageMemory, about: EncodeContext) -> Coded:
            whose = [(about.world, about.t, me) for me in about.me.tolist()]
            rows = [_round(a.astype(real, copy=False), scale, whole, bound, b) for a, b in zip(x, whose, strict=True)]
            return Coded((rows[0][None] if len(rows) == 1 else np.stack(rows)).view(f"u{whole}"), memory)

        def decode(x: Array, memory: StageMemory, context: DecodeContext) -> Coded:
            return Coded((signed(x) / scale).astype(wire.row.dtype), memory)

        after = replace(
            wire, row=replace(wire.row, dtype=f"u{whole}", shapes=()), l2=bound,
            ring=RingBounds(2**self.width, float(top), float(wire.total.max_cohort * top)),
        )  # fmt: skip
        return after, Codec(encode, decode)


def signed(x: Array) -> Array:
    """Read integers of a ring as numbers around zero."""
    return x.view(np.int32 if x.dtype == np.uint32 else np.int64)


def _after_rounding(length: float, size: int) -> float:
    """Bound a vector of this length after rounding at random (Kairouz, Liu & Steinke 2021, with β = e^(−1/2))."""
    return min(length + sqrt(size), sqrt(length**2 + size / 4 + length + sqrt(size) / 2))


def _round(row: Array, scale: float, whole: np.dtype[Any], bound: float, whose: tuple[World, int, int]) -> Array:
    """Scale, and round up or down at random so that the mean is kept; again, should the vector be beyond its bound."""
    from atoll.jit import jax_library

    world, t, me = whose
    for again in range(1000):
        source = world.private("ring", t, me, again)
        key = source.key()  # from which 16 bits a number are made
        toss = source.words(len(row), "uint16") if key is None else key.view(np.uint32)
        with jax_library().enable_x64(whole.itemsize == 8 or row.itemsize == 8):
            out = np.asarray(_rounder()(row, row.dtype.type(scale), toss, whole=whole.name))
        # NumPy adds in pairs: the sum of squares is off by some ten units in the last place at most.
        if float(np.add.reduce(np.square(out, dtype=row.dtype))) <= bound**2 * (1 - 32 * np.finfo(row.dtype).eps):
            return out
    raise ArithmeticError("a vector could not be rounded within its bound in 1,000 attempts")


@lru_cache(maxsize=1)
def _rounder() -> Any:
    """Compile it: one pass over the vector instead of eight."""
    from atoll.jit import jax_library
    from atoll.privacy.normal import hashed

    jax = jax_library()

    def rounded(row: Any, scale: Any, toss: Any, whole: str) -> Any:
        if toss.dtype == np.uint32:
            toss = hashed(toss, len(row)) >> 16
        exact = row * scale
        low = jax.numpy.floor(exact)
        return (low + (toss < (exact - low) * 65536)).astype(whole)

    return jax.jit(rounded, static_argnames="whole")
