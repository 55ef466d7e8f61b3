"""Secure aggregation in one process, with real parties and a real server: for simulation, tests and figures."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import process_time
from typing import NamedTuple

import numpy as np

from atoll.crypto.graph import Sparse, secure_threshold
from atoll.crypto.keys import Identity, refuse_if
from atoll.crypto.mask import Integers
from atoll.crypto.secagg.client import Client
from atoll.crypto.secagg.messages import Plan, encode
from atoll.crypto.secagg.policy import STEPS, Party, Policy, SpentHere
from atoll.crypto.secagg.server import Server

ASSUMED = Sparse()


@dataclass(frozen=True)
class Facts:
    """What a rehearsal cost."""

    bytes: Mapping[int, int]  # up and down, by party
    client_seconds: float  # CPU of an average party
    server_seconds: float
    client_expansions: int  # masks that all parties made together
    server_expansions: int  # masks that the server took away


class Rehearsed(NamedTuple):
    """The sum modulo 2^bits, whose vectors are in it, and what it cost."""

    sum: Integers
    survivors: tuple[int, ...]
    facts: Facts


def bytes_sent(n: int, d: int, bits: int) -> float:
    """Bytes up and down of one party as Bonawitz et al. count them: keys, shares and the vector, no signatures."""
    return (2 * n * 256 + (5 * n - 4) * 256 + d * bits) / 8


def least(n: int) -> int:
    """The smallest threshold of the complete graph: more than two thirds."""
    return 2 * n // 3 + 1


def rehearse(
    rows: Integers,
    *,
    ids: Sequence[int] | None = None,
    t: int | None = None,
    neighbours: int | None = None,
    assume: Sparse = ASSUMED,
    model: bytes = b"",
    schema: bytes = b"",
    session: bytes | None = None,
    round: int = 0,  # noqa: A002, the caller's word for it
    bits: int | None = None,
    drop: Mapping[int, str] | None = None,
    identities: Mapping[int, Identity] | None = None,
) -> Rehearsed:
    """The sum of the rows of parties that get as far as the masked vector; `drop` names the message one never sends.

    With `neighbours`, shares and masks go to that many others only, safe as far as `assume` is true. Against a lying
    server the graph saves nothing worth having up to some 200 parties.
    """
    n, d = rows.shape
    width, drop = 8 * rows.itemsize, drop or {}
    names = list(range(n)) if ids is None else list(ids)
    refuse_if(len(set(names)) != n or len(names) != n, f"{len(names)} ids for {n} rows: each row has its own")
    refuse_if(not set(drop.values()) <= set(STEPS), f"drop={dict(drop)}: messages are {', '.join(STEPS)}")
    keys = identities or {who: Identity.new() for who in names}
    if t is None:
        t = (secure_threshold(n, neighbours, assume) or neighbours) if neighbours else least(n)
    session = session or secrets.token_bytes(16)
    plan = Plan(session, round, model, schema, t, neighbours or 0, width, bits or width, d)
    sparse = assume if neighbours else None
    policy = Policy(n_min=3, schema=schema, size=d, width=width, max_rounds=round + 1, sparse=sparse)
    roster = {who: keys[who].public for who in names}
    clients = {who: Client(Party(who, keys[who], roster, policy, SpentHere())) for who in names}
    vectors = {who: np.ascontiguousarray(row) for who, row in zip(names, rows, strict=True)}
    server, traffic, inbox = Server(plan, roster), dict.fromkeys(names, 0), dict.fromkeys(names, encode(plan))
    client_seconds = server_seconds = 0.0
    for step in STEPS:
        outbox, start = {}, process_time()
        for who, message in inbox.items():
            if drop.get(who) != step:
                outbox[who] = answer(clients[who], step, message, model, vectors[who])
                traffic[who] += len(message) + len(outbox[who])
        between = process_time()
        for who, message in outbox.items():
            server.take(who, message)
        if step != STEPS[-1]:
            inbox = server.turn()
        client_seconds += between - start
        server_seconds += process_time() - between
    start = process_time()
    total = server.finish()
    server_seconds += process_time() - start
    made = sum(client.expansions for client in clients.values())
    facts = Facts(traffic, client_seconds / n, server_seconds, made, server.expansions)
    return Rehearsed(total.sum, total.survivors, facts)


def answer(client: Client, step: str, message: bytes, model: bytes, x: Integers) -> bytes:
    """What a party answers at this step."""
    match step:
        case "advertise":
            return client.advertise(message, model=model)
        case "share":
            return client.share(message)
        case "masked":
            return client.masked(message, x)
        case "consistent":
            return client.consistent(message)
        case _:
            return client.unmask(message)
