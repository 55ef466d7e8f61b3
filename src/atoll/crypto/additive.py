"""Two schemes that add vectors of integers under encryption, behind the same verbs: what travels is bytes.

Whatever a peer sent is measured and checked where it is read; what is wrong with it raises a ValueError, or ChildDied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import msgspec
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from atoll.crypto import ckks
from atoll.crypto.keys import Refused, refuse_if
from atoll.crypto.packing import Slots
from atoll.crypto.paillier import KeyShare, PublicKey, SecretKey, keypair

Vector = NDArray[np.int64]


class Sealer(Protocol):
    """A public key at work: it encrypts one's own vector, or adds up those of others and reads what holders opened."""

    def encrypt(self, vector: Vector) -> bytes: ...
    def add(self, sealed: bytes) -> None: ...
    def total(self) -> bytes: ...
    def read(self, opened: Sequence[bytes], n: int) -> Vector: ...
    def close(self) -> None: ...


class Opener(Protocol):
    """A secret key, or a share of one. It opens a sum of n vectors and refuses what no n vectors add up to."""

    @property
    def public(self) -> bytes: ...
    def open(self, total: bytes, n: int) -> bytes: ...
    def close(self) -> None: ...


class Scheme(Protocol):
    """How vectors of one job are encrypted. `new` makes a key: what its maker keeps of it, and the others' shares.

    `sizes` are bytes at most: of a public key, a sealed vector, an opened one, and a share; `expected` are those that
    they have.
    """

    @property
    def sizes(self) -> tuple[int, int, int, int]: ...
    @property
    def expected(self) -> tuple[int, int, int, int]: ...
    def new(self) -> tuple[Opener, list[bytes]]: ...
    def sealer(self, public: bytes) -> Sealer: ...
    def opener(self, share: bytes) -> Opener: ...


@dataclass(frozen=True)
class PaillierScheme:
    """Packed integers of `value` bits, room for the sum of `room` vectors of `size`; all `holders` must open."""

    bits: int
    holders: int
    value: int
    room: int
    size: int

    @cached_property
    def slots(self) -> Slots:
        return Slots(self.value, self.room, self.bits)

    @property
    def count(self) -> int:
        """Ciphertexts of a vector."""
        return self.slots.plaintexts(self.size)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        sealed = self.count * self.bits // 4
        return self.bits // 8, sealed, sealed if self.holders > 1 else sealed // 2, 3 * self.bits // 8

    @property
    def expected(self) -> tuple[int, int, int, int]:
        return self.sizes

    def new(self) -> tuple[Opener, list[bytes]]:
        key = keypair(self.bits)
        if self.holders == 1:
            return _Whole(self, key), []
        mine, *theirs = key.share(self.holders)
        return _Part(self, mine), [share.to_bytes() for share in theirs]

    def sealer(self, public: bytes) -> Sealer:
        return _Packed(self, self._key(public))

    def opener(self, share: bytes) -> Opener:
        part = KeyShare.from_bytes(share)
        self._key(part.public.to_bytes())
        return _Part(self, part)

    def _key(self, public: bytes) -> PublicKey:
        refuse_if(8 * len(public) != self.bits, f"a public key of {8 * len(public)} bits: the job asks for {self.bits}")
        return PublicKey.from_bytes(public)


