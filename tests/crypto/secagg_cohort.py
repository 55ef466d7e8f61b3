"""Real parties and a server's view of them, for tests that play an honest or a lying server by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from atoll.crypto.keys import Identity
from atoll.crypto.secagg import STEPS, Client, Party, Plan, Policy, Server, Spent, SpentHere, encode
from atoll.crypto.secagg.client import Memory
from atoll.crypto.secagg.messages import (
    Advert,
    Boxes,
    Bundle,
    Message,
    Signatures,
    Survivors,
    advert_statement,
)  # fmt: skip
from atoll.crypto.secagg.rehearse import answer

SESSION = b"session of tests"
MODEL, SCHEMA = b"m" * 32, b"s" * 32

# Upper quantiles of chi-square with 255 degrees of freedom: odds of 10^-3 where keys are fixed, of 10^-9 where fresh.
LIKELY, POSSIBLE = 330.5, 414.5


def chi_square(x: np.ndarray) -> float:
    """How far the bytes of an array are from uniform."""
    counts = np.bincount(np.ascontiguousarray(x).view(np.uint8).ravel(), minlength=256)
    expected = counts.sum() / 256
    return float(((counts - expected) ** 2).sum() / expected)


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
    policy: Policy | None = None

    def __post_init__(self) -> None:
        self.identities = self.identities or {i: Identity.new() for i in range(self.n)}
        self.roster = {i: key.public for i, key in self.identities.items()}
        self.t = self.t or 2 * self.n // 3 + 1
        self.policy = self.policy or Policy(n_min=self.n_min, schema=SCHEMA, size=self.size, width=self.width)
        self.plan = Plan(
            self.session, self.round, MODEL, SCHEMA, self.t, self.neighbours, self.width, self.width, self.size
        )
        self.parties = {i: self.party(i) for i in range(self.n)}
        self.clients = {i: Client(p) for i, p in self.parties.items()}
        generator = np.random.default_rng(self.n)
        self.rows = generator.integers(0, 2**self.width, (self.n, self.size), dtype=f"uint{self.width}")
        self.server = Server(self.plan, self.roster)
        self.sent: dict[str, dict[int, bytes]] = {step: {} for step in STEPS}

    def party(self, i: int) -> Party:
        spent = Spent(self.folder / str(i)) if self.folder else SpentHere()
        if self.folder:
            (self.folder / str(i)).mkdir(exist_ok=True)
        return Party(i, self.identities[i], self.roster, self.policy, spent)

    def again(self, i: int) -> Client:
        """The same party, started anew with the record it kept."""
        return Client(self.parties[i])

    def answer(self, step: str, i: int, message: bytes, client: Client | None = None) -> bytes:
        return answer(client or self.clients[i], step, message, MODEL, self.rows[i])

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
        return self.server.finish()

    def adverts(self) -> list[Advert]:
        return read(Bundle, self.until("share")[0]).adverts

    def advert_of(self, i: int, plan: Plan | None = None, **fields: bytes) -> Advert:
        """An advert with other fields, truly signed by the party: what a colluding party may send."""
        old = read(Advert, self.sent["advertise"][i])
        new = msgspec.structs.replace(old, **fields)
        said = advert_statement(plan or self.plan, i, new.c, new.s, new.commitment)
        return msgspec.structs.replace(new, signature=self.identities[i].sign(said))

    def collude(self, i: int, advert: Advert) -> None:
        """Make a party believe that this was its advert."""
        state = msgspec.msgpack.decode(self.clients[i].dump(), type=Memory)
        forged = msgspec.msgpack.encode(msgspec.structs.replace(state, adverts=[advert]))
        self.clients[i] = Client.load(forged, self.parties[i])

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
