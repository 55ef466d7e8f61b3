"""Whole models through stages: what a stage may do to a change of a model, it may not do to a model.

To clip a change makes a step shorter; to clip a model sets it back every round. Which stages are harmless is found out
by trying, so that it is known of stages of other packages too: of parties that all send the same model, the mean must
be that model, whoever answers and however long it is.
"""

from __future__ import annotations

import numpy as np

from atoll.core.method import codec_of
from atoll.core.tree import Array
from atoll.core.wire import DecodeContext, EncodeContext, Mismatch, Stage, Wire
from atoll.core.world import World

_LOST = 1e-3  # of a model's length; one step of training changes it by little more
_LONG = 1e6  # the size of the numbers that are tried: no useful norm leaves them as they are


def check_whole(who: str, stages: tuple[Stage, ...], start: Wire) -> None:
    """Refuse stages that do not give the mean of equal models back; `who` sends models."""
    x = (_LONG * World.simulated(0).public_rng("whole").normal(size=(1, start.row.size))).astype(start.row.dtype)
    lost = 0.0
    for k, stage in enumerate(stages, 1):
        before, lost = lost, _lost(x, stages[:k], start)
        if not lost <= _LOST:
            raise Mismatch(
                f"{stage} is for changes of a model, and {who} sends whole models, which it would spoil (it loses "
                f"{100 * (lost - before):.3g} % of one): exchange gradients, or take it out of the stages"
            )


def _lost(x: Array, stages: tuple[Stage, ...], start: Wire) -> float:
    """Return how far the mean (or sum) of equal vectors is from what it should be, as a share of its length."""
    wire, codec = codec_of(stages, start)
    told = {leaf: codec.start[leaf] for leaf in codec.stage_state}
    answered = start.total.cohort + 1  # one more than expected: what divides by the expected number shows
    context = EncodeContext(np.array([2.0], x.dtype), World.simulated(0), 0, np.arange(1), told, np.zeros(1))
    with np.errstate(all="ignore"):
        row = codec.encode(x, {}, context).x[0]
        total = row * row.dtype.type(answered)
        back = codec.decode(total, codec.start, DecodeContext(answered, World.simulated(0), 0)).x
        wanted = x[0] * (1.0 if wire.mean else float(answered))
        return float(np.linalg.norm(back - wanted) / np.linalg.norm(wanted))
