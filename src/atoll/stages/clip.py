"""Bounds on how far one party can move the sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from atoll.core.tree import Array
from atoll.core.wire import About, Codec, Mismatch, Wire, as_was


@dataclass(frozen=True)
class Clip:
    """Scale a vector down to at most this L2 norm. Proves: l2. A vector that is not finite becomes zero."""

    norm: float

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise ValueError(f"Clip(norm={self.norm}): a norm is positive")

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        if wire.weighted:
            raise Mismatch("Clip() after Weigh() would clip the weight too: put Clip() first, or use Average()")
        if wire.ring is not None:
            raise Mismatch("Clip() needs real vectors: put it before the stage that makes integers of them")
        return replace(wire, l2=self.norm), Codec(self._encode, as_was)

    def _encode(self, x: Array, memory: Mapping[str, Array], about: About) -> tuple[Array, Mapping[str, Array]]:
        length = np.sqrt(np.einsum("nd,nd->n", x, x, dtype=np.float64))
        finite = np.isfinite(length)
        # Rounding may leave a vector longer than the norm by a unit in the last place: aim a little below.
        aim = self.norm * (1 - 4 * np.finfo(x.dtype).eps)
        scale = np.where(length > aim, aim / np.maximum(length, aim), 1.0)
        kept = x if finite.all() else np.where(finite[:, None], x, 0)
        scale = np.where(finite, scale, 0.0)
        return (kept * scale[:, None].astype(x.dtype)), memory
