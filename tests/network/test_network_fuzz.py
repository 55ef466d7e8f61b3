"""Whatever bytes come, reading ends in a record, a tree or a Fault: no crash, no hunger for memory, nothing run.

As a script it reads damaged messages in a process of its own, under a limit on memory and before an audit hook.
"""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from atoll.combine.layouts import answer_layout
from atoll.core.question import Encoding, Fault, Layout, Question
from atoll.core.wire import Wire
from atoll.runtimes.network.messages.answers import read_answer, write_answer
from atoll.runtimes.network.messages.envelope import (
    MOST_BYTES,
    AnswerHead,
    Hello,
    QuestionHead,
    Receipt,
    Welcome,
    read_envelope,
    write_envelope,
)
from atoll.runtimes.network.messages.trees import read_tree, write_tree
from atoll.stages.encodings import Levels, Signs, SparseEncoding, WithTail

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="a process is told its size by /proc")
LIMIT = 2**16
WIRE = Wire.of(6, 3, divisor="weights")
ANSWER = {"vector": np.arange(1, 7, dtype=np.float32)[None], "finite": np.ones(1, bool)}
SHARE = {"w": np.arange(6, dtype=np.float64).reshape(2, 3), "b": {"y": np.arange(4, dtype=np.int16), "z": np.uint8(3)}}
ENCODINGS: list[tuple[Encoding, list[float]]] = [
    (SparseEncoding(2, Levels(5, "float32")), [0.0, 1.5, 0.0, 0.0, -3.0]),
    (Levels(9, "float32"), [0.5, 1.5, -2.0, 0.0, -3.0]),
    (Signs("float32"), [0.5, -0.5, 0.5, 0.5, -0.5]),
]
ENCODED = [
    Question("q", Layout({}), answer_layout(WIRE), encodings={"vector": WithTail(how, "float32")})
    for how, _ in ENCODINGS
]
PACKED = [
    write_answer(question, ANSWER | {"vector": np.array([[*row, 4]], np.float32)})
    for question, (_, row) in zip(ENCODED, ENCODINGS, strict=True)
]
TREES = [
    {},
    ANSWER,
    *(read_tree(packed, LIMIT) for packed in PACKED),
    {"broadcast": SHARE, "t": 3, "stage_state": {}, "lr": 0.1, "who": "größer", "none": None, "yes": True},
    {"empty": np.zeros((0, 7), np.complex64), "half": np.ones((1, 1, 2), np.float16), "u": np.zeros(3, np.uint64)},
]
RECORDS = [
    Hello("north", 120, Layout.of({"x": np.zeros(784, np.float32), "y": np.zeros((), np.int64)})),
    Welcome("run-1", 2, "[job]\nmethod = 'FedAvg'\n", b"m" * 32, {"train/contribute": answer_layout(WIRE)}),
    QuestionHead("run-1", 5, "train/contribute", 4, 60.0, 1000, b"q" * 32),
    AnswerHead("run-1", 5, 1000, b"a" * 32, 1.5),
    Receipt(False, "leaf 'vector' has shape (1, 1), not (1, 6)"),
]
CORPUS = [*map(write_tree, TREES), *map(write_envelope, RECORDS)]
SIZES = [0, 1, 7, 8, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1]
# Heads of msgpack that claim up to four billion letters, bytes, entries or members.
CLAIMS = [
    head + size for head in (b"\xdb", b"\xc6", b"\xdd", b"\xdf", b"\xc9") for size in (b"\xff" * 4, b"\x7f\0\0\0")
]
WORDS = [b"\0", b"\xff", b"\xc1", b"[", b"{", b'"', b"-1", b"1e9", b"null", b"9" * 30, b"../", b"BOOL", b"F64", b"nan"]


def flip(r: random.Random, data: bytearray) -> bytes:
    for _ in range(r.randint(1, 4)):
        data[r.randrange(len(data))] ^= 1 << r.randrange(8)
    return bytes(data)


def cut(r: random.Random, data: bytearray) -> bytes:
    a, b = sorted(r.choices(range(len(data) + 1), k=2))
    return bytes(data[:a] if r.random() < 0.5 else data[:a] + data[b:])


