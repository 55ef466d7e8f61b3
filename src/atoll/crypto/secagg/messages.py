"""What travels in secure aggregation: strict records in msgpack, measured before they are read."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Annotated

from msgspec import Meta

from atoll.crypto import records, terms
from atoll.crypto.keys import KEY, NONCE, PROTOCOL, SIGNATURE, TAG, packed
from atoll.crypto.mask import packed_bytes
from atoll.crypto.records import AnyMessage, Id, Key, Message, Signature
from atoll.crypto.shamir import SHARE
from atoll.crypto.terms import Terms

Size = Annotated[int, Meta(ge=0, lt=2**48)]
Share = Annotated[bytes, Meta(min_length=SHARE, max_length=SHARE)]
BOX = NONCE + 2 * SHARE + TAG
Box = Annotated[bytes, Meta(min_length=BOX, max_length=BOX)]


class SecurePlan(Message, frozen=True, tag="plan"):
    """What one round is about. The server proposes it; every party holds it against its own policy and signs it."""

    terms: Terms
    threshold: Annotated[int, Meta(ge=1, lt=2**32)]
    neighbours: Id  # 0: the complete graph
    width: Annotated[int, Meta(ge=32, le=64)]  # bits of the ring the masks live in
    bits: Annotated[int, Meta(ge=1, le=64)]  # of each number that travel: the sum is modulo 2^bits
    size: Size

    @property
    def digest(self) -> bytes:
        """A hash of everything in the plan: all keys, masks, shares and signatures of the round are made for it."""
        return _plan_digest(self)


@lru_cache(maxsize=64)  # it is asked for once for every party
def _plan_digest(plan: SecurePlan) -> bytes:
    numbers = plan.threshold, plan.neighbours, plan.width, plan.bits, plan.size
    return sha256(packed(PROTOCOL, "plan", plan.terms.digest, *numbers)).digest()


class Advert(Message, frozen=True, tag="advert"):
    """Message 0: one party's keys of this round, and a commitment to the seed of its own mask."""

    id: Id
    c: Key  # seals shares
    s: Key  # makes masks
    commitment: Key
    signature: Signature
    among: tuple[Id, ...] = ()  # for the server: whom alone it signs for, since it did before


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


ROOM = {Advert: 8, Bundle: 192, Boxes: BOX + 16, Survivors: 8, Signed: 0, Signatures: 80, Opened: 48}  # for each party


def limit(kind: type[Message], parties: int, plan: SecurePlan | None) -> int:
    """Bytes that a message of this kind has at most."""
    if kind is Masked and plan is not None:
        return 64 + packed_bytes(plan.size, plan.bits)
    return 512 + (terms.max_bytes(parties) if kind is SecurePlan else ROOM.get(kind, 0) * parties)


def message_sizes(parties: int, size: int, bits: int) -> tuple[int, ...]:
    """Bytes that each of a party's five messages has at most."""
    masked = 64 + packed_bytes(size, bits)
    return (limit(Advert, parties, None), limit(Boxes, parties, None), masked, limit(Signed, parties, None),
            limit(Opened, parties, None))  # fmt: skip


def expected_bytes(plan: SecurePlan) -> tuple[tuple[int, int], ...]:
    """Bytes of the five messages of one party as it is asked and answers them, where nobody drops out."""
    ids, key, signature = plan.terms.cohort, bytes(KEY), bytes(SIGNATURE)
    near = ids[: plan.neighbours or len(ids) - 1]
    advert = Advert(ids[-1], key, key, key, signature)
    boxes = _size(Boxes([(i, bytes(BOX)) for i in near]))
    signed = Signatures([(i, signature) for i in near[: plan.threshold - (plan.neighbours == 0)]])
    opened = Opened([(i, bytes(SHARE)) for i in (near if plan.neighbours else ids)])
    masked = _size(Masked(b"")) + 3 + packed_bytes(plan.size, plan.bits)  # what is longer says its length in more bytes
    return (
        (_size(plan), _size(advert)), (_size(Bundle([advert] * len(ids))), boxes), (boxes, masked),
        (_size(Survivors(list(ids))), _size(Signed(signature))), (_size(signed), _size(opened)),
    )  # fmt: skip


def _size(message: Message) -> int:
    return len(records.encode(message))


def bytes_sent(n: int, d: int, bits: int) -> float:
    """Bytes up and down of one party as Bonawitz et al. count them: keys, shares and the vector, no signatures."""
    return (2 * n * 256 + (5 * n - 4) * 256 + d * bits) / 8


def decode(kind: type[AnyMessage], data: bytes, parties: int, plan: SecurePlan | None = None) -> AnyMessage:
    """Read a message of the expected kind, or refuse it."""
    return records.decode(kind, data, limit(kind, parties, plan))


def advert_statement(plan: SecurePlan, who: int, c: bytes, s: bytes, commitment: bytes) -> bytes:
    """What a party signs with its advert."""
    return packed(PROTOCOL, "advertise", plan.digest, who, c, s, commitment)


def survivors_statement(plan: SecurePlan, adverts: bytes, ids: list[int]) -> bytes:
    """What a party signs about the survivors; the hash of the adverts ties it to one view of the cohort."""
    return packed(PROTOCOL, "consistent", plan.digest, adverts, *ids)


def commit(plan: SecurePlan, who: int, seed: bytes) -> bytes:
    """A hash that fixes the seed without telling it: the seed has 256 random bits."""
    return sha256(packed(PROTOCOL, "commit", plan.digest, who, seed)).digest()


def adverts_digest(adverts: list[Advert]) -> bytes:
    """A hash of all advertised keys, by ascending id: it is also the seed of the sparse graph."""
    every = [value for a in adverts for value in (a.id, a.c, a.s, a.commitment)]
    return sha256(packed(PROTOCOL, "adverts", *every)).digest()
