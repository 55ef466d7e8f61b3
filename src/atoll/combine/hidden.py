"""What all sums that hide their vectors have in common: enough must answer, else nothing is opened."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2

import numpy as np

from atoll.combine.each import network_sees
from atoll.core.effects import Cohort, Replies, ask
from atoll.core.tree import Tree
from atoll.core.wire import Gather, Gathered, Mismatch, Setting, Wire
from atoll.core.world import World

LEAST = 3  # of two parties each knows the other's vector from the sum
SIMULATED = " (simulated: the same integers are added up in the clear)"
SUCCESSIVE = (
    "protected within one sum; a server that decides who takes part can subtract sums of successive, similar models"
)


def check_ring(wire: Wire, name: str, least: int = LEAST) -> None:
    """Refuse a wire that cannot be added up in secret."""
    wire.need_ring(name)
    about = wire.total.cohort
    if about < least:
        raise Mismatch(f"{name} asks for at least {least} parties, and a round has about {about}: select more")


def bits_of(wire: Wire) -> int:
    """How many bits a number needs for the sum, with its noise, to be exact."""
    return ceil(log2(2 * wire.need_ring("a hidden sum").sum_bound + 1))


def own_noise(wire: Wire) -> bool:
    """Whether parties add noise, each enough or all together."""
    return wire.noised("distributed", "local")


def hidden_seen(wire: Wire, world: World, least: int, not_promised: str) -> dict[str, str]:
    """Say who sees what of a sum that hides its vectors."""
    noisy = "noisy " if own_noise(wire) else ""
    simulated = SIMULATED if world.shortcut else ""
    least = max(least, wire.total.min_cohort)
    return {
        "server": f"the {noisy}sum of at least {least} vectors, and who took part{simulated}",
        "other parties": "the shared model, and of a sum that they are part of, who else is",
        "network": network_sees(world),
        "not promised": not_promised if own_noise(wire) else f"{not_promised}; {SUCCESSIVE}",
    }


def gather_in_clear(wire: Wire, setting: Setting, needed: Callable[[int], int]) -> Gather:
    """Add up vectors as they come, in a simulation: the bits of the protocol without its work.

    `needed` says how many of those asked must answer; with fewer nothing is opened.
    """

    async def gather(cohort: Cohort, question: Tree, goal: int | None) -> Gathered:
        least = max(needed(len(cohort)), wire.total.min_cohort)
        goal = None if goal is None else max(goal, least)
        replies = await ask(cohort, f"{setting.phase}/contribute", question, goal=goal, fold=("vector",))
        if len(replies) < least:
            why = f"{len(replies)} of {len(cohort)} answered, {least} are needed: nothing was opened"
            said = {"aborted": why, "needed": least, "answered": len(replies)}
            closed = Replies(replies.parties[:0], facts={**replies.facts, **said})
            return Gathered(np.zeros(wire.row.size, wire.row.dtype), closed)
        return Gathered(replies.sums["vector"], replies)

    return gather
