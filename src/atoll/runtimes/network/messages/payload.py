"""Bodies on the network: a small header that is checked first, then chunks that are counted and hashed as they come."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from atoll.crypto.keys import Refused, refuse_if

CHUNK = 1 << 17  # bytes; two seconds of a line of 64 kB/s, and progress counts as life
MIN_CHUNK = 1 << 16  # of what a peer sends, but for the last one
HEADER = 1 << 16  # most bytes of a header with its envelope
WORD = 128  # most characters of a kind or an id

Body = bytes | Path


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a body is: its kind, the question it belongs to, its size and digest, and an envelope not opened here."""

    kind: str
    id: str
    size: int
    sha256: bytes
    envelope: bytes = b""


@dataclass(frozen=True)
class QuestionPayload:
    """A header and where its body is to be sent from."""

    header: Header
    body: Body


@dataclass(frozen=True)
class Payload:
    """A header and the body that came with it, which has its declared size and digest; to be closed after use."""

    header: Header
    body: IO[bytes]

    def __enter__(self) -> Payload:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.body.close()


def header_of(kind: str, id: str, body: Body, envelope: bytes = b"") -> Header:  # noqa: A002
    """The header that fits this body."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks(body):
        digest.update(chunk)
        size += len(chunk)
    return Header(kind, id, size, digest.digest(), envelope)


def chunks(body: Body) -> Iterator[bytes]:
    if isinstance(body, bytes):
        for at in range(0, len(body), CHUNK):
            yield body[at : at + CHUNK]
    else:
        with body.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk


def messages_of(header: Header, body: Body) -> Iterator[bytes]:
    """What is sent: the header, then the body in chunks."""
    yield msgspec.msgpack.encode(header)
    yield from chunks(body)


def receive(messages: Iterator[bytes], most: int, memory: int, folder: Path | None = None) -> Payload | None:
    """Take in what was sent, None if nothing was.

    A body of more than `most` bytes is refused by its header, before any of it is taken; more than `memory` bytes go
    to a temporary file in `folder`.
    """
    first = next(messages, None)
    if first is None:
        return None
    header = _header(first)
    refuse_if(
        header.size > most, f"the body of {header.id!r} would have {header.size:,} bytes: at most {most:,} are taken"
    )
    body = tempfile.SpooledTemporaryFile(memory, dir=str(folder) if folder else None)  # noqa: SIM115
    try:
        digest, size = hashlib.sha256(), 0
        for chunk in messages:
            left = header.size - size
            refuse_if(not left, f"the body of {header.id!r} has more than the {header.size:,} bytes it declared")
            # Nobody keeps a line busy with a byte now and then.
            refuse_if(
                not min(MIN_CHUNK, left) <= len(chunk) <= left,
                f"a chunk of {len(chunk):,} bytes in the body of {header.id!r}, of which {left:,} are to come: it has "
                f"{min(MIN_CHUNK, left):,} or more",
            )
            size += len(chunk)
            digest.update(chunk)
            body.write(chunk)
        refuse_if(size < header.size, f"the body of {header.id!r} ended after {size:,} of {header.size:,} bytes")
        refuse_if(digest.digest() != header.sha256, f"the body of {header.id!r} does not have the digest it declared")
        body.seek(0)
    except BaseException:
        body.close()
        raise
    return Payload(header, body)


def _header(first: bytes) -> Header:
    refuse_if(len(first) > HEADER, f"a header of {len(first):,} bytes: it has at most {HEADER:,}")
    try:
        header = msgspec.msgpack.decode(first, type=Header)
    except (msgspec.DecodeError, ValueError) as error:
        raise Refused(f"what came first is not a header: {error}") from None
    refuse_if(header.size < 0, f"size={header.size}: a size is not negative")
    refuse_if(len(header.sha256) != 32, f"a digest of {len(header.sha256)} bytes: it has 32")
    refuse_if(max(len(header.kind), len(header.id)) > WORD, f"a kind or id of more than {WORD} characters")
    return header
