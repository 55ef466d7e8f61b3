"""A buffer instead of rounds: the server steps when enough answers are there, also to questions of earlier rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from atoll.combine.each import plainly
from atoll.core.effects import Cohort, ask
from atoll.core.keys import rng
from atoll.core.wire import Gather, Gathered, Mismatch, Question, Wire


@dataclass(frozen=True)
class Buffered:
    """Step when `enough` answers are there and wait for nobody else: FedBuff (Nguyen et al. 2022).

    The cohort's size is how many parties are at work at a time. Who was asked τ rounds ago counts by (1 + τ)^-power,
    and not at all after `most` rounds. Needs: vectors that are changes, each complete by itself. Reveals each vector
    to the server. With `enough` as large as the cohort it is Sum().
    """

    enough: int = 10
    power: float = 0.5
    most: int = 20

    def __post_init__(self) -> None:
        if self.enough < 1:
            raise ValueError(f"Buffered(enough={self.enough}): a step takes at least one answer")
        if self.power < 0:
            raise ValueError(f"Buffered(power={self.power}): old answers do not count for more, so it is 0 or above")
        if self.most < 0:
            raise ValueError(f"Buffered(most={self.most}): rounds that an answer may be old, 0 or more")

    def seen(self, wire: Wire) -> Mapping[str, str]:
        said = plainly(wire)
        return {**said, "server": f"{said['server']}, and how long each party took, in rounds"}

    def __call__(self, wire: Wire) -> Gather:
        self._check(wire)
        own = wire.size - int(wire.weighted)  # a weight is not weighed: the mean is Σ s·w·Δ / Σ w

        async def gather(cohort: Cohort, question: Question, enough: int | None) -> Gathered:
            # Of a cohort only so many are asked as are not at work; a sorted one would favour the low numbers.
            to = rng("buffered", question["t"]).permutation(cohort)
            replies = await ask(to, "contribute", question, enough=self.enough, late=self.most)
            total = np.full(wire.size, -0.0, wire.dtype)  # to which -0.0 and 0.0 can be added and stay what they are
            scales = (1.0 + replies.each.get("age", np.zeros(len(replies)))) ** -self.power
            # One by one in the order of the parties, as Sum() adds.
            for row, scale in zip(replies.each.get("vector", ()), scales.astype(wire.dtype), strict=True):
                total[:own] += row[:own] * scale
                total[own:] += row[own:]
            each = {name: leaf for name, leaf in replies.each.items() if name != "vector"}
            return Gathered(total, replace(replies, each=each))

        return gather

    def _check(self, wire: Wire) -> None:
        if wire.ring is not None:
            raise Mismatch("Buffered() weighs answers by their age, which integers of a ring do not allow: use "
                           "SecureSum() in rounds, or take out Ring()")  # fmt: skip
        if wire.noise:
            raise Mismatch("Buffered() has no account of what noise hides when answers of several rounds are added: "
                           "use Sum(), or no noise")  # fmt: skip
        if not wire.mean:
            raise Mismatch("Buffered() weighs changes of a model by their age: put Weigh() or Average() into the "
                           "stages, or use Sum()")  # fmt: skip
        if wire.fixed and not wire.weighted:
            raise Mismatch("Average(by='expected') divides by the whole cohort, of which a buffer holds a part: use "
                           "Average()")  # fmt: skip
        if wire.floor:
            raise Mismatch(f"the select wants all {wire.floor} parties of a cohort in a sum, Buffered() takes those "
                           "who are first: use Sum(), or select with Count()")  # fmt: skip
        if sum(map(prod, wire.shapes)) != wire.size:
            raise Mismatch("Buffered() adds vectors of several rounds, and a stage here writes them in terms of one "
                           "(Rotate(), RandomK(), LowRank(), Clip(quantile=…)): take it out, or use Sum()")  # fmt: skip
        if self.enough > wire.cohort:
            raise Mismatch(f"Buffered(enough={self.enough}) waits for more answers than there are parties at work, "
                           f"about {wire.cohort}: select more, or wait for fewer")  # fmt: skip
