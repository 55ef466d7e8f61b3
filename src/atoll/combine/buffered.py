"""A buffer instead of rounds: the server steps when enough answers are there, also to questions of earlier rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from atoll.combine.each import one_vector, plainly
from atoll.combine.layouts import contribute
from atoll.core.effects import Cohort, ask
from atoll.core.question import Layout, Question
from atoll.core.tree import Tree
from atoll.core.wire import Combine, Gather, Gathered, Mismatch, Setting, Wire
from atoll.core.world import World


@dataclass(frozen=True)
class Buffered(Combine):
    """Update the model when `buffer_size` answers are there, without waiting for others: FedBuff (Nguyen et al. 2022).

    The size of the cohort is the number of parties that train at the same time. With `buffer_size` equal to the cohort
    it is Sum().

    Needs: vectors that are changes of a model, each complete by itself; Weigh() or Average().
    Reveals: each vector to the server, and how many rounds each party took.

    Args:
        buffer_size: answers of one update, 1 or more. Default 10.
        power: an answer that is τ rounds old is multiplied by (1 + τ)^-power, 0 or more. Default 0.5.
        max_staleness: rounds; an older answer is dropped, 0 or more. Default 20.

    Example:
        >>> import atoll
        >>> channel = atoll.Channel([atoll.Weigh()], atoll.Buffered(buffer_size=5))
        >>> job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.Count(15), channel, rounds=20)
        >>> job.channel.combine.buffer_size
        5
    """

    buffer_size: int = 10
    power: float = 0.5
    max_staleness: int = 20

    def __post_init__(self) -> None:
        if self.buffer_size < 1:
            raise Mismatch(f"Buffered(buffer_size={self.buffer_size}): a step takes at least one answer")
        if self.power < 0:
            raise Mismatch(f"Buffered(power={self.power}): old answers do not count for more, so it is 0 or above")
        if self.max_staleness < 0:
            raise Mismatch(f"Buffered(max_staleness={self.max_staleness}): rounds that an answer may be old, 0 or more")

    @property
    def staleness(self) -> int:
        return self.max_staleness

    @property
    def holds_rows(self) -> bool:
        return True

    def answers(self, wire: Wire) -> int:
        return self.buffer_size

    def seen(self, wire: Wire, world: World) -> Mapping[str, str]:
        said = plainly(wire, world)
        return {**said, "server": f"{said['server']}, and how long each party took, in rounds"}

    def questions(self, wire: Wire, setting: Setting, body: Layout, parties: int) -> tuple[Question, ...]:
        return (contribute(wire, setting, body, f"{one_vector(wire)}, and how long each party took, in rounds"),)

    def gather(self, wire: Wire, setting: Setting) -> Gather:
        self.check(wire)
        own = wire.row.size - int(wire.weighted)  # a weight is not weighed: the mean is Σ s·w·Δ / Σ w

        async def gather(cohort: Cohort, question: Tree, goal: int | None) -> Gathered:
            # Of a cohort only so many are asked as are not at work; a sorted one would favour the low numbers.
            to = setting.world.public_rng("buffered", question["t"]).permutation(cohort)
            what = f"{setting.phase}/contribute"
            replies = await ask(to, what, question, goal=self.buffer_size, max_staleness=self.max_staleness)
            # To -0.0 both -0.0 and 0.0 can be added and stay what they are.
            total = np.full(wire.row.size, -0.0, wire.row.dtype)
            scales = (1.0 + replies.each.get("age", np.zeros(len(replies)))) ** -self.power
            # One by one in the order of the parties, as Sum() adds.
            for row, scale in zip(replies.each.get("vector", ()), scales.astype(wire.row.dtype), strict=True):
                total[:own] += row[:own] * scale
                total[own:] += row[own:]
            each = {name: leaf for name, leaf in replies.each.items() if name != "vector"}
            return Gathered(total, replace(replies, each=each))

        return gather

    def check(self, wire: Wire) -> None:
        if wire.ring is not None:
            raise Mismatch("Buffered() weighs answers by their age, which integers of a ring do not allow: use "
                           "SecureSum() in rounds, or take out Ring()")  # fmt: skip
        if wire.noise:
            raise Mismatch("Buffered() has no account of what noise hides when answers of several rounds are added: "
                           "use Sum(), or no noise")  # fmt: skip
        if not wire.mean:
            raise Mismatch("Buffered() weighs changes of a model by their age: put Weigh() or Average() into the "
                           "stages, or use Sum()")  # fmt: skip
        if wire.total.hides_count and not wire.weighted:
            raise Mismatch("Average(by='expected') divides by the whole cohort, of which a buffer holds a part: use "
                           "Average()")  # fmt: skip
        if wire.total.min_cohort:
            raise Mismatch(f"the select wants all {wire.total.min_cohort} parties of a cohort in a sum, Buffered() "
                           "takes those who are first: use Sum(), or select with Count()")  # fmt: skip
        if sum(map(prod, wire.row.shapes)) != wire.row.size:
            raise Mismatch("Buffered() adds vectors of several rounds, and a stage here writes them in terms of one "
                           "(Rotate(), RandomK(), LowRank(), Clip(quantile=…)): take it out, or use Sum()")  # fmt: skip
        if self.buffer_size > wire.total.cohort:
            raise Mismatch(f"Buffered(buffer_size={self.buffer_size}) waits for more answers than there are parties "
                           f"at work, about {wire.total.cohort}: select more, or wait for fewer")  # fmt: skip
