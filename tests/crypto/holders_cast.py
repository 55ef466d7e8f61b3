"""Parties of an encrypted sum, as they sit down to it, and a scripted server that asks them whatever a test wants."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import atoll
from atoll.combine.protocol import PartySession, fingerprint
from atoll.core.effects import Ask, Note, Replies, drive
from atoll.core.question import Layout
from atoll.core.wire import Member, Setting, Wire, chain
from atoll.core.world import World
from atoll.crypto import holders
from atoll.crypto.holders import KeyRules, SignedKey
from atoll.crypto.keys import Identity
from atoll.crypto.lists import SignedLists
from atoll.crypto.secagg import Abort, Spent
from atoll.crypto.terms import Terms

KNOWN = [Identity.new() for _ in range(8)]
JOB = bytes(range(32))
SESSION = bytes(16)
SIZE = 100
WIRE = chain(atoll.Clip(1.0), atoll.Average("expected"), atoll.Ring())(Wire.of(SIZE, 4))[0]


class Cast:
    """A few parties with folders of their own; `trained` counts what the server made them do."""

    def __init__(
        self, folder: Path, n: int = 4, least: int = 3, floor: int = 0, job: bytes = JOB, **how: Any
    ) -> None:  # fmt: skip
        self.how, self.folder, self.least = atoll.EncryptedSum(**how), folder, least
        self.wire = replace(WIRE, total=replace(WIRE.total, min_cohort=floor))
        self.members = {who: Member(f"party {who}", KNOWN[who].public) for who in range(n)}
        self.setting = Setting("model", World.real(0), job, lambda: self.members)
        self.vectors = np.random.default_rng(0).integers(-1000, 1000, (n, SIZE)).astype(np.uint32)
        self.trained = 0
        self.parties = {who: self.sit(who) for who in range(n)}

    def session(self, who: int) -> PartySession:
        """What a party brings along, with what is on its disk."""
        folder = self.folder / f"{who}"
        folder.mkdir(exist_ok=True)
        return PartySession(who, KNOWN[who], self.least, 9, Spent(folder), SignedLists(folder))

    def sit(self, who: int) -> Any:
        """A party that was just started."""
        return self.how.client(self.wire, self.setting, self.session(who))

    @property
    def rules(self) -> KeyRules:
        return self.how.rules(self.wire, self.setting, self.session(0))

    def question(self, t: int = 0) -> dict[str, Any]:
        return {"share": {"params": np.full(3, t, np.float32)}, "t": t}

    def terms(self, t: int = 0, **other: Any) -> Terms:
        made = self.rules.agreed.terms(SESSION, t, sorted(self.parties), fingerprint(self.question(t)))
        if set(other.get("cohort", ())) <= self.members.keys():
            other = {"context": self.rules.agreed.context(other.get("cohort", made.cohort)), **other}
        return msgspec.structs.replace(made, **other)

    def ask(self, who: int, step: str, message: bytes, t: int = 0, question: dict[str, Any] | None = None) -> bytes:
        body = (question or self.question(t)) if step == "seal" else {"t": t}
        body = {**body, "message": np.frombuffer(message, np.uint8)}

        def train(_: object) -> Any:
            self.trained += 1
            return self.vectors[who]

        return bytes(self.parties[who].answer(f"encrypted.{step}", body, train)["message"].tobytes())

    def dealt(self, t: int = 0, **other: Any) -> holders.Dealt:
        """The key of a round, from the first holder, with shares for the others."""
        terms = self.terms(t, **other)
        adverts = [(who, self.ask(who, "meet", holders.encode(terms), t)) for who in self.rules.holders[1:]]
        return self.rules.dealt(self.ask(0, "key", holders.encode(holders.KeyRequest(terms, adverts)), t), terms)

    def total(self, key: SignedKey, among: Collection[int] = (0, 1, 2, 3)) -> holders.SumToOpen:
        """The sum of these parties' vectors."""
        sealer = self.rules.sealer(key)
        for who in among:
            sealer.add(sealer.encrypt(self.vectors[who].view(np.int32).astype(np.int64)))
        made = holders.SumToOpen(key, sorted(among), sealer.total())
        sealer.close()
        return made

    def open(self, who: int, total: holders.SumToOpen, t: int = 0) -> bytes:
        return self.ask(who, "open", holders.encode(total), t)

    def key(self, by: int = 0, public: bytes | None = None, **other: Any) -> SignedKey:
        """A key that this party signs, whoever it is."""
        public = bytes([1]) * 256 if public is None else public
        made = SignedKey(self.terms(**other), public, None, b"")
        return msgspec.structs.replace(made, signature=KNOWN[by].sign(made.statement(self.rules.holders)))


class Served:
    """A runtime whose questions go to those parties. `absent` says who is away at a step; `spoil` changes answers."""

    def __init__(self, cast: Cast) -> None:
        self.cast, self.notes, self.declined = cast, list[Note](), list[str]()
        self.absent: dict[str, set[int]] = {}
        self.spoil: dict[tuple[str, int], Callable[[bytes], bytes]] = {}
        self.gather = cast.how.gather(cast.wire, cast.setting)
        body = Layout.of(cast.question())
        asked = cast.how.questions(cast.wire, cast.setting, body, len(cast.members))
        self.declared = {question.name: question for question in asked}

    def round(self, t: int, cohort: Collection[int] | None = None, enough: int | None = None) -> Any:
        who = np.array(sorted(self.cast.parties if cohort is None else cohort))
        return drive(self.gather(who, self.cast.question(t), enough), self)

    def ask(self, ask: Ask) -> Replies:
        step, found = ask.what.removeprefix("model/encrypted."), dict[int, bytes]()
        for who in ask.to.tolist():
            message, t = ask.each[who]["message"].tobytes(), int(ask.body["t"])
            self.declared[ask.what].asks.check({**ask.body, **ask.each[who]})
            if who in self.absent.get(step, ()) or len(found) == ask.goal:
                continue
            try:
                answer = self.cast.ask(who, step, message, t, dict(ask.body) if step == "seal" else None)
            except Abort as reason:
                self.declined.append(str(reason))
                continue
            self.declared[ask.what].answers.check({"message": np.frombuffer(answer, np.uint8)})
            found[who] = self.spoil.get((step, who), bytes)(answer)
        rows = np.empty(len(found), object)
        for k, answer in enumerate(found.values()):
            rows[k] = np.frombuffer(answer, np.uint8)
        return Replies(np.array(list(found), np.int64), {"message": rows}, facts={"seconds": 0.5, "elapsed": 1.0})

    def note(self, note: Note) -> None:
        self.notes.append(note)

    def checkpoint(self, memory: object) -> None:
        pass
