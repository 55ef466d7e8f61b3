"""Hidden sums as conversations: what was agreed, the server's lead through the steps, a party's side of them.

One implementation serves every world: a runtime carries the questions to parties in this process or on other machines,
and a party's side answers them with the code of `atoll.crypto`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from time import process_time
from typing import NamedTuple, Protocol

import numpy as np

from atoll.combine.hidden import LEAST
from atoll.core.effects import Replies, ask, note
from atoll.core.tree import Array, Tree, leaves
from atoll.core.wire import Gathered, Setting, Train, Wire
from atoll.crypto.keys import Abort, Identity, Refused, packed, refuse_if
from atoll.crypto.lists import SignedLists, SumKey
from atoll.crypto.secagg import SpentRecord
from atoll.crypto.terms import Agreement

FRAME = 4096  # bytes of a protocol's terms, and of the frames of its messages


class PartySession(NamedTuple):
    """What a party brings to hidden sums beside the job and its roster; none of it but the number is the server's.

    Args:
        me: the party's number.
        identity: the key it signs with.
        min_cohort: the fewest parties in a sum that its policy allows.
        rounds: round numbers stay below this.
        spent: where it notes what it has done, so that it does nothing twice; it must outlive the process unless all
            parties live in one.
        lists: where it notes whose sums it has signed, and what it gave; it must outlive the process likewise.
        batches: a sum has all parties of a batch or none, by its policy.
    """

    me: int
    identity: Identity
    min_cohort: int
    rounds: int
    spent: SpentRecord
    lists: SignedLists
    batches: tuple[tuple[int, ...], ...] = ()


def agreed(
    setting: Setting,
    wire: Wire,
    protocol: bytes,
    *,
    holders: int = 0,
    min_cohort: int = LEAST,
    session: PartySession | None = None,
) -> Agreement:
    """Put together what a party (with a session) or the server knows of a sum by itself.

    `protocol` says how vectors are hidden, packed. The first `holders` members have a part in every sum.
    """
    unbound = setting.world.secret and not setting.agreement
    refuse_if(unbound, "a sum between real parties is bound to their job: give its hash as Setting.agreement", Abort)
    members = dict(setting.members())
    mine = None if session is None else members.get(session.me)
    known = session is None or (mine is not None and mine.key == session.identity.public)
    refuse_if(not known, "this party's roster has another key for it than its own, or none: mend its line", Abort)
    always = tuple(sorted(members)[:holders])
    rounds, batches = (2**32, ()) if session is None else (session.rounds, session.batches)
    return Agreement(
        setting.agreement, setting.phase, protocol, _vector(wire), members, always, min_cohort, rounds, batches,
        wire.total.min_cohort,
    )  # fmt: skip


def _vector(wire: Wire) -> bytes:
    """Pack what parties must agree in about a vector: they would not add up otherwise, or tell too much."""
    ring = wire.need_ring("a hidden sum")
    noise = [value for event in wire.noise for value in (event.where, event.multiplier)]
    numbers = int(ring.value_bound), int(ring.sum_bound), wire.total.min_cohort
    return packed(wire.row.size, wire.row.dtype, ring.modulus.to_bytes(16, "big"), *numbers, packed(*noise))


def fingerprint(question: Tree) -> bytes:
    """Hash what parties were given: those given different models must not add up.

    The round is not in it, which terms say apart: one model in two rounds is one model.
    """
    digest = sha256()
    for path, leaf in leaves({name: part for name, part in question.items() if name != "t"}):
        array = np.asarray("" if leaf is None else leaf, order="C")
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        kind = "none" if leaf is None else array.dtype.str
        digest.update(packed(path, kind, packed(*array.shape)))
        digest.update(array.tobytes())
    return digest.digest()


def sum_key(setting: Setting, question: Tree) -> SumKey:
    """Name the sum that a question asks for, whichever session asks."""
    return SumKey(setting.agreement, setting.phase, int(question["t"]), fingerprint(question))


def vector_of(setting: Setting, session: PartySession, question: Tree, train: Train) -> Array:
    """Return the vector that this party gave to a sum of this question before; train where there is none."""
    before = session.lists.vector(sum_key(setting, question))
    return train(question) if before is None else before


class ServerSide(Protocol):
    """The server's side of one round of a protocol."""

    def take(self, sender: int, data: bytes, /) -> None: ...
    def turn(self) -> Mapping[int, bytes]: ...


