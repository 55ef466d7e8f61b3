"""Combines that ask once: the folded sum, and a rule on all rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from atoll.combine.layouts import contribute
from atoll.core.effects import Cohort, ask
from atoll.core.question import Layout, Question
from atoll.core.tree import Tree
from atoll.core.wire import Combine, Gather, Gathered, Mismatch, Rule, Setting, Wire
from atoll.core.world import World


def network_sees(world: World) -> str:
    """Say what whoever watches the network learns."""
    if world.secret:
        return "ciphertext of mutual TLS: who talks to the server, how many bytes and when, not what"
    return "nothing: all parties are on this machine"


def one_vector(wire: Wire) -> str:
    """Say what one party's vector is, as it is sent."""
    bound = f", no longer than {wire.l2:g}" if wire.l2 is not None else ""
    noisy = " with noise of its own" if wire.noised("local") else ""
    return f"each party's vector{noisy}{bound}, one by one"


def plainly(wire: Wire, world: World) -> Mapping[str, str]:
    """Say who sees what when vectors go to the server as they are."""
    return {"server": one_vector(wire), "other parties": "the shared model only", "network": network_sees(world)}


@dataclass(frozen=True)
class Sum(Combine):
    """Add the vectors as they arrive; memory does not grow with the cohort.

    Reveals: each vector to the server.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_combine
        >>> check_combine(atoll.Sum())
    """

    def check(self, wire: Wire) -> None:
        if wire.noised("distributed"):
            raise Mismatch("one party's share of distributed noise hides nothing: combine with SecureSum()")

    def gather(self, wire: Wire, setting: Setting) -> Gather:
        self.check(wire)

        # Rounding moves a sum of thousands of vectors by more than one of them may: noise is added before it.
        wide = wire.noised("central") or wire.noised("tree")

        async def gather(cohort: Cohort, question: Tree, goal: int | None) -> Gathered:
            what = f"{setting.phase}/contribute"
            replies = await ask(cohort, what, question, goal=goal, fold=("vector",), wide=wide)
            # Where nobody answered there is no sum, and nobody asks for it.
            return Gathered(replies.sums.get("vector", np.zeros(wire.row.size, wire.row.dtype)), replies)

        return gather

    def questions(self, wire: Wire, setting: Setting, body: Layout, parties: int) -> tuple[Question, ...]:
        return (contribute(wire, setting, body, one_vector(wire)),)

    def seen(self, wire: Wire, world: World) -> Mapping[str, str]:
        return plainly(wire, world)


@dataclass(frozen=True)
class Each(Combine):
    """Apply a rule to all vectors of a cohort, such as the median or the trimmed mean.

    Needs: real vectors without weights and without noise; memory for all vectors of a cohort.
    Reveals: each vector to the server.

    Args:
        rule: a function from a matrix with one row for each party to one vector: `Mean()`, `Median()`, `TrimmedMean()`.

    Example:
        >>> import atoll
        >>> channel = atoll.Channel([atoll.Average()], atoll.Each(atoll.Median()))
        >>> channel.combine
        Each(rule=Median())
    """

    rule: Rule

    def check(self, wire: Wire) -> None:
        name, least = type(self.rule).__name__, self.rule.min_rows
        if wire.weighted:
            raise Mismatch(f"{name} counts every party equally: use Average() instead of Weigh()")
        if wire.total.cohort < least:
            few = f"a round has about {wire.total.cohort}"
            raise Mismatch(f"{self.rule} needs {least} answers or more, {few}: select more parties")
        if wire.ring is not None:
            raise Mismatch(f"{name} needs real vectors: take out the stage that makes integers of them")
        if wire.noise:
            raise Mismatch(f"{name} is not a sum, so the noise would not be calibrated: use Sum(), or no noise")

    @property
    def holds_rows(self) -> bool:
        return True

    @property
    def robust(self) -> bool:
        rows = np.zeros((max(self.rule.min_rows, 3), 1))
        rows[0] = 1.0
        return not self.rule(rows).any()  # all the others agree

    def gather(self, wire: Wire, setting: Setting) -> Gather:
        self.check(wire)

        async def gather(cohort: Cohort, question: Tree, goal: int | None) -> Gathered:
            replies = await ask(cohort, f"{setting.phase}/contribute", question, goal=goal)
            if not len(replies):
                return Gathered(np.zeros(wire.row.size, wire.row.dtype), replies)
            # What stands for the sum of n rows is n times what stands for one; numbers beside the vector are averaged.
            rows, end = replies.each["vector"], wire.row.size - wire.row.aux
            one = np.concatenate([self.rule(rows[:, :end]), rows[:, end:].mean(0)]) if wire.row.aux else self.rule(rows)
            return Gathered(one * len(replies), replies)

        return gather

    def questions(self, wire: Wire, setting: Setting, body: Layout, parties: int) -> tuple[Question, ...]:
        return (contribute(wire, setting, body, one_vector(wire)),)

    def seen(self, wire: Wire, world: World) -> Mapping[str, str]:
        return plainly(wire, world)
