"""Real vectors as integers of a ring, so that sums are exact and can be masked or encrypted."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import Any

import numpy as np

from atoll.core.keys import draw
from atoll.core.tree import Array
from atoll.core.wire import About, Codec, Heard, Memory, Mismatch, Wire


@dataclass(frozen=True)
class Ring:
    """Write each number with this many bits as an integer modulo 2^width, rounding at random. Proves: ring, l2.

    The range is the bound before it, so it stands after Clip(). Sums are exact as long as they fit: the width leaves
    room for the cohort.
    """

    bits: int = 16
    width: int = 32

    def __post_init__(self) -> None:
        if self.width not in (32, 64):
            raise ValueError(f"Ring(width={self.width}): the ring is 2^32 or 2^64")
        if not 2 <= self.bits <= min(self.width - 2, 48):
            raise ValueError(f"Ring(bits={self.bits}): from 2 to {min(self.width - 2, 48)} bits a number")

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        if wire.ring is not None:
            raise Mismatch("Ring() stands after another stage that makes integers: keep one")
        if wire.form is not None:
            raise Mismatch("Ring() cannot add up vectors that were compressed one by one: use RandomK() or LowRank()")
        if wire.l2 is None:
            why = "noise of each party's own" if wire.noise else "nothing"
            raise Mismatch(
                f"Ring() needs to know how large a number can be, and {why} bounds it: put Clip(norm) before it "
                "(and with weights, Weigh(most=…))"
            )
        top = 2 ** (self.bits - 1) - 1
        scale = top / wire.l2
        if wire.most * top >= 2 ** (self.width - 1):
            fits = self.width - 1 - wire.most.bit_length()
            raise Mismatch(
                f"{wire.cohort:,} numbers of {self.bits} bits do not fit into the ring 2^{self.width}: "
                f"use Ring(bits={max(fits, 2)}) or Ring(width=64)"
            )
        bound = _after_rounding(top, wire.size)
        whole = np.dtype(f"int{self.width}")
        real = np.dtype(wire.dtype) if self.bits <= 20 else np.dtype(np.float64)  # of which a step is a small part

        def encode(x: Array, memory: Memory, about: About) -> tuple[Array, Memory]:
            whose = [(about.seed, about.t, me) for me in about.me.tolist()]
            rows = [_round(a.astype(real, copy=False), scale, whole, bound, b) for a, b in zip(x, whose, strict=True)]
            return (rows[0][None] if len(rows) == 1 else np.stack(rows)).view(f"u{whole}"), memory

        def decode(x: Array, memory: Memory, heard: Heard) -> tuple[Array, Memory]:
            return (signed(x) / scale).astype(wire.dtype), memory

        after = replace(
            wire, dtype=f"u{whole}", ring=2**self.width, l2=bound, shapes=(),
            peak=float(top), span=float(wire.most * top),
        )  # fmt: skip
        return after, Codec(encode, decode)


def signed(x: Array) -> Array:
    """Read integers of a ring as numbers around zero."""
    return x.view(np.int32 if x.dtype == np.uint32 else np.int64)


def _after_rounding(length: float, size: int) -> float:
    """Bound a vector of this length after rounding at random (Kairouz, Liu & Steinke 2021, with β = e^(−1/2))."""
    return min(length + sqrt(size), sqrt(length**2 + size / 4 + length + sqrt(size) / 2))


def _round(row: Array, scale: float, whole: np.dtype[Any], bound: float, address: tuple[int | None, int, int]) -> Array:
    """Scale, and round up or down at random so that the mean is kept; again, should the vector be beyond its bound."""
    from atoll.compiled import jax_library

    seed, t, me = address
    for again in range(1000):
        if seed is None:
            toss = np.frombuffer(os.urandom(2 * len(row)), np.uint16)
        else:
            toss = draw(seed, "ring", t, me, again).view(np.uint32)  # a key, from which 16 bits a number are made
        with jax_library().enable_x64(whole.itemsize == 8 or row.itemsize == 8):
            out = np.asarray(_rounder()(row, row.dtype.type(scale), toss, whole=whole.name))
        # NumPy adds in pairs: the sum of squares is off by some ten units in the last place at most.
        if float(np.add.reduce(np.square(out, dtype=row.dtype))) <= bound**2 * (1 - 32 * np.finfo(row.dtype).eps):
            return out
    raise ArithmeticError("a vector could not be rounded within its bound in 1,000 attempts")


@lru_cache(maxsize=1)
def _rounder() -> Any:
    """Compile it: one pass over the vector instead of eight."""
    from atoll.compiled import jax_library
    from atoll.privacy.normal import hashed

    jax = jax_library()

    def rounded(row: Any, scale: Any, toss: Any, whole: str) -> Any:
        if toss.dtype == np.uint32:
            toss = hashed(toss, len(row)) >> 16
        exact = row * scale
        low = jax.numpy.floor(exact)
        return (low + (toss < (exact - low) * 65536)).astype(whole)

    return jax.jit(rounded, static_argnames="whole")
