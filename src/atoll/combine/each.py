"""Combines that ask once: the folded sum, and a rule on all rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from atoll.core.effects import Cohort, ask
from atoll.core.wire import Gather, Gathered, Mismatch, Question, Rule, Wire

ONE_MACHINE = "nothing: this is a simulation in one machine"


def plainly(wire: Wire) -> Mapping[str, str]:
    """Say who sees what when vectors go to the server as they are."""
    bound = f", no longer than {wire.l2:g}" if wire.l2 is not None else ""
    noisy = " with noise of its own" if any(event.where == "local" for event in wire.noise) else ""
    return {
        "server": f"each party's vector{noisy}{bound}, one by one",
        "other parties": "the shared model only",
        "network": ONE_MACHINE,
    }


@dataclass(frozen=True)
class Sum:
    """Add the vectors up as they come in; memory does not grow with the cohort. Reveals each vector to the server."""

    def seen(self, wire: Wire) -> Mapping[str, str]:
        return plainly(wire)

    def __call__(self, wire: Wire) -> Gather:
        if any(event.where == "distributed" for event in wire.noise):
            raise Mismatch("one party's share of distributed noise hides nothing: combine with SecureSum()")

        async def gather(cohort: Cohort, question: Question, enough: int | None) -> Gathered:
            replies = await ask(cohort, "contribute", question, enough=enough, fold=("vector",))
            # Where nobody answered there is no sum, and nobody asks for it.
            return Gathered(replies.sums.get("vector", np.zeros(wire.size, wire.dtype)), replies)

        return gather


@dataclass(frozen=True)
class Each:
    """Apply a rule to all vectors at once (median, trimmed mean). Needs: every row in memory, real and unweighted."""

    rule: Rule

    def seen(self, wire: Wire) -> Mapping[str, str]:
        return plainly(wire)

    def __call__(self, wire: Wire) -> Gather:
        name = type(self.rule).__name__
        if wire.weighted:
            raise Mismatch(f"{name} gives every party one voice: use Average() instead of Weigh()")
        least = getattr(self.rule, "least", 1)
        if wire.cohort < least:
            few = f"a round has about {wire.cohort}"
            raise Mismatch(f"{self.rule} needs {least} answers or more, {few}: select more parties")
        if wire.ring is not None:
            raise Mismatch(f"{name} needs real vectors: take out the stage that makes integers of them")
        if wire.noise:
            raise Mismatch(f"{name} is not a sum, so the noise would not be calibrated: use Sum(), or no noise")

        async def gather(cohort: Cohort, question: Question, enough: int | None) -> Gathered:
            replies = await ask(cohort, "contribute", question, enough=enough)
            if not len(replies):
                return Gathered(np.zeros(wire.size, wire.dtype), replies)
            # What stands for the sum of n rows is n times what stands for one.
            return Gathered(self.rule(replies.each["vector"]) * len(replies), replies)

        return gather
