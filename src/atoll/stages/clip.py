"""Bounds on how far one party can move the sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from atoll.core.tree import Array
from atoll.core.wire import About, Codec, Heard, Memory, Mismatch, Wire, as_was


@dataclass(frozen=True)
class Clip:
    """Scale a vector down to at most this L2 norm. Proves: l2. A vector that is not finite becomes zero.

    With `quantile` the norm moves towards that quantile of the parties' norms, by `rate` a round (Andrew et al. 2021):
    vectors then travel in units of the norm, with two more numbers from which the server learns, under the same noise
    as the rest, what fraction was short enough.
    """

    norm: float
    quantile: float | None = None
    rate: float = 0.2

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise ValueError(f"Clip(norm={self.norm}): a norm is positive")
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise ValueError(f"Clip(quantile={self.quantile}): a quantile is between 0 and 1; 0.5 is the median")
        if not self.rate > 0:
            raise ValueError(f"Clip(rate={self.rate}): the rate at which the norm moves is positive")

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        if wire.weighted:
            raise Mismatch("Clip() after Weigh() would clip the weight too: put Clip() first, or use Average()")
        if wire.ring is not None:
            raise Mismatch("Clip() needs real vectors: put it before the stage that makes integers of them")
        if wire.form is not None:
            raise Mismatch("Clip() after a stage that compresses would scale what was written: put Clip() first")
        return self._constant(wire) if self.quantile is None else self._adaptive(wire, self.quantile)

    def _constant(self, wire: Wire) -> tuple[Wire, Codec]:
        def encode(x: Array, memory: Memory, about: About) -> tuple[Array, Memory]:
            rows, clipped = clip(x, self.norm)
            return rows, {**memory, "fact.clipped": clipped}

        return replace(wire, l2=self.norm), Codec(encode, as_was)

    def _adaptive(self, wire: Wire, quantile: float) -> tuple[Wire, Codec]:
        # The larger the two numbers, the better the fraction is known, and the more noise the rest gets: with ten
        # over the cohort, noise of one norm leaves it known to 5 %.
        unit = min(10 / wire.cohort, 0.25)

        def encode(x: Array, memory: Memory, about: About) -> tuple[Array, Memory]:
            norm = float(about.told.get("norm", self.norm))
            rows = np.empty((x.shape[0], x.shape[1] + 2), x.dtype)
            rows[:, :-2], clipped = clip(x / x.dtype.type(norm), 1.0)
            safe = unit * (1 - 8 * np.finfo(x.dtype).eps)
            rows[:, -2], rows[:, -1] = safe * (1 - 2 * clipped), safe
            return rows, {**memory, "fact.clipped": clipped}

        def decode(x: Array, memory: Memory, heard: Heard) -> tuple[Array, Memory]:
            norm = float(memory["norm"])
            short = 0.5 + 0.5 * np.clip(x[-2] / max(abs(x[-1]), np.finfo(x.dtype).tiny), -1, 1)
            after = norm * np.exp(-self.rate * (float(short) - quantile))
            return x[:-2] * x.dtype.type(norm), {"norm": np.float64(after), "fact.clip_norm": norm}

        bound = sqrt(1 + 2 * unit**2)
        after = replace(wire, size=wire.size + 2, beside=wire.beside + 2, l2=bound, shapes=())
        return after, Codec(encode, decode, {"norm": np.float64(self.norm)}, ("norm",))


def clip(x: Array, norm: float) -> tuple[Array, Array]:
    """Return rows of at most this norm, and which were longer (1.0) or not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        length = np.sqrt(np.add.reduce(x * x, axis=1).astype(np.float64))
    odd = ~np.isfinite(length) | (length < 1e4 * np.sqrt(np.finfo(x.dtype).tiny))
    if odd.any():  # squares that are too large or too small for this precision
        length[odd] = np.sqrt(np.einsum("nd,nd->n", x[odd], x[odd], dtype=np.float64))
    finite = np.isfinite(length)
    # NumPy adds in pairs, so a length is off by some ten units in the last place, and scaling adds two: aim below that.
    aim = norm * (1 - 48 * np.finfo(x.dtype).eps)
    scale = np.where(length > aim, aim / np.maximum(length, aim), 1.0)
    kept = x if finite.all() else np.where(finite[:, None], x, 0)
    scale = np.where(finite, scale, 0.0)
    rows = kept * scale[:, None].astype(x.dtype)
    coarse = scale < 1e10 * np.finfo(x.dtype).tiny  # near the smallest numbers a scale has few digits left
    if coarse.any():
        rows[coarse] = kept[coarse].astype(np.float64) * scale[coarse, None]
    return rows, ((length > aim) | ~finite).astype(np.float64)
