"""Combines that ask once: the folded sum, and a rule on all rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atoll.core.effects import Cohort, ask
from atoll.core.wire import Gather, Gathered, Mismatch, Question, Rule, Wire


def plainly(wire: Wire) -> Mapping[str, str]:
    """Say who sees what when vectors go to the server as they are."""
    bound = f", no longer than {wire.l2:g}" if wire.l2 is not None else ""
    noisy = " with noise of its own" if wire.noise else ""
    return {
        "server": f"each party's vector{noisy}{bound}, one by one",
        "other parties": "the shared model only",
        "network": "nothing: this is a simulation in one machine",
    }


@dataclass(frozen=True)
class Sum:
    """Add the vectors up as they come in; memory does not grow with the cohort. Reveals each vector to the server."""

    def seen(self, wire: Wire) -> Mapping[str, str]:
        return plainly(wire)

    def __call__(self, wire: Wire) -> Gather:
        async def gather(cohort: Cohort, question: Question, enough: int | None) -> Gathered:
            replies = await ask(cohort, "contribute", question, enough=enough, fold=("vector",))
            return Gathered(replies.sums["vector"], replies)

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
        if wire.ring is not None:
            raise Mismatch(f"{name} needs real vectors: take out the stage that makes integers of them")
        if wire.noise:
            raise Mismatch(f"{name} is not a sum, so the noise would not be calibrated: use Sum(), or no noise")

        async def gather(cohort: Cohort, question: Question, enough: int | None) -> Gathered:
            replies = await ask(cohort, "contribute", question, enough=enough)
            # What stands for the sum of n rows is n times what stands for one.
            return Gathered(self.rule(replies.each["vector"]) * len(replies), replies)

        return gather