class SumExchange:
    """The server's questions of one sum, with what they cost: bytes of an average party, CPU seconds of the server."""

    def __init__(self, setting: Setting, kind: str, parties: int) -> None:
        self._prefix, self._kind, self._parties = f"{setting.phase}/{kind}.", kind, parties
        self._measured: dict[str, object] = {"seconds": 0.0}
        self._moved, self._cpu, self._since = 0, 0.0, process_time()

    async def ask(
        self, step: str, messages: Mapping[int, bytes], body: Tree, goal: int | None = None
    ) -> dict[int, bytes]:
        """Put one step to those who have a message; return what came, of `goal` parties at most."""
        each = {who: {"message": np.frombuffer(message, np.uint8)} for who, message in messages.items()}
        self._cpu += process_time() - self._since
        to = np.array(sorted(messages), np.int64)
        replies = await ask(to, self._prefix + step, body, goal=goal, each=each)
        self._since = process_time()
        self._measured["seconds"] += replies.facts.get("seconds", 0.0)
        for name in ("bytes_up", "bytes_down"):
            if name in replies.facts:
                self._measured[name] = self._measured.get(name, 0) + replies.facts[name]
        if "elapsed" in replies.facts:
            self._measured["elapsed"] = replies.facts["elapsed"]
        found = list(zip(replies.parties.tolist(), replies.each.get("message", ()), strict=True))[:goal]
        answers = {who: message.tobytes() for who, message in found}
        self._moved += sum(map(len, messages.values())) + sum(map(len, answers.values()))
        return answers

    async def reject(self, who: int, why: Exception) -> None:
        """Note that a party's message was left out."""
        await note("rejected", number=who, reason=self._kind, why=str(why))

    def facts(self, asked: int, among: int) -> dict[str, object]:
        """Say what the runtime measured, what the protocol cost, and how many of those asked are not in the sum."""
        cost = {
            "protocol_bytes": self._moved / max(self._parties, 1),
            "protocol_server": self._cpu + process_time() - self._since,
        }
        return {**self._measured, **cost, **({"lost": asked - among} if asked > among else {})}


async def converse(
    exchange: SumExchange, steps: Sequence[str], server: ServerSide, first: Mapping[int, bytes], question: Tree,
    goal: int | None,
) -> None:  # fmt: skip
    """Lead a cohort through all messages of a protocol.

    The first message goes out with the question itself, so that parties train before anybody has keys to lose.
    """
    inbox = first
    for step in steps:
        start = step == steps[0]
        body = question if start else {"t": question["t"]}
        for who, message in (await exchange.ask(step, inbox, body, goal if start else None)).items():
            try:
                server.take(who, message)
            except (Refused, Abort) as fault:
                await exchange.reject(who, fault)
        inbox = server.turn() if step != steps[-1] else {}


def opened(total: Array, among: Sequence[int], wire: Wire, facts: Mapping[str, object]) -> Gathered:
    """Give the sum, as integers around zero, of these parties' vectors."""
    return Gathered(total.astype(wire.row.dtype), Replies(np.array(among, np.int64), facts=facts))


def closed(wire: Wire, least: int, why: Exception) -> Gathered:
    """Give nothing, and say why."""
    said = {"aborted": f"{why}: nothing was opened", "needed": least, "answered": 0}
    return Gathered(np.zeros(wire.row.size, wire.row.dtype), Replies(np.arange(0), facts=said))


def read_step(kind: str, steps: Sequence[str], name: str) -> str:
    """Return the step that a question of a protocol asks for."""
    known, _, step = name.partition(".")
    refuse_if(known != kind or step not in steps, f"{name!r} is no question of this sum", Abort)
    return step


def message_of(body: Tree) -> bytes:
    """Return the server's message of a step."""
    return np.asarray(body["message"], np.uint8).tobytes()


def question_of(body: Tree) -> Tree:
    """Return what came beside the message."""
    return {name: leaf for name, leaf in body.items() if name != "message"}


def said(message: bytes) -> Tree:
    """Return a party's message as an answer."""
    return {"message": np.frombuffer(message, np.uint8)}


def around_zero(row: Array) -> Array:
    """Read one vector of a ring as integers around zero."""
    return row.view(np.int32 if row.itemsize == 4 else np.int64).astype(np.int64)
