"""What travels in secure aggregation: strict records in msgpack, measured before they are read."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from atoll.crypto.keys import KEY, NONCE, PROTOCOL, SIGNATURE, TAG, Refused, packed, refuse_if
from atoll.crypto.mask import packed_bytes
from atoll.crypto.shamir import SHARE

Id = Annotated[int, Meta(ge=0, lt=2**32)]
Count = Annotated[int, Meta(ge=0, lt=2**48)]
Key = Annotated[bytes, Meta(min_length=KEY, max_length=KEY)]
Signature = Annotated[bytes, Meta(min_length=SIGNATURE, max_length=SIGNATURE)]
Hash = Annotated[bytes, Meta(max_length=64)]
Share = Annotated[bytes, Meta(min_length=SHARE, max_length=SHARE)]
BOX = NONCE + 2 * SHARE + TAG
Box = Annotated[bytes, Meta(min_length=BOX, max_length=BOX)]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """A record whose kind comes first; anything more or less than its fields is refused."""


class Plan(Message, frozen=True, tag="plan"):
    """What one round is about. The server proposes it; every party holds it against its own policy and signs it."""

    session: Annotated[bytes, Meta(min_length=16, max_length=64)]
    round: Count
    model: Hash
    schema: Hash
    t: Annotated[int, Meta(ge=1, lt=2**32)]
    neighbours: Id  # 0: the complete graph
    width: Annotated[int, Meta(ge=32, le=64)]  # bits of the ring the masks live in
    bits: Annotated[int, Meta(ge=1, le=64)]  # of each number that travel: the sum is modulo 2^bits
    size: Count
    name: Annotated[str, Meta(max_length=64)] = ""

    @property
    def digest(self) -> bytes:
        """A hash of everything in the plan."""
        return _plan_digest(self)


@lru_cache(maxsize=16)  # it is asked for once for every party
def _plan_digest(plan: Plan) -> bytes:
    return sha256(packed(PROTOCOL, "plan", *(getattr(plan, name) for name in plan.__struct_fields__))).digest()


class Advert(Message, frozen=True, tag="advert"):
    """Message 0: one party's keys of this round, and a commitment to the seed of its own mask."""

    id: Id
    c: Key  # seals shares
    s: Key  # makes masks
    commitment: Key
    signature: Signature


class Bundle(Message, frozen=True, tag="bundle"):
    """All adverts, by ascending id."""

    adverts: list[Advert]


class Boxes(Message, frozen=True, tag="boxes"):
    """Message 1: sealed shares, each with the other end's id: to whom on the way up, from whom on the way down."""

    boxes: list[tuple[Id, Box]]


class Masked(Message, frozen=True, tag="masked"):
    """Message 2: the masked vector."""

    y: bytes


class Survivors(Message, frozen=True, tag="survivors"):
    """Whose masked vectors arrived, ascending."""

    ids: list[Id]


class Signed(Message, frozen=True, tag="signed"):
    """Message 3: one party's signature under the survivors it was told of."""

    signature: Signature


class Signatures(Message, frozen=True, tag="signatures"):
    """The others' signatures under the survivors."""

    signatures: list[tuple[Id, Signature]]


class Opened(Message, frozen=True, tag="opened"):
    """Message 4: for every party one share, of the seed if it survived and of the mask key if not."""

    shares: list[tuple[Id, Share]]


AnyMessage = TypeVar("AnyMessage", bound=Message)
ROOM = {Advert: 0, Bundle: 192, Boxes: BOX + 16, Survivors: 8, Signed: 0, Signatures: 80, Opened: 48}  # for each party


def limit(kind: type[Message], parties: int, plan: Plan | None) -> int:
    """Bytes that a message of this kind has at most."""
    if kind is Masked and plan is not None:
        return 64 + packed_bytes(plan.size, plan.bits)
    return 512 + ROOM.get(kind, 0) * parties


def message_sizes(parties: int, size: int, bits: int) -> tuple[int, ...]:
    """Bytes that each of a party's five messages has at most."""
    masked = 64 + packed_bytes(size, bits)
    return (limit(Advert, parties, None), limit(Boxes, parties, None), masked, limit(Signed, parties, None),
            limit(Opened, parties, None))  # fmt: skip


def encode(message: Message) -> bytes:
    """A message as bytes."""
    return msgspec.msgpack.encode(message)


def decode(kind: type[AnyMessage], data: bytes, parties: int, plan: Plan | None = None) -> AnyMessage:
    """Read a message of the expected kind, or refuse it; too long a message is not even looked at."""
    most = limit(kind, parties, plan)
    refuse_if(len(data) > most, f"a message of {len(data)} bytes: {kind.__name__} has at most {most}")
    try:
        return msgspec.msgpack.decode(data, type=kind, strict=True)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Refused(f"the bytes are no {kind.__name__}") from None


def advert_statement(plan: Plan, who: int, c: bytes, s: bytes, commitment: bytes) -> bytes:
    """What a party signs with its advert."""
    return packed(PROTOCOL, "advertise", plan.digest, who, c, s, commitment)


def survivors_statement(plan: Plan, adverts: bytes, ids: list[int]) -> bytes:
    """What a party signs about the survivors; the hash of the adverts ties it to one view of the cohort."""
    return packed(PROTOCOL, "consistent", plan.digest, adverts, *ids)


def commit(plan: Plan, who: int, seed: bytes) -> bytes:
    """A hash that fixes the seed without telling it: the seed has 256 random bits."""
    return sha256(packed(PROTOCOL, "commit", plan.session, plan.round, who, seed)).digest()


def adverts_digest(adverts: list[Advert]) -> bytes:
    """A hash of all advertised keys, by ascending id: it is also the seed of the sparse graph."""
    every = [value for a in adverts for value in (a.id, a.c, a.s, a.commitment)]
    return sha256(packed(PROTOCOL, "adverts", *every)).digest()
