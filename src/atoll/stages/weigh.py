"""How a sum becomes a mean: weighted by examples, or unweighted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Literal

import numpy as np

from atoll.core.tree import Array
from atoll.core.wire import Codec, Coded, DecodeContext, EncodeContext, Mismatch, Stage, StageMemory, Wire, as_is


@dataclass(frozen=True)
class Weigh(Stage):
    """Weigh each vector by its party's number of examples, so that the sum decodes to the weighted mean.

    It sends (w·x, w), where w is the number of examples. The weight is hidden or noised like the rest of the vector.

    Proves: the decoded sum is a mean. Without `max_weight` it removes the norm bound. With it, a bound of Clip() stays,
    √2 times as large.
    Needs: real numbers, and no other Weigh() or Average().

    Args:
        max_weight: the largest weight that counts, in examples, above 0. Default: no limit.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_stage
        >>> round(check_stage(atoll.Weigh(max_weight=100), first=(atoll.Clip(1.0),)).l2, 4)
        1.4142
    """

    max_weight: float | None = None

    def __post_init__(self) -> None:
        if self.max_weight is not None and not self.max_weight > 0:
            raise Mismatch(f"Weigh(max_weight={self.max_weight}): the largest weight that counts is positive")

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        _once(wire, "Weigh()")
        bounded = self.max_weight is not None and wire.l2 is not None
        unit = wire.l2 if bounded and wire.l2 is not None else 1.0
        shapes = (*wire.row.shapes, (1,)) if wire.row.shapes else ()
        after = replace(
            wire, row=replace(wire.row, size=wire.row.size + 1, shapes=shapes), l2=sqrt(2) * unit if bounded else None,
            total=replace(wire.total, divisor="weights", hides_count=bounded),
        )  # fmt: skip

        def encode(x: Array, memory: StageMemory, about: EncodeContext) -> Coded:
            weight = (
                about.weight if self.max_weight is None else np.minimum(about.weight, self.max_weight) / self.max_weight
            )
            rows = np.empty((x.shape[0], x.shape[1] + 1), x.dtype)
            np.multiply(x, weight[:, None], out=rows[:, :-1])
            # A unit in the last place below the bound: rounding must not carry the pair over it.
            rows[:, -1] = weight * (unit * (1 - 8 * np.finfo(x.dtype).eps) if bounded else 1.0)
            return Coded(rows, memory)

        def decode(x: Array, memory: StageMemory, context: DecodeContext) -> Coded:
            return Coded(x[:-1] / max(x[-1] / x.dtype.type(unit), np.finfo(x.dtype).tiny), memory)

        return after, Codec(encode, decode)


@dataclass(frozen=True)
class Average(Stage):
    """Unweighted mean: each party counts equally.

    Proves: the decoded sum is a mean; the norm bound stays.
    Needs: real numbers, and no other Weigh() or Average().

    Args:
        by: what the sum is divided by: the number of "answers" (the default), or the number "expected". The latter does
            not depend on who answered, as noise that protects parties requires.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_stage
        >>> wire = check_stage(atoll.Average("expected"), first=(atoll.Clip(1.0),))
        >>> wire.mean, wire.l2
        (True, 1.0)
    """

    by: Literal["answers", "expected"] = "answers"

    def __post_init__(self) -> None:
        if self.by not in ("answers", "expected"):
            raise Mismatch(f"Average(by={self.by!r}): divide by the number of 'answers', or by the number 'expected'")

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        _once(wire, "Average()")
        fixed = self.by == "expected"

        def decode(x: Array, memory: StageMemory, context: DecodeContext) -> Coded:
            return Coded(x / (wire.total.cohort if fixed else context.n), memory)

        return replace(wire, total=replace(wire.total, divisor=self.by, hides_count=fixed)), Codec(as_is, decode)


def _once(wire: Wire, name: str) -> None:
    if wire.mean:
        raise Mismatch(f"{name} stands after another Weigh() or Average(), so the mean would be taken twice: keep one")
    wire.need_real(name)
    if name == "Weigh()":
        wire.need_unwritten(name, "scale what was written")
