"""Records that travel in protocols: strict msgpack, measured before it is read."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from atoll.crypto.keys import KEY, SIGNATURE, Refused, refuse_if

Id = Annotated[int, Meta(ge=0, lt=2**32)]
Key = Annotated[bytes, Meta(min_length=KEY, max_length=KEY)]
Digest = Annotated[bytes, Meta(min_length=KEY, max_length=KEY)]
Signature = Annotated[bytes, Meta(min_length=SIGNATURE, max_length=SIGNATURE)]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """A record whose kind comes first; anything more or less than its fields is refused."""


AnyMessage = TypeVar("AnyMessage", bound=Message)


def encode(message: Message) -> bytes:
    """A message as bytes."""
    return msgspec.msgpack.encode(message)


def decode(kind: type[AnyMessage], data: bytes, most: int) -> AnyMessage:
    """Read a message of the expected kind, or refuse it; too long a message is not even looked at."""
    refuse_if(len(data) > most, f"a message of {len(data)} bytes: {kind.__name__} has at most {most}")
    try:
        return msgspec.msgpack.decode(data, type=kind, strict=True)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Refused(f"the bytes are no {kind.__name__}") from None
