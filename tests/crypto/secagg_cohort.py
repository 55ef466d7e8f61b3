"""Real parties and a server's view of them, for tests that play an honest or a lying server by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from atoll.core.wire import Member
from atoll.crypto.keys import Identity
from atoll.crypto.lists import SignedLists
from atoll.crypto.records import Message
from atoll.crypto.secagg import (
    STEPS,
    Participant,
    SecureClient,
    SecurePlan,
    SecurePolicy,
    SecureServer,
    Spent,
    SpentHere,
    encode,
)
from atoll.crypto.secagg.client import RoundState
from atoll.crypto.secagg.messages import Advert, Boxes, Bundle, Signatures, Survivors, advert_statement
from atoll.crypto.terms import Agreement

SESSION = b"session of tests"
MODEL, JOB = b"m" * 32, b"j" * 32

# Upper quantiles of chi-square with 255 degrees of freedom: odds of 10^-3 where keys are fixed, of 10^-9 where fresh.
LIKELY, POSSIBLE = 330.5, 414.5


def chi_square(x: np.ndarray) -> float:
    """How far the bytes of an array are from uniform."""
    counts = np.bincount(np.ascontiguousarray(x).view(np.uint8).ravel(), minlength=256)
    expected = counts.sum() / 256
    return float(((counts - expected) ** 2).sum() / expected)


def agreed(identities: dict[int, Identity], **other: Any) -> Agreement:
    """What parties with these keys have agreed to."""
    members = {i: Member(f"party {i}", key.public) for i, key in identities.items()}
    return replace(Agreement(JOB, "model", b"secure", b"vector", members), **other)


def with_terms(plan: SecurePlan, **other: Any) -> SecurePlan:
    """The plan with some of its terms changed."""
    return msgspec.structs.replace(plan, terms=msgspec.structs.replace(plan.terms, **other))


def read(kind: type[Message], data: bytes) -> Message:
    return msgspec.msgpack.decode(data, type=kind)


@dataclass
class Cohort:
    """n parties named 0 to n - 1 with vectors of their own."""

    n: int = 6
    t: int | None = None
    size: int = 5
    width: int = 32
    round: int = 3
    session: bytes = SESSION
    neighbours: int = 0
    n_min: int = 3
    folder: Path | None = None
    identities: dict[int, Identity] = field(default_factory=dict)
    policy: SecurePolicy | None = None
    agreed: Agreement | None = None

    def __post_init__(self) -> None:
        self.identities = self.identities or {i: Identity.new() for i in range(self.n)}
        self.agreed = self.agreed or agreed(self.identities)
        self.t = self.t or 2 * self.n // 3 + 1
        width = self.width
        self.policy = self.policy or SecurePolicy(n_min=self.n_min, size=self.size, width=width, bits=width)
        terms = self.agreed.terms(self.session, self.round, range(self.n), MODEL)
        self.plan = SecurePlan(terms, self.t, self.neighbours, width, width, self.size)
        self.parties = {i: self.party(i) for i in range(self.n)}
        self.clients = {i: SecureClient(p) for i, p in self.parties.items()}
        generator = np.random.default_rng(self.n)
        self.rows = generator.integers(0, 2**self.width, (self.n, self.size), dtype=f"uint{self.width}")
        self.server = SecureServer(self.plan, self.agreed.roster)
        self.sent: dict[str, dict[int, bytes]] = {step: {} for step in STEPS}

    def party(self, i: int) -> Participant:
        spent = Spent(self.folder / str(i)) if self.folder else SpentHere()
        if self.folder:
            (self.folder / str(i)).mkdir(exist_ok=True)
        return Participant(i, self.identities[i], self.agreed, self.policy, spent, self.lists(i))

    def lists(self, i: int) -> SignedLists:
        return SignedLists(self.folder / str(i) if self.folder else None)

    def again(self, i: int) -> SecureClient:
        """The same party, started anew with the record it kept."""
        return SecureClient(self.parties[i])

    def answer(self, step: str, i: int, message: bytes, client: SecureClient | None = None) -> bytes:
        client = client or self.clients[i]
        if step == "advertise":
            return client.advertise(message, t=self.round, model=MODEL)
        return client.answer(step, message, self.rows[i])

    def until(self, step: str, drop: dict[int, str] | None = None) -> dict[int, bytes]:
        """Honest messages up to a step: what each party would now be sent."""
        inbox = dict.fromkeys(self.clients, encode(self.plan))
        for now in STEPS[: STEPS.index(step)]:
            for i, message in inbox.items():
                if (drop or {}).get(i) != now:
                    self.sent[now][i] = self.answer(now, i, message)
                    self.server.take(i, self.sent[now][i])
            inbox = self.server.turn()
        return inbox

    def finish(self, inbox: dict[int, bytes]) -> tuple[np.ndarray, tuple[int, ...]]:
        for i, message in inbox.items():
            self.sent["unmask"][i] = self.answer("unmask", i, message)
            self.server.take(i, self.sent["unmask"][i])
        return self.server.finish(), self.server.survivors

    def adverts(self) -> list[Advert]:
        return read(Bundle, self.until("share")[0]).adverts

    def advert_of(self, i: int, plan: SecurePlan | None = None, **fields: bytes) -> Advert:
        """An advert with other fields, truly signed by the party: what a colluding party may send."""
        old = read(Advert, self.sent["advertise"][i])
        new = msgspec.structs.replace(old, **fields)
        said = advert_statement(plan or self.plan, i, new.c, new.s, new.commitment)
        return msgspec.structs.replace(new, signature=self.identities[i].sign(said))

    def collude(self, i: int, advert: Advert) -> None:
        """Make a party believe that this was its advert."""
        state = msgspec.msgpack.decode(self.clients[i].dump(), type=RoundState)
        forged = msgspec.msgpack.encode(msgspec.structs.replace(state, adverts=[advert]))
        self.clients[i] = SecureClient.load(forged, self.parties[i])

    def total(self, survivors: Iterable[int]) -> np.ndarray:
        return self.rows[list(survivors)].sum(0, dtype=self.rows.dtype)


def bundle(adverts: Iterable[Advert]) -> bytes:
    return encode(Bundle(list(adverts)))


def survivors(*ids: int) -> bytes:
    return encode(Survivors(list(ids)))


def signatures(pairs: Iterable[tuple[int, bytes]]) -> bytes:
    return encode(Signatures(list(pairs)))


def boxes(pairs: Iterable[tuple[int, bytes]]) -> bytes:
    return encode(Boxes(list(pairs)))