def splice(r: random.Random, data: bytearray) -> bytes:
    other = r.choice(CORPUS)
    a, b = r.randrange(len(data) + 1), r.randrange(len(other) + 1)
    return bytes(data[:a]) + other[b:]


def lengthen(r: random.Random, data: bytearray) -> bytes:
    """Claim another length: of the header, or anywhere else."""
    at = 0 if r.random() < 0.5 else r.randrange(len(data))
    claim = struct.pack("<Q", r.choice(SIZES)) if r.random() < 0.5 else r.choice(CLAIMS)
    return bytes(data[:at]) + claim + bytes(data[at + len(claim) :])


def insert(r: random.Random, data: bytearray) -> bytes:
    at = r.randrange(len(data) + 1)
    return bytes(data[:at]) + r.choice(WORDS) * r.choice([1, 1, 1, 2, 1000]) + bytes(data[at:])


def restate(r: random.Random, data: bytearray) -> bytes:
    """A tree under another header, well-formed and of the right length."""
    data = bytearray(r.choice(CORPUS[: len(TREES)]))
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    for path in list(header):
        entry = header[path]
        match r.randrange(8):
            case 0:
                entry["dtype"] = r.choice(["BOOL", "U8", "I8", "F16", "F32", "F64", "I64", "C64", "BF16", "x"])
            case 1:
                entry["shape"] = [r.choice([*SIZES, -1, 2, 3]) for _ in range(r.randrange(4))]
            case 2:
                entry["data_offsets"] = [r.choice([*SIZES, -1]), r.choice([*SIZES, -1])]
            case 3:
                header[r.choice(["..", ".", "a/b", "w", "\x1b", "x" * 300])] = header.pop(path)
            case 4:
                header[r.choice(["extra", "vector/x"])] = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(data[8 + length :])


def read_encoded(question: Question, data: bytes) -> Any:
    """Read an encoded answer; what came out can be added to a model. Give it as it travelled."""
    question.answers.check(read_answer(question, data))
    return read_tree(data, LIMIT)


MUTATIONS = [flip, cut, splice, lengthen, insert, restate]
READERS: list[Callable[[bytes], Any]] = [
    *(partial(read_encoded, question) for question in ENCODED),
    *(partial(read_envelope, kind) for kind in MOST_BYTES),
    partial(read_tree, limit=LIMIT),
    partial(read_tree, limit=LIMIT, schema=answer_layout(WIRE)),
]


def damaged(count: int, seed: int) -> Iterator[bytes]:
    r = random.Random(seed)
    for _ in range(count):
        data = r.choice(CORPUS)
        for _ in range(r.choice([1, 1, 1, 2, 3])):
            data = r.choice(MUTATIONS)(r, bytearray(data)) if len(data) >= 8 else r.choice(CORPUS)
        yield data


def read_by_all(data: bytes) -> int:
    """How many readers take these bytes; a tree that is taken is one that is written so, to the last bit."""
    taken = 0
    for reader in READERS:
        found = told(reader, data)
        if isinstance(found, Fault):
            assert len(str(found)) <= 1000  # it fits into a Receipt
            assert str(found).isprintable()
            continue
        taken += 1
        if isinstance(found, dict):
            assert write_tree(found) == data
        else:
            again = write_envelope(found)
            assert write_envelope(read_envelope(type(found), again)) == again
    return taken


