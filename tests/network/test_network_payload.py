"""Bodies as they are sent and taken: whole, counted, hashed, and never larger than was said."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.crypto.keys import Refused
from atoll.runtimes.network.messages.payload import CHUNK, Header, chunks, header_of, messages_of, receive

MB = 1 << 20


@given(st.integers(0, 3 * CHUNK + 1), st.integers(0, 2 * CHUNK))
@settings(max_examples=25, deadline=None)
def test_a_body_comes_as_it_was_sent(size: int, memory: int) -> None:
    body = os.urandom(size)
    header = header_of("answer", "7", body, b"e")
    assert header == Header("answer", "7", size, hashlib.sha256(body).digest(), b"e")
    payload = receive(messages_of(header, body), size, memory)
    assert payload is not None
    with payload:
        assert payload.header == header
        assert payload.body.read() == body


def test_a_file_is_sent_like_the_bytes_in_it(tmp_path: Path) -> None:
    body = os.urandom(2 * CHUNK + 5)
    path = tmp_path / "body"
    path.write_bytes(body)
    assert header_of("q", "1", path) == header_of("q", "1", body)
    assert b"".join(chunks(path)) == body


def test_nothing_sent_is_nothing() -> None:
    assert receive(iter([]), 1, 1) is None


class Counted:
    """An endless body, and how much of it was taken."""

    def __init__(self, header: Header) -> None:
        self.header, self.taken = header, 0

    def __iter__(self) -> Iterator[bytes]:
        yield msgspec.msgpack.encode(self.header)
        while True:
            self.taken += 1
            yield bytes(CHUNK)


def test_a_body_too_large_is_refused_by_its_header() -> None:
    sent = Counted(Header("answer", "9", 300 * MB, bytes(32)))
    with pytest.raises(Refused, match="314,572,800 bytes: at most 8,388,608 are taken"):
        receive(iter(sent), 8 * MB, MB)
    assert sent.taken == 0


def test_a_body_longer_than_declared_is_refused_at_once() -> None:
    sent = Counted(Header("answer", "9", 2 * CHUNK, bytes(32)))
    with pytest.raises(Refused, match=f"more than the {2 * CHUNK:,} bytes it declared"):
        receive(iter(sent), 8 * MB, MB)
    assert sent.taken == 3


@pytest.mark.parametrize(("header", "body", "words"), [
    (Header("a", "1", 5, hashlib.sha256(b"abc").digest()), [b"abc"], "a chunk of 3 bytes"),
    (Header("a", "1", 2 * CHUNK, bytes(32)), [bytes(CHUNK)], "ended after"),
    (Header("a", "1", 3, hashlib.sha256(b"abd").digest()), [b"abc"], "digest"),
    (Header("a", "1", 2 * CHUNK, bytes(32)), [b""], "a chunk of 0 bytes"),
    (Header("a", "1", 2 * CHUNK, bytes(32)), [b"x"], "a chunk of 1 bytes"),
    (Header("a", "1", 0, hashlib.sha256(b"").digest()), [b""], "more than"),
    (Header("a", "1", -1, bytes(32)), [], "not negative"),
    (Header("a", "1", 1, b"short"), [b"x"], "a digest of 5 bytes"),
    (Header("a" * 129, "1", 1, bytes(32)), [b"x"], "128 characters"),
    (Header("a", "1" * 129, 1, bytes(32)), [b"x"], "128 characters"),
    (Header("a", "1", 1, bytes(32), bytes(70_000)), [b"x"], "a header of"),
])  # fmt: skip
def test_headers_and_bodies_that_lie(header: Header, body: list[bytes], words: str) -> None:
    with pytest.raises(Refused, match=words):
        receive(iter([msgspec.msgpack.encode(header), *body]), 8 * MB, MB)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        receive(iter([data, b"never fits"]), 8, 8)
