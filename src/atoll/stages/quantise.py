"""Send every number with few bits: as a level of a scale, or as its sign."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np

from atoll.core.question import Encoding
from atoll.core.tree import Array
from atoll.core.wire import Codec, EncodeContext, Mismatch, Stage, Wire
from atoll.stages.encodings import (
    Levels,
    Plain,
    Signs,
    SparseEncoding,
    WithTail,
    compressing,
    real,
    steady,
    written,
)

SCALES = ("mean", "drive")


@dataclass(frozen=True)
class Quantise(Stage):
    """Round every number at random to a level of its row's scale, without bias (QSGD with the maximum norm).

    Proves: an encoding of `bits` bits for each number; a norm bound grows by what rounding can add.
    Needs: real numbers. After TopK() only the chosen numbers are written. It does not work with Ring() and hidden sums.

    Args:
        bits: bits for each number, 1 to 16, the sign included. With 1 bit a number becomes plus or minus the maximum.
            Default 8.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_stage
        >>> wire = check_stage(atoll.Quantise(4))
        >>> wire.row.encoding.bytes(1000)  # 4 bits for each number, and the step
        504
    """

    bits: int = 8

    def __post_init__(self) -> None:
        if self.bits not in range(1, 17):
            raise Mismatch(f"Quantise(bits={self.bits}): from 1 to 16 bits a number")

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        inner = wire.row.encoding.encoding if isinstance(wire.row.encoding, WithTail) else wire.row.encoding
        chosen = inner if isinstance(inner, SparseEncoding) and isinstance(inner.values, Plain) else None
        real(replace(wire, row=replace(wire.row, encoding=None)) if chosen else wire, "Quantise()", writes=True)
        if self.bits == 1 and chosen:
            raise Mismatch("Quantise(bits=1) has no zero, which most numbers are after TopK(): use bits=2 or more")
        encoding: Encoding = Signs(wire.row.dtype) if self.bits == 1 else Levels(self.bits, wire.row.dtype)

        def change(y: Array, about: Any) -> Array:
            return np.stack([self._row(row, _toss(about, k, len(row))) for k, row in enumerate(y)])

        size = chosen.k if chosen else wire.row.size
        l2 = None if wire.l2 is None else self._bound(wire.l2, size, wire.row.dtype)
        after = replace(written(wire, SparseEncoding(chosen.k, encoding) if chosen else encoding), l2=l2)
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
class Sign(Stage):
    """Send the sign of every number, one bit, and one magnitude for all numbers of a vector. Zero counts as plus.

    Proves: an encoding of one bit for each number. Without feedback the norm bound stays; "drive" multiplies it by √d.
    Needs: real numbers. It does not work with Ring() and hidden sums.

    Args:
        feedback: whether a party adds the error to its next vector. This removes the norm bound. Default true.
        scale: the magnitude. "mean" (the default): the mean of the absolute values, which converges with feedback
            (EF-signSGD). "drive": the sum of squares over the sum of absolute values, which is unbiased after Rotate()
            and without feedback (Vargaftik et al. 2021).

    Example:
        >>> import atoll
        >>> channel = atoll.Channel([atoll.Average(), atoll.Rotate(), atoll.Sign(feedback=False, scale="drive")])
        >>> len(channel.stages)
        3
    """

    feedback: bool = True
    scale: str = "mean"

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise Mismatch(f"Sign(scale={self.scale!r}): the size of a sign is 'mean' or 'drive'")
        if self.feedback and self.scale == "drive":
            raise Mismatch(
                "Sign(scale='drive') can miss by more than the vector, so feedback would grow without end: "
                "use feedback=False, or scale='mean'"
            )

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        real(wire, "Sign()", writes=True)
        if self.feedback:
            steady(wire, "Sign(feedback=True)")
        after = replace(written(wire, Signs(wire.row.dtype)), l2=self._bound(wire))
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
        longest = 1.0 if self.scale == "mean" else sqrt(wire.row.size - wire.tail)
        return float(wire.l2 * longest * (1 + 4 * np.finfo(wire.row.dtype).eps))


def _step(most: float, bits: int, dtype: str) -> float:
    """Give a step of which `top` reach this far, short enough in binary that its multiples are exact."""
    top, kind = 2 ** (bits - 1) - 1, np.finfo(dtype)
    digits = kind.nmant + 2 - bits
    mantissa, exponent = np.frexp(most / top)
    step = float(np.ldexp(np.ceil(np.ldexp(mantissa, digits)), exponent - digits))
    # At either end of the type's range: no multiple overflows, no step has fewer digits than the rest.
    largest = float(np.ldexp(1.0, kind.maxexp - bits))
    return min(max(step, float(kind.tiny)), largest)


def _toss(about: EncodeContext, k: int, count: int) -> Array:
    source = about.world.private("quantise", about.t, int(about.me[k]))
    if source.secret:
        return source.words(count, "uint32") * 2.0**-32
    return source.generator().random(count, np.float32)
