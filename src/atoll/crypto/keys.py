"""Identities that sign, pairs that agree on secrets, and keys derived from those for exactly one purpose."""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass, field
from hashlib import sha256

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from atoll.core.errors import AtollError

PROTOCOL = b"atoll/secagg/2"
KEY = 32  # bytes of every key, seed and hash
SIGNATURE = 64
NONCE, TAG = 12, 16


class Refused(AtollError, ValueError):
    """A value that must not be used; the sentence names it."""

    code = "refused"


class Abort(AtollError):
    """A party takes no further part in a sum, or the sum is over; the sentence says why."""

    code = "abort"


def refuse_if(condition: bool, sentence: str, error: type[Exception] = Refused) -> None:
    """Every security check has this one form, so that each can be taken out in turn to see a test fail."""
    if condition:
        raise error(sentence)


def packed(*fields: bytes | str | int | float) -> bytes:
    """Fields behind their lengths, so that no two lists of fields of the same types give the same bytes."""
    parts = [v if isinstance(v, bytes) else _plain(v) for v in fields]
    return b"".join([piece for part in parts for piece in (len(part).to_bytes(4, "big"), part)])


def _plain(value: str | int | float) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return value.to_bytes(8, "big") if isinstance(value, int) else struct.pack(">d", value)


@dataclass(frozen=True)
class Identity:
    """Who a party is: an Ed25519 key that signs."""

    _key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def new(cls) -> Identity:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def of(cls, secret: bytes) -> Identity:
        refuse_if(len(secret) != KEY, f"an identity of {len(secret)} bytes: a private key has {KEY}")
        return cls(Ed25519PrivateKey.from_private_bytes(secret))

    @property
    def secret(self) -> bytes:
        return self._key.private_bytes_raw()

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the owner of this public key signed this message."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True)
class Pair:
    """An X25519 pair, used for one round."""

    _key: X25519PrivateKey = field(repr=False)

    @classmethod
    def new(cls) -> Pair:
        return cls(X25519PrivateKey.generate())

    @classmethod
    def of(cls, secret: bytes) -> Pair:
        refuse_if(len(secret) != KEY, f"a pair of {len(secret)} bytes: a private key has {KEY}")
        return cls(X25519PrivateKey.from_private_bytes(secret))

    @property
    def secret(self) -> bytes:
        return self._key.private_bytes_raw()

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def exchange(self, theirs: bytes) -> bytes:
        return self._key.exchange(X25519PublicKey.from_public_bytes(theirs))


def agree(pair: Pair, theirs: bytes) -> bytes:
    """The secret of two pairs, hashed with both public keys; a public key that would fix the secret is refused."""
    refuse_if(len(theirs) != KEY, f"a public key of {len(theirs)} bytes: it has {KEY}")
    try:
        shared = pair.exchange(theirs)
    except ValueError:
        raise Refused("a public key of low order: it gives the same secret to everybody") from None
    return sha256(packed(PROTOCOL, "agree", shared, *sorted((pair.public, theirs)))).digest()


def derive(secret: bytes, *, purpose: str, context: bytes, i: int, j: int) -> bytes:
    """One key for one purpose: HKDF-SHA256 with everything that must differ in its info.

    `context` is the hash of all that the two ends must agree in: the job, the round, the model and who takes part.
    """
    info = packed(PROTOCOL, purpose, context, i, j)
    return HKDF(algorithm=SHA256(), length=KEY, salt=None, info=info).derive(secret)


def seal(key: bytes, text: bytes, *, context: bytes, i: int, j: int) -> bytes:
    """AES-256-GCM from i to j: nonce and ciphertext."""
    nonce = secrets.token_bytes(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, text, packed(PROTOCOL, context, i, j))


def open_sealed(key: bytes, box: bytes, *, context: bytes, i: int, j: int) -> bytes:
    """What i sealed for j, or a refusal."""
    refuse_if(len(box) < NONCE + TAG, f"a sealed text of {len(box)} bytes: it has at least {NONCE + TAG}")
    try:
        return AESGCM(key).decrypt(box[:NONCE], box[NONCE:], packed(PROTOCOL, context, i, j))
    except InvalidTag:
        raise Refused(f"the text sealed by party {i} for party {j} was changed on its way") from None