class _Packed:
    def __init__(self, how: PaillierScheme, key: PublicKey) -> None:
        self._how, self._key = how, key
        self._sum: list[mpz] = []

    def encrypt(self, vector: Vector) -> bytes:
        refuse_if(len(vector) != self._how.size, f"a vector of {len(vector)} numbers: the job has {self._how.size}")
        return self._key.ciphertexts_to_bytes(self._key.encrypt_many(self._how.slots.pack(vector)))

    def add(self, sealed: bytes) -> None:
        theirs = self._key.ciphertexts_from_bytes(sealed, self._how.count)
        # The sum starts from encryptions of zero: what is opened cannot be linked to what was sent.
        mine = self._sum or self._key.encrypt_many([0] * self._how.count)
        self._sum = [self._key.add(a, b) for a, b in zip(mine, theirs, strict=True)]

    def total(self) -> bytes:
        return self._key.ciphertexts_to_bytes(self._sum)

    def read(self, opened: Sequence[bytes], n: int) -> Vector:
        how = self._how
        if how.holders == 1:
            plain = _numbers(opened[0], how.bits // 8, how.count)
        else:
            plain = self._key.combine([self._key.ciphertexts_from_bytes(part, how.count) for part in opened])
        return how.slots.unpack_sum(plain, n, how.size)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class _Whole:
    how: PaillierScheme
    key: SecretKey

    @property
    def public(self) -> bytes:
        return self.key.public.to_bytes()

    def open(self, total: bytes, n: int) -> bytes:
        how = self.how
        plain = self.key.decrypt_many(self.key.public.ciphertexts_from_bytes(total, how.count))
        how.slots.unpack_sum(plain, n, how.size)  # or it is no sum of packed vectors, and stays closed
        return b"".join(m.to_bytes(how.bits // 8, "big") for m in plain)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class _Part:
    """A share opens nothing by itself, so its holder cannot look at what comes out."""

    how: PaillierScheme
    share: KeyShare

    @property
    def public(self) -> bytes:
        return self.share.public.to_bytes()

    def open(self, total: bytes, n: int) -> bytes:
        public = self.share.public
        ciphertexts = public.ciphertexts_from_bytes(total, self.how.count)
        return public.ciphertexts_to_bytes(self.share.decrypt_many(ciphertexts))

    def close(self) -> None:
        pass


def _numbers(raw: bytes, width: int, count: int) -> list[mpz]:
    refuse_if(len(raw) != width * count, f"{len(raw)} bytes for {count} plaintexts: they take {width * count}")
    return [mpz.from_bytes(raw[i : i + width], "big") for i in range(0, len(raw), width)]


@dataclass(frozen=True)
class CkksScheme:
    """Integers on the grid of CKKS, of `value` bits, in vectors of `size`. A key has one holder."""

    value: int
    size: int

    @property
    def count(self) -> int:
        """Ciphertexts of a vector."""
        return -(-self.size // ckks.SLOTS)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return ckks.MOST_CONTEXT, 64 + self.count * (ckks.MOST_CIPHERTEXT + 8), 8 * self.size, 0

    @property
    def expected(self) -> tuple[int, int, int, int]:
        return ckks.CONTEXT, self.count * ckks.BYTES, 8 * self.size, 0

    def new(self) -> tuple[Opener, list[bytes]]:
        return _Owner(self, ckks.Ckks.new()), []

    def sealer(self, public: bytes) -> Sealer:
        key = ckks.Ckks(public)
        if key.private:
            key.close()
            raise Refused("a public key with its secret half: whoever passed it on could open everything")
        return _OnGrid(self, key)

    def opener(self, share: bytes) -> Opener:
        raise Refused("a CKKS key has one holder")

    def read_list(self, raw: bytes) -> list[bytes]:
        try:
            found = _LIST.decode(raw)
        except msgspec.DecodeError:
            raise Refused("the bytes are no list of CKKS ciphertexts") from None
        refuse_if(len(found) != self.count, f"{len(found)} CKKS ciphertexts: a vector takes {self.count}")
        return found


class _OnGrid:
    def __init__(self, how: CkksScheme, key: ckks.Ckks) -> None:
        self._how, self._key = how, key
        self._sum: list[bytes] = []

    def encrypt(self, vector: Vector) -> bytes:
        refuse_if(len(vector) != self._how.size, f"a vector of {len(vector)} numbers: the job has {self._how.size}")
        return msgspec.msgpack.encode(self._key.encrypt(vector * ckks.GRID))

    def add(self, sealed: bytes) -> None:
        theirs = self._how.read_list(sealed)
        mine = self._sum or self._key.encrypt(np.zeros(self._how.size))
        self._sum = self._key.add([mine, theirs])

    def total(self) -> bytes:
        return msgspec.msgpack.encode(self._sum)

    def read(self, opened: Sequence[bytes], n: int) -> Vector:
        size = self._how.size
        refuse_if(len(opened[0]) != 8 * size, f"{len(opened[0])} bytes for {size} sums: they take {8 * size}")
        return np.frombuffer(opened[0], "<i8").astype(np.int64)

    def close(self) -> None:
        self._key.close()


@dataclass(frozen=True)
class _Owner:
    how: CkksScheme
    key: ckks.Ckks

    @property
    def public(self) -> bytes:
        return self.key.public()

    def open(self, total: bytes, n: int) -> bytes:
        how = self.how
        sums = np.rint(self.key.decrypt(how.read_list(total), how.size) / ckks.GRID)
        most = n << (how.value - 1)
        refuse_if(bool((np.abs(sums) > most).any()), f"a number above any sum of {n} vectors: it stays closed")
        return sums.astype("<i8").tobytes()

    def close(self) -> None:
        self.key.close()


_LIST: msgspec.msgpack.Decoder[list[bytes]] = msgspec.msgpack.Decoder(list[bytes])