def told(reader: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return reader(data)
    except Fault as fault:
        return fault


def check_vector(data: bytes) -> None:
    """What passes the layout of an answer can be added to a model."""
    found = told(READERS[-1], data)
    if isinstance(found, Fault):
        return
    row = found["vector"]
    assert row.shape == (1, 6)
    assert row.dtype == np.float32
    assert np.isfinite(row).all()
    assert 0 < row[0, -1] <= 1e12


def fuzz(count: int, seed: int) -> int:
    taken = 0
    for data in damaged(count, seed):
        taken += read_by_all(data) > 0
        check_vector(data)
    return taken


def test_five_thousand_damaged_messages() -> None:
    assert all(read_by_all(data) for data in CORPUS)
    taken = fuzz(5_000, seed=1)
    assert 0 < taken < 2_500  # a flipped bit of a number gives another number; most others are noticed


def test_random_bytes() -> None:
    r = random.Random(2)
    assert not any(read_by_all(r.randbytes(r.randrange(300))) for _ in range(2_000))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_single_bit_of_an_answer(dtype: str) -> None:
    """Each bit that is flipped alone is refused, or is a bit of a number that stays finite and in range."""
    wire = Wire.of(6, 3, dtype, divisor="weights")
    tree = {"vector": np.arange(1, 7, dtype=dtype)[None], "finite": np.ones(1, bool)}
    data, layout = write_tree(tree), answer_layout(wire)
    numbers = len(data) - tree["vector"].nbytes - 1
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        found = told(partial(read_tree, limit=LIMIT, schema=layout), bytes(changed))
        if isinstance(found, Fault):
            continue
        assert bit // 8 >= numbers
        assert np.isfinite(found["vector"]).all()
        assert found["vector"][0, -1] > 0


def run(what: str, *args: int) -> dict[str, Any]:
    command = [sys.executable, __file__, what, *map(str, args)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@LINUX
def test_memory_stays_bounded() -> None:
    assert run("memory", 2_000)["taken"] > 0


@LINUX
@pytest.mark.slow
def test_a_hundred_thousand_damaged_messages_in_bounded_memory() -> None:
    assert run("memory", 100_000)["taken"] > 0


@pytest.mark.parametrize("count", [3_000, pytest.param(100_000, marks=pytest.mark.nightly)])
def test_nothing_is_imported_run_or_opened_while_reading(count: int) -> None:
    seen = run("audit", count)
    assert seen["hook works"]
    assert seen["events"] == []


def bombs() -> Iterator[bytes]:
    """Small messages that claim to be large, and large ones that are many small things."""
    for size in SIZES:
        yield struct.pack("<Q", size) + b"{}"
        yield write_tree({})[:8] + b'{"w":{"dtype":"F64","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
    for claim in CLAIMS:
        yield claim
        yield b"\x81\xa4type" + claim
        yield b"\x82\xa4type\xa5hello\xa4data\x81\xa6leaves" + claim
        text = b'{".":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (len(claim), len(claim))
        text += b" " * (-len(text) % 8)
        yield struct.pack("<Q", len(text)) + text + claim
    for piece in (b"[", b'{"a":', b'"\\u0041', b"\x91", b"\x81\xa1a", b"\xdf\0\0\xff\xff"):
        text = piece * (2**21 // len(piece))
        yield text
        yield struct.pack("<Q", len(text)) + text
    entry = b'"%06d":{"dtype":"U8","shape":[],"data_offsets":[0,0]}'
    text = b"{" + b",".join(entry % k for k in range(35_000)) + b"}"
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    yield b"\xdf\0\x05\0\0" + b"".join(b"\xa6%06d\x01" % k for k in range(0x50000))


def memory(count: int) -> dict[str, Any]:
    """Read under a limit of address space 128 MB above what the process has now."""
    import resource
    from pathlib import Path

    fuzz(200, seed=0)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = pages * resource.getpagesize() + 2**27
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    readers = [*READERS, partial(read_tree, limit=2**23)]
    for bomb in bombs():
        for reader in readers:
            assert isinstance(told(reader, bomb), Fault), f"{bomb[:80]!r} was taken by {reader}"
    return {"taken": fuzz(count, seed=3)}


def audit(count: int) -> dict[str, Any]:
    """Read before a hook that writes down whatever the interpreter does beside computing."""
    fuzz(1_000, seed=4)
    messages = [*CORPUS, *damaged(count, seed=5), *bombs()]
    readers = [*READERS, partial(read_tree, limit=2**23)]
    events = list[str]()
    watching = [False]
    sys.addaudithook(lambda event, _: events.append(event) if watching[0] else None)
    watching[0] = True
    compile("1", "", "eval")
    works = events == ["compile"]
    events.clear()
    for data in messages:
        for reader in readers:
            told(reader, data)
    watching[0] = False
    return {"hook works": works, "events": sorted(set(events))}


if __name__ == "__main__":
    what, count = sys.argv[1:]
    print(json.dumps({"memory": memory, "audit": audit}[what](int(count))))  # noqa: T201
