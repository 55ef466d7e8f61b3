"""What a party insists on, and what it has already done: neither is ever taken from the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Protocol

from atoll.core.disk import replace_file
from atoll.crypto.graph import Sparse, secure_threshold
from atoll.crypto.keys import Abort, Identity, refuse_if
from atoll.crypto.lists import SignedLists
from atoll.crypto.secagg.messages import SecurePlan
from atoll.crypto.terms import Agreement

STEPS = ("advertise", "share", "masked", "consistent", "unmask")


@dataclass(frozen=True)
class SecurePolicy:
    """A party's own rules.

    More than two thirds must hold shares and survive: then a lying server with fewer than a third of the parties on
    its side gets the sum of the honest rest or nothing.
    """

    n_min: int  # parties that advertise keys
    size: int  # numbers in the vector
    width: int = 32
    bits: int = 32
    fraction: Fraction = Fraction(2, 3)
    sparse: Sparse | None = None  # None: only the complete graph

    def __post_init__(self) -> None:
        refuse_if(self.n_min < 3, f"n_min={self.n_min}: of two parties each sees the other's vector, ask for 3 or more")
        refuse_if(self.width not in (32, 64), f"width={self.width}: rings have 32 or 64 bits")
        refuse_if(not 1 <= self.bits <= self.width, f"bits={self.bits}: from 1 to the {self.width} of the ring")
        refuse_if(self.size < 1, f"size={self.size}: a vector has at least one number")
        refuse_if(not Fraction(2, 3) <= self.fraction < 1, f"fraction={self.fraction}: at least 2/3 and below 1")

    def least(self, n: int) -> int:
        """How many of n must hold shares and survive."""
        return floor(self.fraction * n) + 1

    def check_plan(self, plan: SecurePlan) -> None:
        """What is wrong with a plan before anybody else is known."""
        refuse_if(plan.width != self.width, f"the plan has width {plan.width}: the policy has {self.width}", Abort)
        refuse_if(plan.size != self.size, f"the plan has size {plan.size}: the policy has {self.size}", Abort)
        refuse_if(plan.bits != self.bits, f"the plan sends {plan.bits} bits: the policy has {self.bits}", Abort)
        refuse_if(plan.neighbours > 0 and self.sparse is None, "the plan is sparse: the policy is not", Abort)

    def check_cohort(self, plan: SecurePlan, n: int) -> None:
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
        said = f"threshold={plan.threshold} of {holders}"
        refuse_if(plan.threshold < least, f"{said}: the policy asks for {least} or more", Abort)
        refuse_if(plan.threshold > holders, f"{said}: nobody could ever unmask", Abort)


class SpentRecord(Protocol):
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
        replace_file(self._path(session), f"{round_no} {step}\n".encode(), mode=0o600)


@dataclass(frozen=True)
class Participant:
    """What a party brings along: who it is, what was agreed, what it insists on and what it has already done."""

    id: int
    identity: Identity
    agreed: Agreement = field(repr=False)  # with a roster from a source the server does not run
    policy: SecurePolicy
    spent: SpentRecord = field(repr=False)
    lists: SignedLists = field(repr=False)

    def __post_init__(self) -> None:
        mine = self.agreed.roster.get(self.id)
        refuse_if(mine != self.identity.public, f"party {self.id}: the roster has another key for it than its own")
