"""Sums that hide their vectors, between real parties: a protocol's messages as questions, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from atoll.core.effects import Replies, ask, note
from atoll.core.tree import Array, Tree
from atoll.core.wire import Gathered, Question, Wire
from atoll.crypto.keys import Identity, Refused

TERMS = 4096  # bytes of a protocol's terms, and of the frames of its messages
Train = Callable[[Tree], Array]  # a question to this party's vector, as integers of the ring


class Moderator(Protocol):
    """The server's side of one round of a protocol."""

    def take(self, who: int, message: bytes) -> None: ...
    def turn(self) -> Mapping[int, bytes]: ...


class Dialogue(Protocol):
    """A party's side of a protocol, round after round. What is wrong ends the round for it: it raises a sentence."""

    def answer(self, step: str, body: Tree, train: Train) -> bytes: ...


class Sitting(NamedTuple):
    """What a party brings to a protocol: none of it comes from the server but its number."""

    me: int
    identity: Identity
    keys: Mapping[int, bytes]  # of all parties it knows, by their numbers
    least: int  # parties in a sum
    floor: int  # of them must stay to the end, for their noise
    size: int  # of the vector
    width: int  # bits of the ring's integers
    value: int  # bits of one of its numbers, with the sign
    schema: bytes  # hash of the model's names and shapes
    rounds: int
    folder: Path  # where it notes what it has already done


class Unopened(Exception):
    """Too few took part to the end, or somebody lied: the sum stays closed."""


async def converse(
    kind: str, steps: Sequence[str], server: Moderator, first: Mapping[int, bytes], question: Question,
    enough: int | None, over: type[Exception],
) -> dict[str, Any]:  # fmt: skip
    """Lead a cohort through all messages; return what the runtime measured. `over` is how the protocol gives up.

    The first message goes out with the question itself, so that parties train before anybody has keys to lose.
    """
    inbox, facts, seconds = first, dict[str, Any](), 0.0
    for step in steps:
        start = step == steps[0]
        each = {who: {"message": np.frombuffer(message, np.uint8)} for who, message in inbox.items()}
        replies = await ask(
            np.array(sorted(inbox), np.int64), f"{kind}.{step}", question if start else {"t": question["t"]},
            enough=enough if start else None, each=each,
        )  # fmt: skip
        seconds += replies.facts.get("seconds", 0.0)
        facts = {**replies.facts, "seconds": seconds}
        answered = list(zip(replies.parties.tolist(), replies.each.get("message", ()), strict=True))
        for who, message in answered[:enough] if start else answered:
            try:
                server.take(who, message.tobytes())
            except (Refused, over) as fault:
                await note("rejected", number=who, reason=kind, why=str(fault))
        try:
            inbox = server.turn() if step != steps[-1] else {}
        except over as reason:
            raise Unopened(str(reason)) from None
    return {name: facts[name] for name in ("seconds", "elapsed") if name in facts}


def closed(wire: Wire, least: int, why: str) -> Gathered:
    """Give nothing, and say why."""
    said = {"unopened": f"{why}: nothing was opened", "needed": least, "answered": 0}
    return Gathered(np.zeros(wire.size, wire.dtype), Replies(np.arange(0), facts=said))
