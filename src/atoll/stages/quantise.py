"""Send every number with few bits: as a level of a scale, or as its sign."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np

from atoll.core.keys import rng
from atoll.core.tree import Array
from atoll.core.wire import About, Codec, Form, Mismatch, Wire
from atoll.stages.forms import Beside, Levels, Plain, Signs, Sparse, compressing, real, steady, tail, written

SCALES = ("mean", "drive")


@dataclass(frozen=True)
class Quantise:
    """Round every number at random to a level of its row's scale, so that the mean is kept (QSGD, by the maximum).

    `bits` a number, sign included; with one bit it is plus or minus the maximum. After TopK() only what was chosen is
    written. A bound grows by what rounding can add.
    """

    bits: int = 8

    def __post_init__(self) -> None:
        if self.bits not in range(1, 17):
            raise ValueError(f"Quantise(bits={self.bits}): from 1 to 16 bits a number")

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        inner = wire.form.form if isinstance(wire.form, Beside) else wire.form
        chosen = inner if isinstance(inner, Sparse) and isinstance(inner.values, Plain) else None
        real(replace(wire, form=None) if chosen else wire, "Quantise()", writes=True)
        if self.bits == 1 and chosen:
            raise Mismatch("Quantise(bits=1) has no zero, which most numbers are after TopK(): use bits=2 or more")
        form: Form = Signs(wire.dtype) if self.bits == 1 else Levels(self.bits, wire.dtype)

        def change(y: Array, about: Any) -> Array:
            return np.stack([self._row(row, _toss(about, k, len(row))) for k, row in enumerate(y)])

        after = replace(
            wire, form=written(Sparse(chosen.k, form) if chosen else form, wire),
            l2=None if wire.l2 is None else self._bound(wire.l2, chosen.k if chosen else wire.size, wire.dtype),
        )  # fmt: skip
        return after, compressing(wire, False, change)

    def _row(self, row: Array, toss: Array) -> Array:
        most = np.abs(row).max()
        if self.bits == 1:
            half = row.dtype.type(0.5)
            up = toss < half + half * (row / most if most else row)
            return np.where(up, most, -most) + row.dtype.type(0)
        step = row.dtype.type(_step(float(most), self.bits, row.dtype.name))
        level = np.abs(row) / step
        low = np.floor(level)
        level = np.minimum(low + (toss < level - low), 2 ** (self.bits - 1) - 1)
        return np.copysign(level * step, row) + row.dtype.type(0)

    def _bound(self, l2: float, size: int, dtype: str) -> float:
        # No number is larger than the bound, so no step is larger than the bound's, and rounding moves by less.
        if self.bits == 1:
            return float(l2 * sqrt(size) * (1 + np.finfo(dtype).eps))
        return l2 + _step(l2, self.bits, dtype) * sqrt(size)


@dataclass(frozen=True)
class Sign:
    """Send the sign of every number, one bit, and one size for all of a row's. Zero counts as plus.

    The size is the "mean" of the absolute values (EF-signSGD), which with `feedback` converges: what was not said is
    added to the party's next vector. After Rotate() and without feedback "drive" keeps the mean right (DRIVE,
    Vargaftik et al. 2021): the squares' sum over that of the absolute values.
    """

    feedback: bool = True
    scale: str = "mean"

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise ValueError(f"Sign(scale={self.scale!r}): the size of a sign is 'mean' or 'drive'")
        if self.feedback and self.scale == "drive":
            raise ValueError(
                "Sign(scale='drive') can miss by more than the vector, so feedback would grow without end: "
                "use feedback=False, or scale='mean'"
            )

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        real(wire, "Sign()", writes=True)
        if self.feedback:
            steady(wire, "Sign(feedback=True)")
        after = replace(wire, form=written(Signs(wire.dtype), wire), l2=self._bound(wire))
        return after, compressing(wire, self.feedback, self._change)

    def _change(self, y: Array, about: Any) -> Array:
        part = np.abs(y)
        most = part.max(1)
        part /= np.where(most > 0, most, 1)[:, None]  # at most 1, so that no square overflows
        size = part.sum(1, dtype=np.float64)
        if self.scale == "mean":
            size = size / y.shape[1]
        else:
            size = np.einsum("nd,nd->n", part, part, dtype=np.float64) / np.maximum(size, 1)
        size = size * most
        zero = y.dtype.type(0)  # added, it makes plus of minus zero
        return np.copysign(size.astype(y.dtype)[:, None], y + zero) + zero

    def _bound(self, wire: Wire) -> float | None:
        if self.feedback or wire.l2 is None:
            return None
        # Cauchy and Schwarz: the mean is at most the length over √d, and "drive" at most the largest number.
        longest = 1.0 if self.scale == "mean" else sqrt(wire.size - tail(wire))
        return float(wire.l2 * longest * (1 + 4 * np.finfo(wire.dtype).eps))


def _step(most: float, bits: int, dtype: str) -> float:
    """Give a step of which `top` reach this far, short enough in binary that its multiples are exact."""
    top, kind = 2 ** (bits - 1) - 1, np.finfo(dtype)
    digits = kind.nmant + 2 - bits
    mantissa, exponent = np.frexp(most / top)
    step = float(np.ldexp(np.ceil(np.ldexp(mantissa, digits)), exponent - digits))
    # At either end of the type's range: no multiple overflows, no step has fewer digits than the rest.
    largest = float(np.ldexp(1.0, kind.maxexp - bits))
    return min(max(step, float(kind.tiny)), largest)


def _toss(about: About, k: int, count: int) -> Array:
    if about.seed is None:
        return np.frombuffer(os.urandom(4 * count), np.uint32) * 2.0**-32
    return rng(about.seed, "quantise", about.t, int(about.me[k])).random(count, np.float32)
