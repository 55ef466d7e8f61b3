"""Bad answers never change a sum and never stop a run: they are refused by name and reason, whenever they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.core.effects import Ask, Note
from atoll.core.wire import Wire
from atoll.testing import Echo

pytest.importorskip("grpc")

from atoll.runtimes.network.calls import Times
from atoll.runtimes.network.hall import Hall, NobodyThere
from atoll.runtimes.network.message import AnswerHead, Hello, QuestionHead, Receipt, read_envelope, write_envelope
from atoll.runtimes.network.parcel import Header, header_of
from atoll.runtimes.network.store import Store
from atoll.runtimes.network.tls import Insecure
from atoll.runtimes.network.transport import PartyTransport, ServerTransport
from atoll.runtimes.network.trees import Layout, Leaf, answer_layout, read_tree, write_tree
from atoll.runtimes.workers import Worker

NAMES = ("ada", "ben", "cleo")
SIZE = 6
DATA = Layout({"x": Leaf("float32", (2,)), "y": Leaf("int32", ())})
GOOD = np.arange(SIZE, dtype=np.float32)[None] + 1  # its last number is a weight of 6


class Notes:
    def __init__(self) -> None:
        self.notes: list[Note] = []

    def note(self, note: Note) -> None:
        self.notes.append(note)

    def keep(self, memory: object) -> None:
        pass


@dataclass
class Room:
    """A hall with a real socket, and the lines of three parties."""

    hall: Hall
    notes: Notes
    lines: dict[str, PartyTransport]

    def ask(self, act: Any, **more: Any) -> Any:
        """Ask everybody in one thread while the parties act in this one."""
        found: list[Any] = []
        ask = Ask(np.arange(3), "contribute", {"t": 0, "share": np.zeros(3, np.float32)}, fold=("vector",), **more)
        thread = threading.Thread(target=lambda: found.append(self.hall.ask(ask)))
        thread.start()
        act()
        thread.join(30)
        return found[0]

    def push(self, name: str, tree: dict[str, Any], *, raw: bytes | None = None, number: int | None = None) -> Receipt:
        parcel = self.lines[name].pull(10)
        assert parcel is not None
        with parcel:
            head = read_envelope(QuestionHead, parcel.header.envelope)
        body = write_tree(tree) if raw is None else raw
        made = header_of("answer", "x", body)
        answer = AnswerHead(head.run, head.number if number is None else number, made.size, made.sha256, 0.1)
        sealed = Header(made.kind, made.id, made.size, made.sha256, write_envelope(answer))
        return read_envelope(Receipt, self.lines[name].push(sealed, body))


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    times = Times(wait=5.0, answer=20.0, silence=3.0, grace=0.2, patience=5.0)
    with Store(tmp_path) as store:
        store.enrol([(name, f"key of {name}") for name in NAMES])
        store.create("run")
        store.move("run", "running")
        notes = Notes()
        layout = answer_layout(Wire(SIZE, 3, mean=True, weighted=True))
        hall = Hall(
            "run", store, notes, Worker({"contribute": Echo()}, {}, 0), {"contribute": layout}, data=DATA, job="",
            manifest=bytes(32), key_of=lambda name: f"key of {name}", times=times,
        )  # fmt: skip
        server = ServerTransport("127.0.0.1:0", Insecure("server"), hall, times=times, folder=tmp_path)
        address = server.start()
        lines = {name: PartyTransport(address, Insecure(name), times=times) for name in NAMES}
        for name, line in lines.items():
            line.hello(write_envelope(Hello(name, 5, DATA)))
        yield Room(hall, notes, lines)
        hall.end("the test is over")
        for line in lines.values():
            line.close()
        server.stop()


def answer(**changes: Any) -> dict[str, Any]:
    return {"vector": GOOD, "finite": np.ones(1, bool)} | changes


def weighing(weight: float) -> np.ndarray:
    row = GOOD.copy()
    row[0, -1] = weight
    return row


BAD = {
    "not a number": answer(vector=np.where(GOOD == 3, np.nan, GOOD)),
    "infinite": answer(vector=np.where(GOOD == 3, np.inf, GOOD)),
    "another shape": answer(vector=GOOD[:, :-1]),
    "a shape that would stretch": answer(vector=np.ones((1, 1), np.float32)),
    "another type": answer(vector=GOOD.astype(np.float64)),
    "a flag that says so": answer(finite=np.zeros(1, bool)),
    "another name": {"gradient": GOOD, "finite": np.ones(1, bool)},
    "a name too many": answer(more=GOOD),
    "a negative weight": answer(vector=weighing(-5)),
    "no weight": answer(vector=weighing(0)),
    "a huge weight": answer(vector=weighing(1e18)),
    "a weight that is not a number": answer(vector=weighing(np.nan)),
    "a number so large that two have no sum": answer(vector=np.where(GOOD == 3, np.float32(3e38), GOOD)),
}


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("fault", BAD)
def test_a_bad_answer_changes_nothing_wherever_it_arrives(room: Room, fault: str, position: int) -> None:
    order = [name for name in NAMES if name != "ben"]
    order.insert(position, "ben")

    def act() -> None:
        for name in order:
            receipt = room.push(name, BAD[fault] if name == "ben" else answer())
            assert receipt.accepted == (name != "ben")
            assert receipt.accepted or receipt.reason

    replies = room.ask(act)
    assert replies.parties.tolist() == [0, 2]
    assert np.array_equal(replies.sums["vector"], 2 * GOOD[0])
    assert replies.facts["rejected"] == 1
    (said,) = [note for note in room.notes.notes if note.what == "rejected"]
    assert said.facts["party"] == "ben"
    assert said.facts["why"]


def test_bytes_that_are_nothing_are_refused(room: Room) -> None:
    def act() -> None:
        room.push("ada", answer())
        assert not room.push("ben", {}, raw=b"\x80\x04" + bytes(300)).accepted
        room.push("cleo", answer())

    assert room.ask(act).parties.tolist() == [0, 2]


def test_an_answer_counts_once_however_often_it_is_sent(room: Room) -> None:
    def act() -> None:
        parcel = room.lines["ada"].pull(10)
        assert parcel is not None
        with parcel:
            head = read_envelope(QuestionHead, parcel.header.envelope)
        body = write_tree(answer())
        made = header_of("answer", "x", body)
        said = AnswerHead(head.run, head.number, made.size, made.sha256, 0.1)
        sealed = Header(made.kind, made.id, made.size, made.sha256, write_envelope(said))
        for _ in range(5):
            assert read_envelope(Receipt, room.lines["ada"].push(sealed, body)).accepted
        room.push("ben", answer())
        room.push("cleo", answer())

    replies = room.ask(act)
    assert np.array_equal(replies.sums["vector"], 3 * GOOD[0])


def test_an_answer_to_another_question_does_not_count(room: Room) -> None:
    def act() -> None:
        assert not room.push("ada", answer(), number=999).accepted
        for name in NAMES:
            assert room.push(name, answer()).accepted

    assert len(room.ask(act)) == 3


def test_enough_answers_end_the_wait_and_silent_parties_are_not_waited_for(room: Room) -> None:
    def two() -> None:
        room.push("cleo", answer())
        room.push("ada", answer())

    began = time.monotonic()
    assert room.ask(two, enough=2).parties.tolist() == [0, 2]
    replies = room.ask(two)  # ben gives no sign of life any more
    assert replies.parties.tolist() == [0, 2]
    assert replies.facts["lost"] == 1
    assert time.monotonic() - began < 15


def test_sums_do_not_depend_on_who_comes_first(room: Room) -> None:
    values = {name: (GOOD * np.float32(0.1 + 0.37 * k)).astype(np.float32) for k, name in enumerate(NAMES)}
    orders = (NAMES, NAMES[::-1], ("ben", "cleo", "ada"))
    found = [
        room.ask(lambda order=order: [room.push(name, answer(vector=values[name])) for name in order])
        for order in orders
    ]
    assert np.array_equal(found[0].sums["vector"], found[1].sums["vector"])
    assert np.array_equal(found[0].sums["vector"], found[2].sums["vector"])


def test_nobody_there_ends_the_wait(room: Room) -> None:
    with pytest.raises(NobodyThere, match="of 9 parties came"):
        room.hall.wait_for(9, 0.3)


def test_a_party_that_must_be_there_is_waited_for_by_name(room: Room) -> None:
    ada, ben = room.hall.members()[:2]
    room.hall.wait_for(1, 0.3, (ada,))
    room.hall.goodbye("ben")
    with pytest.raises(NobodyThere, match="not all of ada, ben came within"):
        room.hall.wait_for(1, 0.3, (ada, ben))


def test_with_late_answers_nobody_is_asked_while_at_work_and_old_answers_say_how_old(room: Room) -> None:
    def step(t: int, *who: str) -> Any:
        found: list[Any] = []
        body = {"t": t, "share": np.zeros(3, np.float32)}
        ask = Ask(np.arange(3), "contribute", body, enough=len(who), late=2)
        thread = threading.Thread(target=lambda: found.append(room.hall.ask(ask)))
        thread.start()
        for name in who:
            assert room.push(name, answer()).accepted
        thread.join(30)
        (replies,) = found
        return replies.parties.tolist(), replies.each["age"].tolist(), replies.facts["asked"]

    assert step(0, "ada", "ben") == ([0, 1], [0, 0], 3)  # cleo is at work
    assert step(1, "cleo", "ada") == ([0, 2], [0, 1], 2)  # what cleo gives is an answer to round 0; ben is at work
    assert step(2, "ada", "cleo") == ([0, 2], [0, 0], 2)
    late = room.lines["ben"].pull(10)
    assert late is not None
    with late:
        old = read_envelope(QuestionHead, late.header.envelope)
    assert old.t == 1
    assert step(3, "ada", "cleo") == ([0, 2], [0, 0], 2)  # after this, an answer to round 1 would be too old
    body = write_tree(answer())
    made = header_of("answer", "x", body)
    head = write_envelope(AnswerHead(old.run, old.number, made.size, made.sha256, 0.1))
    receipt = read_envelope(
        Receipt, room.lines["ben"].push(Header(made.kind, made.id, made.size, made.sha256, head), body)
    )
    assert not receipt.accepted
    assert "closed" in receipt.reason
    assert step(4, "ada", "ben", "cleo") == ([0, 1, 2], [0, 0, 0], 3)


def late(room: Room, t: int, to: Any, *who: str) -> Any:
    """Take one answer, late ones too, while these parties give theirs."""
    found: list[Any] = []
    ask = Ask(np.array(to), "contribute", {"t": t, "share": np.zeros(3, np.float32)}, enough=1, late=9)
    thread = threading.Thread(target=lambda: found.append(room.hall.ask(ask)))
    thread.start()
    for name in who:
        assert room.push(name, answer()).accepted
    thread.join(30)
    (replies,) = found
    return replies.parties.tolist(), replies.each["age"].tolist(), replies.facts["asked"]


def test_with_late_answers_a_step_takes_as_many_as_are_enough_and_the_others_stay(room: Room) -> None:
    assert late(room, 0, [0, 1, 2], "ada") == ([0], [0], 3)
    for name in ("cleo", "ben"):
        assert room.push(name, answer()).accepted
    assert late(room, 1, [1, 2]) == ([1], [1], 0)
    assert late(room, 2, [2]) == ([2], [2], 0)
    assert late(room, 3, [0, 1, 2], "ben") == ([1], [0], 3)


def test_who_is_gone_is_not_at_work(room: Room) -> None:
    assert late(room, 0, [0, 1, 2], "ada") == ([0], [0], 3)
    room.hall.goodbye("ben")
    room.hall.goodbye("cleo")
    assert late(room, 1, [0], "ada") == ([0], [0], 1)


def test_who_has_left_is_gone_though_its_last_call_still_waits(room: Room) -> None:
    waiting = threading.Thread(target=lambda: room.hall.next_question("ben", 5))
    waiting.start()
    time.sleep(0.2)
    room.hall.goodbye("ben")
    began = time.monotonic()
    room.ask(lambda: [room.push(name, answer()) for name in ("ada", "cleo")])
    waiting.join(10)
    assert room.hall.online().tolist() == [0, 2]
    assert time.monotonic() - began < 2.5  # of the 3 s after which who is silent is not waited for


def test_what_a_program_refuses_is_noted_by_name(room: Room) -> None:
    room.hall.note(Note("rejected", {"number": 1, "reason": "secure", "why": "no signature"}))
    assert room.notes.notes[-1] == Note("rejected", {"party": "ben", "reason": "secure", "why": "no signature"})


def test_a_party_may_decline_and_the_others_are_enough(room: Room) -> None:
    def act() -> None:
        for name in ("ada", "cleo"):
            assert room.push(name, answer()).accepted
        parcel = room.lines["ben"].pull(10)
        assert parcel is not None
        with parcel:
            head = read_envelope(QuestionHead, parcel.header.envelope)
        made = header_of("answer", "x", b"")
        no = AnswerHead(head.run, head.number, made.size, made.sha256, 0.1, "not at this hour")
        sealed = Header(made.kind, made.id, made.size, made.sha256, write_envelope(no))
        assert not read_envelope(Receipt, room.lines["ben"].push(sealed, b"")).accepted

    replies = room.ask(act)
    assert replies.parties.tolist() == [0, 2]
    assert np.array_equal(replies.sums["vector"], 2 * GOOD[0])
    assert [n.facts["why"] for n in room.notes.notes if n.what == "declined"] == ["not at this hour"]


def test_each_party_may_be_asked_something_of_its_own(room: Room) -> None:
    seen: dict[str, int] = {}

    def act() -> None:
        for name in NAMES:
            parcel = room.lines[name].pull(10)
            assert parcel is not None
            with parcel:
                body = parcel.body.read()
            seen[name] = int(read_tree(body, len(body))["mine"])
            assert room.push(name, answer()).accepted

    room.ask(act, each={p: {"mine": 10 * p} for p in range(3)})
    assert seen == {"ada": 0, "ben": 10, "cleo": 20}
