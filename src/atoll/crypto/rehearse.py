"""Hidden sums in one process, with real clients and a real server: for tests and for figures, not for training."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import process_time
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from atoll.core.tree import Array
from atoll.core.wire import Member
from atoll.crypto import field, light, secagg
from atoll.crypto.graph import Sparse, secure_threshold
from atoll.crypto.keys import KEY, Identity, refuse_if
from atoll.crypto.light import Light, LightClient, LightServer
from atoll.crypto.lists import SignedLists
from atoll.crypto.mask import Integers
from atoll.crypto.secagg import Participant, SecureClient, SecurePlan, SecurePolicy, SecureServer, SpentHere
from atoll.crypto.terms import SESSION, Agreement

ASSUMED = Sparse()
MODEL = bytes(KEY)  # the hash of what the parties were given: nothing

StepAnswer = Callable[[str, bytes], bytes]  # (step, message) to the answer


class _SumServer(Protocol):
    def take(self, sender: int, data: bytes, /) -> None: ...
    def turn(self) -> Mapping[int, bytes]: ...
    def finish(self) -> Array: ...
    @property
    def survivors(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class RehearsalCost:
    """What a rehearsal cost: bytes up and down by party, CPU seconds, and work that does not depend on the machine.

    Work is counted in masks that were expanded, or in multiply-adds of unmasking where there are no pairwise masks.
    """

    bytes: Mapping[int, int]
    client_seconds: float  # of an average party
    server_seconds: float  # but for unmasking
    unmask_seconds: float
    client_work: int  # of all parties together
    server_work: int


class Rehearsed(NamedTuple):
    """The sum, whose vectors are in it, and what it cost."""

    sum: Array
    survivors: tuple[int, ...]
    cost: RehearsalCost


def least(n: int) -> int:
    """The smallest threshold of the complete graph: more than two thirds."""
    return 2 * n // 3 + 1


def agreed_by(identities: Mapping[int, Identity]) -> Agreement:
    """What parties of a rehearsal agree in: who they are, and no job."""
    members = {who: Member(f"{who}", identity.public) for who, identity in identities.items()}
    return Agreement(b"", "rehearsal", b"", b"", members)


def rehearse_secure(
    rows: Integers,
    *,
    ids: Sequence[int] | None = None,
    threshold: int | None = None,
    neighbours: int | None = None,
    assume: Sparse = ASSUMED,
    bits: int | None = None,
    drop: Mapping[int, str] | None = None,
    identities: Mapping[int, Identity] | None = None,
) -> Rehearsed:
    """The sum of the rows of parties that get as far as the masked vector; `drop` names the message one never sends.

    With `neighbours`, shares and masks go to that many others only, safe as far as `assume` is true. Against a lying
    server the graph saves nothing worth having up to some 200 parties.
    """
    n, d = rows.shape
    names, keys = _cast(rows, ids, drop or {}, secagg.STEPS, identities)
    if threshold is None:
        threshold = (secure_threshold(n, neighbours, assume) or neighbours) if neighbours else least(n)
    width, sparse, agreed = 8 * rows.itemsize, assume if neighbours else None, agreed_by(keys)
    terms = agreed.terms(secrets.token_bytes(SESSION), 0, sorted(names), MODEL)
    plan = SecurePlan(terms, threshold, neighbours or 0, width, bits or width, d)
    policy = SecurePolicy(n_min=3, size=d, width=width, bits=plan.bits, sparse=sparse)
    clients = {
        who: SecureClient(Participant(who, keys[who], agreed, policy, SpentHere(), SignedLists())) for who in names
    }

    def answers(who: int, x: Integers) -> StepAnswer:
        def answer(step: str, message: bytes) -> bytes:
            if step == "advertise":
                return clients[who].advertise(message, t=0, model=MODEL)
            return clients[who].answer(step, message, x)

        return answer

    every = {who: answers(who, np.ascontiguousarray(row)) for who, row in zip(names, rows, strict=True)}
    server = SecureServer(plan, agreed.roster)
    total, cost = _run(secagg.STEPS, server, every, secagg.encode(plan), drop or {})
    work = sum(client.expansions for client in clients.values()), server.expansions
    return Rehearsed(total, server.survivors, RehearsalCost(*cost, *work))


def rehearse_light(
    rows: npt.NDArray[np.int64],
    *,
    ids: Sequence[int] | None = None,
    privacy: int,
    target: int,
    drop: Mapping[int, str] | None = None,
    identities: Mapping[int, Identity] | None = None,
) -> Rehearsed:
    """Sum rows of signed integers by LightSecAgg; `drop` names the message one never sends."""
    refuse_if(
        rows.ndim != 2 or rows.dtype.kind != "i" or not rows.size, f"{rows.dtype} {rows.shape}: give (n, d) int64"
    )
    n, size = rows.shape
    names, known = _cast(rows, ids, drop or {}, light.STEPS, identities)
    most = n * max(-int(rows.min()), int(rows.max()))
    refuse_if(
        2 * most >= field.P, f"a sum of {n} rows may reach {most}: the field holds {field.P // 2}; scale the rows down"
    )
    roster = {who: known[who].public for who in names}
    about = Light(roster, privacy, target, size, secrets.token_bytes(SESSION))
    clients = {who: LightClient(about, who, known[who]) for who in names}

    def answers(who: int, x: field.Elements) -> StepAnswer:
        return lambda step, message: clients[who].answer(step, message, x)

    every = {who: answers(who, field.from_signed(row)) for who, row in zip(names, rows, strict=True)}
    server = LightServer(about)
    total, cost = _run(light.STEPS, server, every, b"", drop or {})
    return Rehearsed(field.to_signed(total), server.survivors, RehearsalCost(*cost, 0, server.multiply_adds))


def _cast(
    rows: Array,
    ids: Sequence[int] | None,
    drop: Mapping[int, str],
    steps: Sequence[str],
    identities: Mapping[int, Identity] | None,
) -> tuple[list[int], Mapping[int, Identity]]:
    """Give the parties their names and keys."""
    n = len(rows)
    names = list(range(n)) if ids is None else list(ids)
    refuse_if(len(set(names)) != n or len(names) != n, f"{len(names)} ids for {n} rows: each row has its own")
    known_drops = set(drop) <= set(names) and set(drop.values()) <= set(steps)
    refuse_if(not known_drops, f"drop={dict(drop)}: name parties that have a row, and messages {', '.join(steps)}")
    return names, {who: identities[who] if identities else Identity.new() for who in names}


def _run(
    steps: Sequence[str], server: _SumServer, clients: Mapping[int, StepAnswer], first: bytes, drop: Mapping[int, str]
) -> tuple[Array, tuple[Mapping[int, int], float, float, float]]:
    """Lead all clients through all steps; return the sum, and bytes and CPU seconds of clients, server, unmasking."""
    inbox: Mapping[int, bytes] = dict.fromkeys(clients, first)
    traffic, seconds, served = dict.fromkeys(clients, 0), 0.0, 0.0
    for step in steps:
        outbox, start = dict[int, bytes](), process_time()
        for who, message in inbox.items():
            if drop.get(who) != step:
                outbox[who] = clients[who](step, message)
                traffic[who] += len(message) + len(outbox[who])
        between = process_time()
        for who, message in outbox.items():
            server.take(who, message)
        inbox = server.turn() if step != steps[-1] else {}
        seconds, served = seconds + between - start, served + process_time() - between
    start = process_time()
    total = server.finish()
    return total, (traffic, seconds / len(clients), served, process_time() - start)
