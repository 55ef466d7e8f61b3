"""What all sums that hide their vectors have in common: enough must answer, else nothing is opened."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from math import ceil, log2
from typing import Any

import numpy as np

from atoll.combine.each import ONE_MACHINE
from atoll.core.effects import Cohort, Replies, ask
from atoll.core.tree import Array, Tree, leaves
from atoll.core.wire import Gather, Gathered, Mismatch, Question, Wire

LEAST = 3  # of two parties each knows the other's vector from the sum

# (rows as integers around zero, who sent them, who was asked, the question) to (the sum around zero, what it cost)
Protocol = Callable[[Array, Cohort, Cohort, Question], tuple[Array, dict[str, Any]]]


def check(wire: Wire, name: str, least: int = LEAST) -> None:
    """Refuse a wire that cannot be added up in secret."""
    if wire.ring is None:
        where = "before the noise" if any(event.where == "local" for event in wire.noise) else "after Clip()"
        raise Mismatch(f"{name} adds integers of a ring: put Ring() {where} into the stages")
    if wire.cohort < least:
        raise Mismatch(f"{name} asks for at least {least} parties, and a round has about {wire.cohort}: select more")


def bits_of(wire: Wire) -> int:
    """How many bits a number needs for the sum, with its noise, to be exact."""
    return ceil(log2(2 * wire.span + 1))


def server_sees(wire: Wire, least: int, real: bool) -> dict[str, str]:
    """Say who sees what of a sum that hides its vectors."""
    noisy = "noisy " if any(event.where in ("distributed", "local") for event in wire.noise) else ""
    simulated = "" if real else " (simulated: the same integers are added up in the clear)"
    return {
        "server": f"the {noisy}sum of at least {least} vectors, and who took part{simulated}",
        "other parties": "the shared model only",
        "network": ONE_MACHINE,
    }


def gather_hidden(wire: Wire, needed: Callable[[int], int], protocol: Protocol | None) -> Gather:
    """Ask for vectors and open their sum, if enough came. Without a protocol the sum is simulated: the same bits."""

    async def gather(cohort: Cohort, question: Question, enough: int | None) -> Gathered:
        least = max(needed(len(cohort)), wire.floor)
        enough = None if enough is None else max(enough, least)
        replies = await ask(cohort, "contribute", question, enough=enough, fold=() if protocol else ("vector",))
        if len(replies) < least:
            why = f"{len(replies)} of {len(cohort)} answered, {least} are needed: nothing was opened"
            said = {"unopened": why, "needed": least, "answered": len(replies)}
            closed = Replies(replies.parties[:0], facts={**replies.facts, **said})
            return Gathered(np.zeros(wire.size, wire.dtype), closed)
        if protocol is None:
            return Gathered(replies.sums["vector"], replies)
        rows = replies.each["vector"]
        around_zero = rows.view(np.int32 if rows.itemsize == 4 else np.int64)
        total, cost = protocol(around_zero, replies.parties, cohort, question)
        each = {name: leaf for name, leaf in replies.each.items() if name != "vector"}
        facts = {**replies.facts, **cost}
        return Gathered(total.astype(np.int64).astype(wire.dtype), Replies(replies.parties, each, facts=facts))

    return gather


def fingerprint(question: Tree) -> bytes:
    """Hash what parties were given: those given different models must not add up."""
    digest = sha256()
    for path, leaf in leaves(question):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{path} {array.dtype} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.digest()
