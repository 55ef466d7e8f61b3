"""The mean training loss of a round: one more number of each vector."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from atoll.core.tree import Array
from atoll.core.wire import Codec, Coded, DecodeContext, EncodeContext, Mismatch, Stage, StageMemory, Wire, chain

SHARE = 0.1  # of the norm bound: the largest loss adds 0.5 % to it
FINITE = 1e30  # where nothing bounds vectors


@dataclass(frozen=True)
class TrainLoss(Stage):
    """Send each party's mean training loss as one more number of its vector, so that the mean of a round is known.

    All later stages and the combine treat it like the rest of the vector: it is weighted, noised and hidden with it.
    The facts of a round hold the decoded mean as `train_loss`. A job adds this stage itself, before the stage that
    takes the mean, if nothing is noised and the method has a training loss; `Job(train_loss=False)` turns it off. With
    noise, put it after Clip(): the loss then shares the noise and the privacy budget of the vector.

    Proves: a norm bound stays, 0.5 % larger.
    Needs: a method with a training loss and without `example_dp`; a place before Weigh() or Average().
    Reveals: the mean training loss of a cohort, as the combine reveals the mean of its vectors.

    Args:
        bound: where vectors have a norm bound, a larger loss counts as this, above 0. Default 10.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_stage
        >>> round(check_stage(atoll.TrainLoss(), first=(atoll.Clip(1.0),)).l2, 3)
        1.005
    """

    bound: float = 10.0

    def __post_init__(self) -> None:
        if not self.bound > 0:
            raise Mismatch(f"TrainLoss(bound={self.bound}): the largest loss that counts is positive")

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        if wire.mean:
            raise Mismatch("TrainLoss() after Weigh() or Average() would not be averaged: put it before them")
        wire.need_real("TrainLoss()")
        wire.need_unwritten("TrainLoss()", "not be written with the rest")
        most, unit = (FINITE, 1.0) if wire.l2 is None else (self.bound, SHARE * wire.l2 / self.bound)
        row = replace(
            wire.row, size=wire.row.size + 1, aux=wire.row.aux + 1,
            shapes=(*wire.row.shapes, (1,)) if wire.row.shapes else (),
        )  # fmt: skip

        def encode(x: Array, memory: StageMemory, context: EncodeContext) -> Coded:
            if context.loss is None:
                raise Mismatch("the method says that it has a training loss and gives none: Contribution(…, loss=…)")
            rows = np.empty((x.shape[0], x.shape[1] + 1), x.dtype)
            # Of a number and what is none, fmin and fmax give the number.
            rows[:, :-1], rows[:, -1] = x, unit * np.fmax(np.fmin(context.loss, most), -most)
            return Coded(rows, memory)

        def decode(x: Array, memory: StageMemory, context: DecodeContext) -> Coded:
            # No party alone can make the mean larger than the largest loss that counts.
            return Coded(x[:-1], memory, {"train_loss": min(max(float(x[-1]) / unit, -most), most)})

        bound = None if wire.l2 is None else wire.l2 * sqrt(1 + SHARE**2)
        return replace(wire, row=row, l2=bound), Codec(encode, decode)


def tells_loss(stages: Sequence[Stage]) -> bool:
    """Whether the training loss is told through these stages."""
    return any(isinstance(stage, TrainLoss) for stage in stages)


def telling_loss(stages: tuple[Stage, ...], start: Wire) -> tuple[Stage, ...]:
    """Put the loss before the stage that takes the mean, or first where a stage before that compresses."""
    if tells_loss(stages):
        return stages
    before = next((k for k in range(len(stages)) if chain(*stages[: k + 1])(start)[0].mean), 0)
    for k in (before, 0):
        more = (*stages[:k], TrainLoss(), *stages[k:])
        with suppress(Mismatch):
            chain(*more)(start)
            return more
    return stages
