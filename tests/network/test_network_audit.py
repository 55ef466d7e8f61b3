"""What an audit promises: every line on disk before it counts, every change named, the month's ε added up."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spawn
from atoll.core.errors import Unwritable
from atoll.runtimes.network.party.audit import START, AuditLog, Broken, verify

NOON = datetime(2025, 6, 15, 12, tzinfo=UTC)
BODY = sha256(b"body").hexdigest()


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def filled(path: Path, lines: int = 4) -> bytes:
    with AuditLog(path, clock=lambda: NOON) as audit:
        for k in range(lines):
            audit.left(job="j", question=k, asked="train/contribute", size=10 * k, digest=BODY, epsilon=k / 2)
    return path.read_bytes()


def forged(body: dict[str, Any] | list[Any]) -> bytes:
    """A line whose own hash is right."""
    text = json.dumps(body, separators=(",", ":"))[:-1].encode()
    return text + b',"self":"' + sha256(text).hexdigest().encode() + b'"}\n'


# ---- writing


def test_a_line_says_what_left(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path, clock=lambda: NOON) as audit:
        assert audit.head == START
        first = audit.left(job="j", question=7, asked="train/contribute", size=400, digest=BODY, epsilon=0.5,
                           contributes=True)  # fmt: skip
        second = audit.append("refused", job="k", why="too large")
        assert audit.head == second
    one, two = path.read_bytes().splitlines()
    assert first == sha256(one).hexdigest()
    found = json.loads(one)
    assert found.pop("self") == sha256(one[: one.index(b',"self"')]).hexdigest()
    assert found == {
        "n": 1, "time": "2025-06-15T12:00:00+00:00", "before": START, "what": "left", "job": "j", "question": 7,
        "asked": "train/contribute", "bytes": 400, "sha256": BODY, "contributes": True, "epsilon": 0.5,
    }  # fmt: skip
    assert json.loads(two)["before"] == first
    assert verify(path) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_it_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for k in range(5):
        with AuditLog(path) as audit:
            audit.append("start", k=k)
    assert verify(path) == 5
    assert [line["n"] for line in lines_of(path)] == [1, 2, 3, 4, 5]


def test_a_line_is_on_disk_before_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size that is synced is the size after the line."""
    path, synced, sync = tmp_path / "audit.jsonl", list[int](), os.fsync
    with AuditLog(path) as audit:
        monkeypatch.setattr(os, "fsync", lambda fd: (sync(fd), synced.append(os.fstat(fd).st_size))[0])
        for _ in range(3):
            audit.append("start")
            assert synced[-1] == path.stat().st_size


@pytest.mark.parametrize(
    "facts",
    [
        {"n": 1}, {"time": 1}, {"before": "x"}, {"self": "x"}, {"what": "x"}, {"epsilon": float("nan"), "job": "j"},
        {"epsilon": float("inf"), "job": "j"}, {"epsilon": -1.0, "job": "j"}, {"epsilon": True, "job": "j"},
        {"epsilon": "1", "job": "j"}, {"epsilon": 1.0}, {"epsilon": 1.0, "job": 3}, {"x": float("nan")},
    ],
)  # fmt: skip
def test_facts_that_cannot_be_are_refused_and_leave_no_trace(tmp_path: Path, facts: Any) -> None:
    path = tmp_path / "audit.jsonl"
    before = filled(path)
    with AuditLog(path) as audit:
        with pytest.raises(ValueError, match=r".+"):
            audit.append("left", **facts)
        assert path.read_bytes() == before
        audit.append("fine")
    assert verify(path) == 5


def test_threads_write_one_chain(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as audit:
        threads = [
            threading.Thread(target=lambda k=k: [audit.append("x", k=k) for _ in range(20)]) for k in range(8)
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert verify(path) == 160


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path), pytest.raises(Unwritable, match=f"^{tmp_path} is in use by another process"):
        AuditLog(path)
    with AuditLog(path) as audit:
        audit.append("x")


def test_a_place_where_no_file_can_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unwritable, match="choose another file for the audit"):
        AuditLog(tmp_path / "missing" / "audit.jsonl")


# ---- tampering


