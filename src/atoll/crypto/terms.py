"""The terms of one hidden sum, and what each party holds them against: its own job, vector and roster.

A server that tells two parties different things must not get them to complete one sum. So all that they must agree in
is hashed into a *context*: the job, the phase, the way of hiding, the vector's form and bounds, and number, name and
key of everybody who is asked. Each party computes the context from its own values. Every key, mask, share, commitment
and signature of the sum is made for the digest of the terms, which holds the context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Annotated

from msgspec import Meta

from atoll.core.wire import Member
from atoll.crypto.keys import Abort, packed, refuse_if
from atoll.crypto.lists import SumKey
from atoll.crypto.records import Digest, Id, Message

PROTOCOL = "atoll/terms/1"
DIGEST = 32  # bytes of a hash
SESSION = 16  # bytes that make a session unlike all others
_FRAME, _NUMBER = 256, 8  # bytes of terms beside the cohort, and of each number in it


class Terms(Message, frozen=True, tag="terms"):
    """What one sum is about, as the server says it: every party holds it against what it knows itself."""

    session: Annotated[bytes, Meta(min_length=SESSION, max_length=SESSION)]
    t: Id
    cohort: tuple[Id, ...]  # who is asked for a vector, ascending
    model: Digest  # of the question that they get, but for its round
    context: Digest  # of all that they must agree in

    @property
    def digest(self) -> bytes:
        """A hash of everything in the terms."""
        return _digest(self)


@lru_cache(maxsize=64)  # it is asked for once for every party
def _digest(terms: Terms) -> bytes:
    fields = terms.session, terms.t, packed(*terms.cohort), terms.model, terms.context
    return sha256(packed(PROTOCOL, "terms", *fields)).digest()


def max_bytes(parties: int) -> int:
    """Bytes that the terms of a sum among so many parties have at most."""
    return _FRAME + _NUMBER * parties


def blank(parties: int) -> Terms:
    """Terms of a sum among so many parties that is about nothing: they are as long as any."""
    return Terms(bytes(SESSION), 2**15, tuple(range(parties)), bytes(DIGEST), bytes(DIGEST))


def context(
    agreement: bytes, phase: str, protocol: bytes, vector: bytes, cohort: Sequence[int], members: Mapping[int, Member]
) -> bytes:
    """Hash all that the parties of a sum must agree in.

    Args:
        agreement: hash of the agreed job.
        phase: the method's phase that the sum belongs to.
        protocol: how vectors are hidden, packed.
        vector: form and bounds of a vector, packed.
        cohort: numbers of those who are asked for a vector, ascending.
        members: name and key of everybody who has a part in the sum, by number.
    """
    named = [value for who in sorted(members) for value in (who, *members[who])]
    fields = agreement, phase, protocol, vector, packed(*cohort), packed(*named)
    return sha256(packed(PROTOCOL, "context", *fields)).digest()


@dataclass(frozen=True)
class Agreement:
    """What a party, or the server, knows of a sum by itself.

    Args:
        agreement: hash of the agreed job.
        phase: the method's phase that the sum belongs to.
        protocol: how vectors are hidden, packed.
        vector: form and bounds of a vector, packed.
        members: who may come, by number; a party reads them from its own roster.
        always: who has a part in every sum, asked for a vector or not.
        min_cohort: fewer parties than this are neither asked for a sum nor in it, by one's own policy.
        rounds: round numbers stay below this, by one's own policy.
        batches: a sum has all parties of a batch or none, by one's own policy.
        job_min_cohort: a sum has so many vectors at least, by the job: their noise together is enough, or the cohort is
            whole.
    """

    agreement: bytes
    phase: str
    protocol: bytes
    vector: bytes
    members: Mapping[int, Member] = field(repr=False)
    always: tuple[int, ...] = ()
    min_cohort: int = 3
    rounds: int = 2**32
    batches: tuple[tuple[int, ...], ...] = ()
    job_min_cohort: int = 0

    def __post_init__(self) -> None:
        keys = {member.key for member in self.members.values()}
        refuse_if(len(keys) < len(self.members), "the roster names one key twice", Abort)

    @cached_property
    def roster(self) -> Mapping[int, bytes]:
        """The keys that parties sign with, by number."""
        return {who: member.key for who, member in self.members.items()}

    def context(self, cohort: Sequence[int]) -> bytes:
        """Hash what the parties of a sum of this cohort must agree in, as it is known here."""
        named = {who: self.members[who] for who in {*cohort, *self.always}}
        return context(self.agreement, self.phase, self.protocol, self.vector, cohort, named)

    def terms(self, session: bytes, t: int, cohort: Sequence[int], model: bytes) -> Terms:
        """Write the terms of one sum."""
        return Terms(session, t, tuple(cohort), model, self.context(cohort))

    def check(self, terms: Terms, t: int) -> None:
        """Refuse terms that differ in anything from what is known here; `t` is the round of the question."""
        cohort = set(terms.cohort)
        refuse_if(terms.t != t, f"terms of round {terms.t + 1} in round {t + 1}", Abort)
        refuse_if(t >= self.rounds, f"round {t + 1}: the policy ends after {self.rounds}", Abort)
        in_order = tuple(sorted(cohort)) == terms.cohort
        refuse_if(not in_order, "the cohort names a party twice, or is not in ascending order", Abort)
        strangers = sorted(cohort - self.members.keys())
        refuse_if(bool(strangers), f"parties {strangers[:5]} are not in this party's roster", Abort)
        few = len(cohort) < self.min_cohort
        refuse_if(few, f"{len(cohort)} parties are asked: a sum holds {self.min_cohort} or more", Abort)
        other = terms.context != self.context(terms.cohort)
        refuse_if(other, "the sum is of another job, vector or cohort than this party's: names, keys, or what the job "
                  "says differ", Abort)  # fmt: skip

    def key(self, terms: Terms) -> SumKey:
        """Name the sum, whichever session it is asked in."""
        return SumKey(self.agreement, self.phase, terms.t, terms.model)

    def check_survivors(self, among: Sequence[int]) -> None:
        """Refuse to open a sum of too few vectors, or of a part of a batch."""
        few = len(among) < self.min_cohort
        refuse_if(few, f"a sum of {len(among)} vectors: {self.min_cohort} are the least", Abort)
        short = len(among) < self.job_min_cohort
        refuse_if(short, f"a sum of {len(among)} vectors: the job has {self.job_min_cohort} or none", Abort)
        cut = next((batch for batch in self.batches if 0 < len(set(batch) & set(among)) < len(batch)), ())
        refuse_if(bool(cut), f"the sum has some of the batch {cut} and not all: whole_batches forbids it", Abort)

    def check_asked(self, terms: Terms, me: int, model: bytes) -> None:
        """Refuse to give a vector to a sum that does not name this party, or for another question than came."""
        refuse_if(me not in terms.cohort, f"the sum is not party {me}'s: it is not named in it", Abort)
        refuse_if(terms.model != model, "the sum is about another model than the one that came", Abort)
