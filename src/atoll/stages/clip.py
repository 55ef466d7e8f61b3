"""Bounds on how far one party can move the sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from atoll.core.tree import Array
from atoll.core.wire import Codec, Coded, DecodeContext, EncodeContext, Mismatch, Stage, StageMemory, Wire, as_was


@dataclass(frozen=True)
class Clip(Stage):
    """Scale a vector down to at most this L2 norm. A vector that is not finite becomes zero.

    With `quantile` the norm adapts to that quantile of the parties' norms (Andrew et al. 2021). Vectors are then sent
    in units of the norm, with two more numbers. From these the server learns, under the same noise as the rest, which
    fraction of the vectors was not clipped.

    Proves: a bound of the L2 norm.
    Needs: real numbers that no earlier stage has weighted or compressed.

    Args:
        norm: the largest L2 norm, above 0; with `quantile` the norm of the first round.
        quantile: the quantile of the parties' norms to adapt to, between 0 and 1; 0.5 is the median. Default: the norm
            is constant.
        rate: the learning rate of the norm, above 0; each round multiplies it by at most exp(rate). Default 0.2.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_stage
        >>> check_stage(atoll.Clip(1.5)).l2
        1.5
    """

    norm: float
    quantile: float | None = None
    rate: float = 0.2

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise Mismatch(f"Clip(norm={self.norm}): a norm is positive")
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise Mismatch(f"Clip(quantile={self.quantile}): a quantile is between 0 and 1; 0.5 is the median")
        if not self.rate > 0:
            raise Mismatch(f"Clip(rate={self.rate}): the rate at which the norm moves is positive")

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        if wire.weighted:
            raise Mismatch("Clip() after Weigh() would clip the weight too: put Clip() first, or use Average()")
        wire.need_real("Clip()")
        wire.need_unwritten("Clip()", "scale what was written")
        return self._constant(wire) if self.quantile is None else self._adaptive(wire, self.quantile)

    def _constant(self, wire: Wire) -> tuple[Wire, Codec]:
        def encode(x: Array, memory: StageMemory, about: EncodeContext) -> Coded:
            rows, clipped = clip(x, self.norm)
            return Coded(rows, memory, {"clipped": clipped})

        return replace(wire, l2=self.norm), Codec(encode, as_was)

    def _adaptive(self, wire: Wire, quantile: float) -> tuple[Wire, Codec]:
        # The larger the two numbers, the better the fraction is known, and the more noise the rest gets: with ten
        # over the cohort, noise of one norm leaves it known to 5 %.
        unit = min(10 / wire.total.cohort, 0.25)

        def encode(x: Array, memory: StageMemory, about: EncodeContext) -> Coded:
            norm = float(about.stage_state.get("norm", self.norm))
            rows = np.empty((x.shape[0], x.shape[1] + 2), x.dtype)
            rows[:, :-2], clipped = clip(x / x.dtype.type(norm), 1.0)
            safe = unit * (1 - 8 * np.finfo(x.dtype).eps)
            rows[:, -2], rows[:, -1] = safe * (1 - 2 * clipped), safe
            return Coded(rows, memory, {"clipped": clipped})

        def decode(x: Array, memory: StageMemory, context: DecodeContext) -> Coded:
            norm = float(memory["norm"])
            short = 0.5 + 0.5 * np.clip(x[-2] / max(abs(x[-1]), np.finfo(x.dtype).tiny), -1, 1)
            after = norm * np.exp(-self.rate * (float(short) - quantile))
            return Coded(x[:-2] * x.dtype.type(norm), {"norm": np.float64(after)}, {"clip_norm": norm})

        bound = sqrt(1 + 2 * unit**2)
        after = wire.of_size(wire.row.size + 2, bound)
        after = replace(after, row=replace(after.row, aux=wire.row.aux + 2))
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