@pytest.mark.parametrize("change", [lambda b: b ^ 1, lambda b: b ^ 0x80, lambda _: 10])
def test_a_change_of_any_byte_names_its_line(tmp_path: Path, change: Callable[[int], int]) -> None:
    """Every byte of the file, also those of the hashes, of the last line and at the ends of lines."""
    path = tmp_path / "audit.jsonl"
    good = filled(path, 2)
    ends = [k for k, byte in enumerate(good) if byte == 10]
    for at, byte in enumerate(good):
        if change(byte) == byte:
            continue
        path.write_bytes(good[:at] + bytes([change(byte)]) + good[at + 1 :])
        with pytest.raises(Broken) as caught:
            verify(path)
        assert caught.value.line == 1 + sum(end < at for end in ends), at
        assert f"line {caught.value.line}: " in str(caught.value)
    path.write_bytes(good)
    assert verify(path) == 2


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_whatever_is_put_in_taken_out_or_moved_is_named(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    path = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    good = filled(path, 5).splitlines(keepends=True)
    order = data.draw(st.lists(st.integers(0, 4), max_size=7))
    path.write_bytes(b"".join(good[k] for k in order))
    same = next((k for k, was in enumerate(order) if was != k), len(order))
    if same == len(order):  # a log that was cut is told by its head alone
        assert verify(path) == len(order)
    else:
        with pytest.raises(Broken, match="taken out, put in or moved") as caught:
            verify(path)
        assert caught.value.line == same + 1


@pytest.mark.parametrize("body", [{"n": 5}, {"before": "x", "n": 5}, [1, 2], {"n": "5", "before": None}])
def test_a_line_with_the_right_hash_of_itself_alone_does_not_pass(tmp_path: Path, body: Any) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(filled(path) + forged(body))
    with pytest.raises(Broken) as caught:
        verify(path)
    assert caught.value.line == 5


def test_a_line_that_counts_itself_wrong_does_not_pass(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    good = filled(path)
    head = sha256(good.splitlines()[-1]).hexdigest()
    path.write_bytes(good + forged({"before": head, "n": 5}))
    assert verify(path) == 5
    path.write_bytes(good + forged({"before": head, "n": 6}))
    with pytest.raises(Broken, match="line 5"):
        verify(path)


def test_nothing_is_added_to_a_broken_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    bad = filled(path).replace(b'"bytes":10', b'"bytes":11')
    path.write_bytes(bad)
    with pytest.raises(Broken, match=r"line 2: it was changed.*start a new one"):
        AuditLog(path)
    assert path.read_bytes() == bad


# ---- crashes


def test_a_torn_last_line_is_cut_off_and_noted_wherever_it_tears(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    good = filled(path, 3)
    whole = good[: good[:-1].rindex(b"\n") + 1]
    for size in range(len(whole) + 1, len(good)):
        path.write_bytes(good[:size])
        with pytest.raises(Broken, match="line 3: the last line has no end"):
            verify(path)
        with AuditLog(path) as audit:
            audit.append("on")
        torn = good[len(whole) : size]
        found = lines_of(path)
        assert [line["what"] for line in found] == ["left", "left", "cut", "on"]
        assert (found[2]["bytes"], found[2]["sha256"]) == (len(torn), sha256(torn).hexdigest())
        assert path.read_bytes().startswith(whole)
        assert verify(path) == 4


WRITER = """
import sys
from pathlib import Path
from atoll.runtimes.network.party.audit import AuditLog
with AuditLog(Path(sys.argv[1])) as audit:
    k = 0
    while True:
        k += 1
        print(audit.append("left", job="j", epsilon=k, pad="x" * (k * 7919 % 9000)), flush=True)
"""


def test_a_writer_killed_between_or_in_writes_has_every_line_it_told_of(tmp_path: Path) -> None:
    path, told = tmp_path / "audit.jsonl", set[str]()
    for seed in range(12):
        chance = random.Random(seed)
        command = [sys.executable, "-c", WRITER, str(path)]
        with spawn.start(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout
            lines = [writer.stdout.readline() for _ in range(chance.randrange(1, 20))]
            time.sleep(chance.random() * 0.01)
            writer.send_signal(signal.SIGKILL)
            lines += writer.stdout.readlines()
        told |= {line.strip() for line in lines if line.endswith("\n")}
        AuditLog(path).close()
        hashes = {sha256(line).hexdigest() for line in path.read_bytes().splitlines()}
        assert verify(path) == len(hashes)
        assert hashes >= told
    assert len(told) > 50


FILLER = """
import resource, sys
from pathlib import Path
from atoll.runtimes.network.party.audit import AuditLog
from atoll.core.errors import Unwritable
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
with AuditLog(Path(sys.argv[1])) as audit:
    try:
        while True:
            print(audit.append("left", job="j", epsilon=1), flush=True)
    except Unwritable as error:
        print(error)
"""


def test_a_full_disk_ends_in_a_sentence_and_the_log_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    done = subprocess.run([sys.executable, "-c", FILLER, str(path)], capture_output=True, text=True, check=True)
    *told, said = done.stdout.splitlines()
    assert said == (
        f"cannot write {path}: File too large; nothing leaves without a line in it: free some space, then join again"
    )
    assert verify(path) == len(told) > 5
    with AuditLog(path) as audit:
        assert audit.head == told[-1]
        audit.append("on")


# ---- what was booked nowhere


def test_lines_of_an_earlier_release_are_handed_over_once(tmp_path: Path) -> None:
    """By their bytes: another vector under an old number is another answer, the same bytes sent again are not."""
    path = tmp_path / "audit.jsonl"
    with AuditLog(path, clock=lambda: NOON) as audit:
        audit.append("hello", bytes=1000, sha256="0" * 64)
        for question, digest in ((4, "a"), (5, "b"), (5, "c"), (5, "c"), (9, "d")):
            audit.left(job="j", question=question, asked="train/contribute", size=1, digest=digest * 64, brought=10,
                       contributes=True)  # fmt: skip
        audit.left(job="j", question=10, asked="evaluate/local", size=1, digest="0" * 64)
        audit.append("declined", job="j", question=11, asked="train/contribute", brought=100, why="not now")
        booked = {"job": "j", "question": 12, "asked": "train/contribute", "size": 1, "digest": "e" * 64}
        audit.left(**booked, contributes=True, dataset="wards")  # type: ignore[arg-type]
        assert audit.unbooked() == [("j", "2025-06", {"train": 4}, 5 * 11 + 1 + 100)]
        audit.append("booked", dataset="wards")
        assert audit.unbooked() == []
