"""How a sum becomes a mean: by examples, or one party one voice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from atoll.core.tree import Array
from atoll.core.wire import About, Codec, Heard, Memory, Mismatch, Wire, as_is


@dataclass(frozen=True)
class Weigh:
    """Weigh each vector by its party's number of examples, so that the sum decodes to the weighted mean.

    Sends (w·x, w). Proves: mean. Erases the bound, since a weight has none; with `most` no weight counts for more than
    that, and what a Clip() has bounded stays bounded (by √2 of it: the weight travels, and is hidden, like the rest).
    """

    most: float | None = None

    def __post_init__(self) -> None:
        if self.most is not None and not self.most > 0:
            raise ValueError(f"Weigh(most={self.most}): the largest weight that counts is positive")

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        _once(wire, "Weigh()")
        bounded = self.most is not None and wire.l2 is not None
        unit = wire.l2 if bounded and wire.l2 is not None else 1.0
        after = replace(
            wire, size=wire.size + 1, l2=sqrt(2) * unit if bounded else None, mean=True, fixed=bounded, weighted=True,
            shapes=(*wire.shapes, (1,)) if wire.shapes else (),
        )  # fmt: skip

        def encode(x: Array, memory: Memory, about: About) -> tuple[Array, Memory]:
            weight = about.weight if self.most is None else np.minimum(about.weight, self.most) / self.most
            rows = np.empty((x.shape[0], x.shape[1] + 1), x.dtype)
            np.multiply(x, weight[:, None], out=rows[:, :-1])
            # A unit in the last place below the bound: rounding must not carry the pair over it.
            rows[:, -1] = weight * (unit * (1 - 8 * np.finfo(x.dtype).eps) if bounded else 1.0)
            return rows, memory

        def decode(x: Array, memory: Memory, heard: Heard) -> tuple[Array, Memory]:
            return x[:-1] / max(x[-1] / x.dtype.type(unit), np.finfo(x.dtype).tiny), memory

        return after, Codec(encode, decode)


@dataclass(frozen=True)
class Average:
    """Give every party one voice: the sum decodes to the plain mean. Proves: mean.

    `by` says what the sum is divided by: the number of "answers", or the number "expected", which does not tell who
    came: noise that is to hide a party needs the latter.
    """

    by: str = "answers"

    def __post_init__(self) -> None:
        if self.by not in ("answers", "expected"):
            raise ValueError(f"Average(by={self.by!r}): divide by the number of 'answers', or by the number 'expected'")

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        _once(wire, "Average()")
        fixed = self.by == "expected"

        def decode(x: Array, memory: Memory, heard: Heard) -> tuple[Array, Memory]:
            return x / (wire.cohort if fixed else heard.n), memory

        return replace(wire, mean=True, fixed=fixed), Codec(as_is, decode)


def _once(wire: Wire, name: str) -> None:
    if wire.mean:
        raise Mismatch(f"{name} stands after another Weigh() or Average(), so the mean would be taken twice: keep one")
    if wire.ring is not None:
        raise Mismatch(f"{name} needs real vectors: put it before the stage that makes integers of them")
    if wire.form is not None and name == "Weigh()":
        raise Mismatch("Weigh() after a stage that compresses would scale what was written: put Weigh() first")
