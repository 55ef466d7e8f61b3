"""A session between roles: keys made at each start, signed, agreed on in pairs; leaves sealed from one role to another.

The hub passes everything on and can open nothing. Whatever must be the same for both ends is hashed into the key of a
sealed leaf and authenticated with it: the job, everybody's names, keys and data, the round and step, the question and
leaf, who seals and who reads. So a hub can neither hand a leaf to another role, nor replay it in another round, nor
pass it off as the answer to something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from atoll.core.method import DataSummary
from atoll.core.question import Origin
from atoll.crypto.keys import (
    KEY,
    SIGNATURE,
    Identity,
    Pair,
    Refused,
    agree,
    derive,
    open_sealed,
    packed,
    refuse_if,
    seal,
    verify,
)
from atoll.programs.roles import MAX_HELLO, read_summary, write_summary

_LABEL = "atoll/roles/1"
_Word = Annotated[str, Meta(max_length=64)]


class _Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: _Word
    name: _Word
    key: Annotated[bytes, Meta(min_length=KEY, max_length=KEY)]
    summary: bytes
    signature: Annotated[bytes, Meta(min_length=SIGNATURE, max_length=SIGNATURE)]


class Present(NamedTuple):
    """A role that said hello: who plays it, the key it seals with in this session, what it brings."""

    role: str
    name: str
    key: bytes
    summary: DataSummary
    raw: bytes


def _signed(agreement: bytes, role: str, name: str, key: bytes, summary: bytes) -> bytes:
    return packed(_LABEL, "hello", agreement, role, name, key, summary)


def write_hello(identity: Identity, agreement: bytes, role: str, name: str, pair: Pair, summary: DataSummary) -> bytes:
    """Say who plays a role, with which key and data, signed by the key that others know it by."""
    raw = write_summary(summary)
    signature = identity.sign(_signed(agreement, role, name, pair.public, raw))
    said = msgspec.msgpack.encode(_Hello(role, name, pair.public, raw, signature))
    refuse_if(len(said) > MAX_HELLO, f"role {role} has too many columns to name: that takes {len(said):,} bytes")
    return said


def read_hello(raw: bytes, role: str, name: str, agreement: bytes = b"", public: bytes | None = None) -> Present:
    """Read what a role said. With the public key of whoever plays it the signature is checked, as every role does."""
    try:
        said = msgspec.msgpack.decode(raw, type=_Hello)
    except (msgspec.MsgspecError, ValueError):
        raise Refused(f"the hello of role {role} cannot be read: it is damaged") from None
    refuse_if((said.role, said.name) != (role, name), f"the hello of role {role} is another role's or another party's")
    message = _signed(agreement, role, name, said.key, said.summary)
    forged = public is not None and not verify(public, message, said.signature)
    refuse_if(forged, f"the hello of role {role} was not signed by {name}, for this job: the hub has made it up")
    return Present(role, name, said.key, read_summary(said.summary, role), raw)


def session_id(agreement: bytes, present: Mapping[str, Present], keys: Mapping[str, bytes]) -> bytes:
    """Hash who is there: names, the keys they are known by, their keys of this session, what they bring."""
    words: list[bytes | str] = [_LABEL, "session", agreement]
    for role in sorted(present):
        one = present[role]
        words += [role, one.name, keys[one.name], one.key, write_summary(one.summary)]
    return sha256(packed(*words)).digest()


@dataclass(frozen=True)
class Sealing:
    """One role's side of a session: it seals leaves for other roles and opens what they sealed for it."""

    agreement: bytes
    session: bytes
    me: str
    order: tuple[str, ...]  # all roles
    _secrets: Mapping[str, bytes] = field(repr=False)  # by role

    @classmethod
    def of(cls, agreement: bytes, session: bytes, me: str, pair: Pair, present: Mapping[str, Present]) -> Sealing:
        """Agree on a secret with every other role."""
        shared = {role: agree(pair, one.key) for role, one in present.items() if role != me}
        return cls(agreement, session, me, tuple(sorted(present)), shared)

    def seal(self, text: bytes, *, reader: str, question: str, leaf: str, t: int, step: int) -> bytes:
        """Seal one leaf of the answer to a question for another role."""
        key, bound = self._bound(reader, Origin(self.me, question, leaf), reader, t, step)
        return seal(key, text, context=bound, i=self.order.index(self.me), j=self.order.index(reader))

    def open(self, box: bytes, *, origin: Origin, t: int, step: int) -> bytes:
        """Open what a role sealed for this one, in its answer to this question at this round and step."""
        key, bound = self._bound(origin.role, origin, self.me, t, step)
        i, j = self.order.index(origin.role), self.order.index(self.me)
        try:
            return open_sealed(key, box, context=bound, i=i, j=j)
        except Refused:
            raise Refused(
                f"'{origin.leaf}' is not what {origin.role} sealed for {self.me} in answer to '{origin.question}' of "
                f"round {t + 1}: it was changed, replayed or meant for somebody else"
            ) from None

    def _bound(self, partner: str, origin: Origin, reader: str, t: int, step: int) -> tuple[bytes, bytes]:
        """Return the key of one leaf, and all that it is bound to."""
        refuse_if(partner not in self._secrets, f"there is no role {partner} to share a key with")
        told = (self.agreement, self.session, t, step, origin.question, origin.leaf, origin.role, reader)
        bound = packed(_LABEL, *told)
        i, j = self.order.index(origin.role), self.order.index(reader)
        return derive(self._secrets[partner], purpose=_LABEL, context=bound, i=i, j=j), bound
