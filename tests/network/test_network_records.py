"""Records come back as they were; another version is named, and every field out of bounds is refused."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
import numpy as np
import pytest

from atoll.combine.layouts import answer_layout
from atoll.core.question import MAX_LEAVES, REST, Fault, Layout, arranged
from atoll.core.wire import Wire
from atoll.data.schema import MOST_COLUMNS, MOST_VALUES
from atoll.runtimes.network.messages.envelope import (
    MOST_BYTES,
    AnswerHead,
    Envelope,
    Goodbye,
    Hello,
    QuestionHead,
    Receipt,
    Welcome,
    read_envelope,
    write_envelope,
)
from atoll.runtimes.network.messages.trees import read_tree

ENVELOPES: list[Envelope] = [
    Hello("north", 120, Layout.of({"x": np.zeros(784, np.float32), "y": np.zeros((), np.int64)})),
    Welcome("run-1", 2, "[job]\n\tmethod = 'FedAvg'\n", b"m" * 32, {"train/contribute": answer_layout(Wire.of(3, 2))}),
    QuestionHead("run-1", 5, "evaluate/local", 4, 60.0, 1000, b"q" * 32, 3),
    AnswerHead("run-1", 5, 1000, b"a" * 32, 1.5),
    Receipt(True),
    Receipt(False, "leaf 'vector' has weights [-5.0]: one is above 0 and at most 1e+12"),
]


def test_records_come_back_as_they_were_and_stay_the_same_bytes() -> None:
    for record in ENVELOPES:
        assert read_envelope(type(record), write_envelope(record)) == record
    assert write_envelope(Receipt(False, "no")) == b"\x83\xa8accepted\xc2\xa6reason\xa2no\xa4type\xa7receipt"
    assert (
        sha256(b"".join(map(write_envelope, ENVELOPES))).hexdigest()
        == "c64f0ccfc213794aea3a5aff026c0f184ab6398f7f075d259d2fec1e14eb2214"
    )


@pytest.mark.parametrize("record", ENVELOPES, ids=lambda r: type(r).__name__)
def test_records_have_their_fields_and_no_others(record: Envelope) -> None:
    kind, raw = type(record), msgspec.msgpack.decode(write_envelope(record))
    may_lack = {"reason", "declined", "code", "edge", "members", "classes", "used", "place", "columns"}
    may_lack |= {"data", "keys", "successor"} if kind is Welcome else set()
    for name in set(raw) - may_lack:
        with pytest.raises(Fault) as caught:
            read_envelope(kind, msgspec.msgpack.encode({k: v for k, v in raw.items() if k != name}))
        assert caught.value.reason == ("version" if name == "version" else "form")
    for changed in ({**raw, "code": 1}, {**raw, "type": "other"}, [*raw.values()], list(raw), "text", None):
        with pytest.raises(Fault) as caught:
            read_envelope(kind, msgspec.msgpack.encode(changed))
        assert caught.value.reason == "form"
    for other in MOST_BYTES.keys() - {kind}:
        with pytest.raises(Fault):
            read_envelope(other, write_envelope(record))
    with pytest.raises(Fault):
        read_envelope(kind, write_envelope(record) + b"\0")


@pytest.mark.parametrize("kind", MOST_BYTES)
def test_too_long_a_record_is_not_looked_at(kind: type[Envelope]) -> None:
    with pytest.raises(Fault) as caught:
        read_envelope(kind, b"\xc0" * (MOST_BYTES[kind] + 1))
    assert caught.value.reason == "size"


def laid(**more: Any) -> dict[str, Any]:
    return {"leaves": {"x": {"dtype": "bool", "shape": [1], **more}}}


def table(**more: Any) -> dict[str, Any]:
    return {"features": [{"name": "age"}], "target": {"name": "ill"}, **more}


def test_fields_within_bounds_are_read() -> None:
    """Those that others are made of, so that each is refused for what is odd in it."""
    raw = {**msgspec.msgpack.decode(write_envelope(ENVELOPES[0])), "data": laid(), "columns": table(gaps=["age"])}
    assert read_envelope(Hello, msgspec.msgpack.encode(raw)).columns


@pytest.mark.parametrize(
    ("index", "field", "value"),
    [
        (0, "samples", -1), (0, "samples", 2**48), (0, "samples", 1.0), (0, "samples", "7"), (0, "samples", True),
        (0, "name", ""), (0, "name", "x" * 65), (0, "name", "a b"), (0, "name", "a\n"), (0, "name", "\x1b[2J"),
        (0, "name", "\u202ea"), (0, "data", {"leaves": {"../x": {"dtype": "bool", "shape": [1]}}}),
        (0, "data", {"leaves": {"x": {"dtype": "bool", "shape": [-1]}}}),
        (1, "job", "a\x1b[2J"), (1, "job", "x" * (2**20 + 1)), (1, "manifest", b"short"), (1, "manifest", "m" * 32),
        (1, "answers", {"a b": {"leaves": {}}}), (1, "answers", {"a/b/c": {"leaves": {}}}),
        (2, "seconds", float("nan")), (2, "seconds", float("inf")), (2, "seconds", -1.0), (2, "size", -1),
        (2, "what", "../x"), (2, "what", "x/.."), (2, "what", ""), (2, "what", "a/b/c"),
        (2, "what", "train/"), (2, "what", "/contribute"), (2, "used", -2), (2, "used", 2**31), (2, "used", 0.0),
        (2, "run", "a/b"), (2, "sha256", b"q" * 33),
        (3, "seconds", float("nan")), (3, "number", -1), (3, "size", 2**60),
        (0, "place", bytes(17)), (0, "data", {"leaves": {}, "more": 1}), (0, "data", laid(more=1)),
        (0, "data", laid(range={"low": 0.0, "high": 1.0, "more": 1})), (0, "data", laid(shape=[1] * 33)),
        (0, "data", laid(shape=[2**40])), (0, "data", laid(dtype="float128")), (0, "data", laid(within="y")),
        (0, "data", {"leaves": {f"x{k}": {"dtype": "bool"} for k in range(MAX_LEAVES + 1)}}),
        (0, "columns", table(more=1)), (0, "columns", table(target={"name": "ill", "more": 1})),
        (0, "columns", table(target={"name": "i" * 201})), (0, "columns", table(target={"name": "", "unit": "kg"})),
        (0, "columns", table(target={"name": "ill", "unit": "k" * 101})),
        (0, "columns", table(target={"name": "ill", "values": [str(k) for k in range(MOST_VALUES + 1)]})),
        (0, "columns", table(features=[{"name": str(k)} for k in range(MOST_COLUMNS + 1)])),
        (0, "columns", table(gaps=[str(k) for k in range(MOST_COLUMNS + 1)])),
        (0, "columns", table(gaps=["a\x1b"])), (0, "columns", table(features=[{"name": "ill"}])),
        (0, "columns", table(target={"name": "ill", "fill": float("inf")})),
        (0, "columns", table(target={"name": "ill\n"})),
        (0, "columns", table(target={"name": "ill", "values": ["no", "no"]})),
        (1, "number", -1), (1, "number", 2**20), (1, "manifest", b"m" * 31), (1, "successor", bytes(97)),
        (1, "answers", {"x" * 129: {"leaves": {}}}), (1, "answers", {f"a{k}": {"leaves": {}} for k in range(1025)}),
        (1, "members", {f"p{k}": 0 for k in range(2**16 + 1)}), (1, "keys", bytes(2**18 + 1)),
        (2, "seconds", 1.1e9), (3, "declined", "x" * 501), (3, "code", "x" * 65), (6, "reason", "x" * 501),
        (4, "accepted", 1), (4, "reason", "fine\nbut: rm"), (4, "reason", "\x07"), (4, "reason", "x" * 1001),
    ],
)  # fmt: skip
def test_fields_out_of_bounds_are_refused(index: int, field: str, value: Any) -> None:
    record = [*ENVELOPES, Goodbye("not allowed")][index]
    raw = {**msgspec.msgpack.decode(write_envelope(record)), field: value}
    with pytest.raises(Fault) as caught:
        read_envelope(type(record), msgspec.msgpack.encode(raw))
    assert caught.value.reason == "form"


def test_records_with_control_characters_are_not_made() -> None:
    with pytest.raises(Fault, match="control characters"):
        Receipt(False, "\x1b[2J")


def test_other_versions_are_refused_by_name_whatever_else_they_say() -> None:
    newer = msgspec.msgpack.encode({"type": "hello", "version": 5, "who": {"is": ["this"]}})
    with pytest.raises(Fault, match="the server speaks version 3, this party 5: upgrade the server") as caught:
        read_envelope(Hello, newer)
    assert caught.value.reason == "version"
    older = msgspec.msgpack.encode({"type": "welcome", "version": 2})
    with pytest.raises(Fault, match="the server speaks version 2, this party 3: upgrade the server"):
        read_envelope(Welcome, older)
    with pytest.raises(Fault, match="the server speaks version 5, this party 3: upgrade this party with pip install"):
        read_envelope(Welcome, newer)
    with pytest.raises(Fault, match="the server speaks version 3, this party 2: upgrade this party"):
        read_envelope(Hello, older)


def test_a_record_nested_without_end_is_refused() -> None:
    deep = b"\x82\xa1a" + b"\x91" * 60_000 + b"\x01\xa7version\x01"
    with pytest.raises(Fault) as caught:
        read_envelope(Hello, deep)
    assert caught.value.reason == "form"


def test_no_more_plain_values_are_taken_in_than_a_tree_has_leaves() -> None:
    """They are counted before any is read."""
    rest = msgspec.msgpack.encode({f"a{k}": 0 for k in range(MAX_LEAVES + 1)})
    head, _, _ = arranged({REST: (np.dtype(np.uint8), (len(rest),))})
    with pytest.raises(Fault, match="the plain values of the tree cannot be read"):
        read_tree(head + rest, 2**20)
