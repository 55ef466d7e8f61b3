"""What a party insists on, and what it has already done: neither is ever taken from the server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Protocol

from atoll.crypto.graph import Sparse, secure_threshold
from atoll.crypto.keys import Identity, refuse_if
from atoll.crypto.secagg.messages import Plan

STEPS = ("advertise", "share", "masked", "consistent", "unmask")


class Abort(Exception):
    """The party takes no further part in this round; the sentence says why."""


@dataclass(frozen=True)
class Policy:
    """A party's own rules.

    More than two thirds must hold shares and survive: then a lying server with fewer than a third of the parties on
    its side gets the sum of the honest rest or nothing.
    """

    n_min: int
    schema: bytes  # the hash of the model's names, shapes and types
    size: int  # numbers in the vector
    width: int = 32
    max_rounds: int = 1_000_000
    fraction: Fraction = Fraction(2, 3)
    sparse: Sparse | None = None  # None: only the complete graph

    def __post_init__(self) -> None:
        refuse_if(self.n_min < 3, f"n_min={self.n_min}: of two parties each sees the other's vector, ask for 3 or more")
        refuse_if(self.width not in (32, 64), f"width={self.width}: rings have 32 or 64 bits")
        refuse_if(self.size < 1, f"size={self.size}: a vector has at least one number")
        refuse_if(self.max_rounds < 1, f"max_rounds={self.max_rounds}: at least one round")
        refuse_if(not Fraction(2, 3) <= self.fraction < 1, f"fraction={self.fraction}: at least 2/3 and below 1")

    def least(self, n: int) -> int:
        """How many of n must hold shares and survive."""
        return floor(self.fraction * n) + 1

    def check_plan(self, plan: Plan, model: bytes) -> None:
        """What is wrong with a plan before anybody else is known."""
        refuse_if(
            plan.model != model, "the plan is about another model than the one here: fetch the model again", Abort
        )
        refuse_if(plan.schema != self.schema, "the plan is about a model of another schema than the policy's", Abort)
        refuse_if(plan.width != self.width, f"the plan has width {plan.width}: the policy has {self.width}", Abort)
        refuse_if(plan.size != self.size, f"the plan has size {plan.size}: the policy has {self.size}", Abort)
        refuse_if(plan.bits > plan.width, f"the plan sends {plan.bits} bits of {plan.width}", Abort)
        refuse_if(plan.round >= self.max_rounds, f"round {plan.round}: the policy ends at {self.max_rounds}", Abort)
        refuse_if(plan.neighbours > 0 and self.sparse is None, "the plan is sparse: the policy is not", Abort)

    def check_cohort(self, plan: Plan, n: int) -> None:
        """What is wrong with a plan for this many parties."""
        refuse_if(n < self.n_min, f"{n} parties: the policy asks for {self.n_min}", Abort)
        if plan.neighbours == 0 or self.sparse is None:
            least, holders = self.least(n), n
        else:
            refuse_if(plan.neighbours % 2 == 1 or plan.neighbours > n - 2,
                      f"{plan.neighbours} neighbours of {n} parties: an even number, at most n - 2", Abort)  # fmt: skip
            safe = secure_threshold(n, plan.neighbours, self.sparse)
            refuse_if(safe is None, f"{plan.neighbours} neighbours of {n} parties: the policy needs more", Abort)
            least, holders = safe or plan.neighbours, plan.neighbours
        refuse_if(plan.t < least, f"t={plan.t} of {holders}: the policy asks for {least} or more", Abort)
        refuse_if(plan.t > holders, f"t={plan.t} of {holders}: nobody could ever unmask", Abort)


class Record(Protocol):
    """The last step a party has taken in a session, so that no crash makes it take one twice."""

    def last(self, session: bytes) -> tuple[int, int]: ...
    def spend(self, session: bytes, round_no: int, step: int) -> None: ...


def _refuse_again(last: tuple[int, int], round_no: int, step: int) -> None:
    refuse_if(last >= (round_no, step), f"round {round_no}: its message {STEPS[step]!r} was already sent once", Abort)


@dataclass
class SpentHere:
    """A record in memory, for parties that do not outlive their process."""

    _last: dict[bytes, tuple[int, int]] = field(default_factory=dict)

    def last(self, session: bytes) -> tuple[int, int]:
        return self._last.get(session, (-1, 0))

    def spend(self, session: bytes, round_no: int, step: int) -> None:
        _refuse_again(self.last(session), round_no, step)
        self._last[session] = (round_no, step)


@dataclass(frozen=True)
class Spent:
    """A record on disk, one small file a session, written through before a message may leave."""

    folder: Path

    def _path(self, session: bytes) -> Path:
        return self.folder / f"{session.hex()}.spent"

    def last(self, session: bytes) -> tuple[int, int]:
        try:
            words = self._path(session).read_text().split()
        except FileNotFoundError:
            return (-1, 0)
        refuse_if(
            len(words) != 2 or not all(w.isdigit() for w in words), "the record of spent rounds is damaged", Abort
        )
        return int(words[0]), int(words[1])

    def spend(self, session: bytes, round_no: int, step: int) -> None:
        _refuse_again(self.last(session), round_no, step)
        path = self._path(session)
        draft = path.with_suffix(".draft")
        with draft.open("w") as file:
            file.write(f"{round_no} {step}\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name, too, must survive a power cut
        finally:
            os.close(folder)


@dataclass(frozen=True)
class Party:
    """What a party brings along: who it is, whom it knows, what it insists on and what it has already done."""

    id: int
    identity: Identity
    roster: Mapping[int, bytes] = field(repr=False)  # id to Ed25519 key, from a source the server does not run
    policy: Policy
    spent: Record = field(repr=False)

    def __post_init__(self) -> None:
        mine = self.roster.get(self.id)
        refuse_if(mine != self.identity.public, f"party {self.id}: the roster has another key for it than its own")
        refuse_if(len(set(self.roster.values())) < len(self.roster), "the roster names one key twice")
