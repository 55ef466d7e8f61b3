"""How a sum becomes a mean: by examples, or one party one voice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from atoll.core.tree import Array
from atoll.core.wire import About, Codec, Mismatch, Wire, as_is


@dataclass(frozen=True)
class Weigh:
    """Weigh each vector by its party's number of examples, so that the sum decodes to the weighted mean.

    Sends (w·x, w). Proves: mean. Erases: the bound, since a weight is not bounded.
    """

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        _once(wire, "Weigh()")
        after = replace(wire, size=wire.size + 1, l2=None, mean=True, weighted=True)
        return after, Codec(_scale, _divide)


@dataclass(frozen=True)
class Average:
    """Give every party one voice: the sum decodes to the plain mean. Proves: mean."""

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        _once(wire, "Average()")
        return replace(wire, mean=True), Codec(as_is, lambda x, n, _: x / n)


def _once(wire: Wire, name: str) -> None:
    if wire.mean:
        raise Mismatch(f"{name} stands after another Weigh() or Average(), so the mean would be taken twice: keep one")
    if wire.ring is not None:
        raise Mismatch(f"{name} needs real vectors: put it before the stage that makes integers of them")


def _scale(x: Array, memory: Mapping[str, Array], about: About) -> tuple[Array, Mapping[str, Array]]:
    rows = np.empty((x.shape[0], x.shape[1] + 1), x.dtype)
    np.multiply(x, about.weight[:, None], out=rows[:, :-1])
    rows[:, -1] = about.weight
    return rows, memory


def _divide(x: Array, n: int, path: tuple[object, ...]) -> Array:
    return x[:-1] / max(x[-1], np.finfo(x.dtype).tiny)
