"""Bad answers never change a sum and never stop a run: they are refused by name and reason, whenever they come."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.combine.layouts import answer_layout, contribute
from atoll.core.effects import Ask, Note
from atoll.core.question import Layout, Leaf, Question
from atoll.core.wire import EncodeContext, Setting, Wire, chain
from atoll.core.world import World
from atoll.crypto.keys import Refused
from atoll.journal import Damaged
from atoll.programs.quorum import Quorum
from atoll.testing import Echo

pytest.importorskip("grpc")

from atoll.runtimes.local.worker import Worker
from atoll.runtimes.network.messages.answers import write_answer
from atoll.runtimes.network.messages.awake import AwakeClock
from atoll.runtimes.network.messages.calls import NOT_ALLOWED, HelloFirst, RunFailed, RunOver, Times, Unreachable
from atoll.runtimes.network.messages.envelope import (
    AnswerHead,
    Goodbye,
    Hello,
    QuestionHead,
    Receipt,
    Welcome,
    read_envelope,
    write_envelope,
)
from atoll.runtimes.network.messages.payload import Header, header_of
from atoll.runtimes.network.messages.trees import read_tree, write_tree
from atoll.runtimes.network.server.hub import TRIES, Hub, NobodyThere
from atoll.runtimes.network.server.store import Store
from atoll.runtimes.network.transport import PartyTransport, ServerTransport
from atoll.runtimes.network.trust.roster import hinted, key_text
from atoll.runtimes.network.trust.tls import Insecure

NAMES = ("ada", "ben", "cleo")
SIZE = 6
WHAT = "train/contribute"
DATA = Layout({"x": Leaf("float32", (2,)), "y": Leaf("int32", ())})
GOOD = np.arange(SIZE, dtype=np.float32)[None] + 1  # its last number is a weight of 6


class Notes:
    def __init__(self) -> None:
        self.notes: list[Note] = []

    def note(self, note: Note) -> None:
        self.notes.append(note)

    def checkpoint(self, memory: object) -> None:
        pass


@dataclass
class Wired:
    """A hub with a real socket, and the lines of three parties."""

    hub: Hub
    notes: Notes
    lines: dict[str, PartyTransport]
    listed: dict[str, str]  # the roster

    def ask(self, act: Any, **more: Any) -> Any:
        """Ask everybody in one thread while the parties act in this one."""
        found: list[Any] = []
        ask = Ask(np.arange(3), WHAT, {"t": 0, "broadcast": np.zeros(3, np.float32)}, fold=("vector",), **more)
        thread = threading.Thread(target=lambda: found.append(self.hub.ask(ask)))
        thread.start()
        act()
        thread.join(30)
        return found[0]

    def push(self, name: str, tree: dict[str, Any], *, raw: bytes | None = None, number: int | None = None) -> Receipt:
        payload = self.lines[name].pull(10)
        assert payload is not None
        with payload:
            head = read_envelope(QuestionHead, payload.header.envelope)
        body = write_tree(tree) if raw is None else raw
        made = header_of("answer", "x", body)
        answer = AnswerHead(head.run, head.number if number is None else number, made.size, made.sha256, 0.1)
        sealed = Header(made.kind, made.id, made.size, made.sha256, write_envelope(answer))
        return read_envelope(Receipt, self.lines[name].push(sealed, body))

    def decline(self, name: str, why: str, code: str) -> None:
        payload = self.lines[name].pull(10)
        assert payload is not None
        with payload:
            head = read_envelope(QuestionHead, payload.header.envelope)
        made = header_of("answer", "x", b"")
        answer = AnswerHead(head.run, head.number, 0, made.sha256, 0.1, why, code)
        self.lines[name].push(Header(made.kind, made.id, 0, made.sha256, write_envelope(answer)), b"")


@contextmanager
def standing(tmp_path: Path, question: Question) -> Iterator[Wired]:
    times = Times(wait=5.0, answer=20.0, slowest=1e6, silence=3.0, grace=0.2, patience=5.0)
    with Store(tmp_path) as store:
        store.enrol([(name, f"key of {name}") for name in NAMES])
        store.create("run")
        store.move("run", "running")
        notes = Notes()
        listed = {name: f"key of {name}" for name in NAMES}
        local = Worker({WHAT: Echo()}, {}, World(0))
        hub = Hub(
            "run", store, notes, local, {WHAT: question}, data=DATA, job="",
            manifest=bytes(32), roster=lambda: listed, times=times, live=True,
            weights={WHAT: lambda samples: 2.0 * samples},
        )  # fmt: skip
        server = ServerTransport("127.0.0.1:0", Insecure("server"), hub, times=times, folder=tmp_path)
        address = server.start()
        lines = {name: PartyTransport(address, Insecure(name), times=times) for name in NAMES}
        for name, line in lines.items():
            line.hello(write_envelope(Hello(name, 5, DATA)))
            line.pull(0.0)  # who asks for questions has agreed
        yield Wired(hub, notes, lines, listed)
        hub.end("the test is over")
        for line in lines.values():
            line.close()
        server.stop()


def test_a_party_comes_from_one_folder_at_a_time(wired: Wired) -> None:
    """The same folder may come again, another one only after a goodbye."""
    name, hub = NAMES[0], wired.hub
    here, there = (write_envelope(Hello(name, 5, DATA, place=bytes([k]) * 16)) for k in (1, 2))
    hub.goodbye(name)
    hub.hello(name, here)
    hub.hello(name, here)
    with pytest.raises(Refused, match="is here already, from another folder"):
        hub.hello(name, there)
    hub.hello(name, here)
    hub.goodbye(name)
    hub.hello(name, there)


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    layout = answer_layout(Wire.of(SIZE, 3, divisor="weights"))
    with standing(tmp_path, Question(WHAT, Layout({}), layout, contributes=True)) as made:
        yield made


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
def test_a_bad_answer_changes_nothing_wherever_it_arrives(wired: Wired, fault: str, position: int) -> None:
    order = [name for name in NAMES if name != "ben"]
    order.insert(position, "ben")

    def act() -> None:
        for name in order:
            receipt = wired.push(name, BAD[fault] if name == "ben" else answer())
            assert receipt.accepted == (name != "ben")
            assert receipt.accepted or receipt.reason

    replies = wired.ask(act)
    assert replies.parties.tolist() == [0, 2]
    assert np.array_equal(replies.sums["vector"], 2 * GOOD[0])
    assert replies.facts["rejected"] == 1
    (said,) = [note for note in wired.notes.notes if note.what == "rejected"]
    assert said.facts["party"] == "ben"
    assert said.facts["why"]


@pytest.mark.parametrize("edge", [False, True])
def test_a_weight_is_at_most_that_of_the_samples_that_were_declared(wired: Wired, edge: bool) -> None:
    """An edge declares those of its parties, all together; what it declares anew is written down."""
    hello = Hello("ben", 7, Layout({}) if edge else DATA, edge=edge)
    wired.lines["ben"].hello(write_envelope(hello))
    assert wired.notes.notes[-1] == Note("joined", {"party": "ben", "number": 1, "samples": 7})

    def act() -> None:
        for name, weight in zip(NAMES, (10, 14.01, 10), strict=True):
            assert wired.push(name, answer(vector=weighing(weight))).accepted == (name != "ben")

    assert wired.ask(act).parties.tolist() == [0, 2]
    (said,) = [note for note in wired.notes.notes if note.what == "rejected"]
    assert said.facts["why"] == "a weight of 14.01: with the 7 samples it declared it has 14"
    assert len(wired.ask(lambda: [wired.push(n, answer(vector=weighing(10 + 4 * (n == "ben")))) for n in NAMES])) == 3


# Two values, the byte of their positions, the weight: what comes instead, from the end of an honest body.
LIES: dict[str, Callable[[bytes], bytes]] = {
    "three positions": lambda body: body[:-5] + bytes([body[-5] | 0b10000000]) + body[-4:],
    "a position behind the last": lambda body: body[:-5] + bytes([body[-5] | 1]) + body[-4:],
    "a value that is no number": lambda body: body[:-9] + b"\xff\xff\xff\x7f" + body[-5:],
    "a weight below zero": lambda body: body[:-4] + np.array([-1], "<f4").tobytes(),
    "a byte too few": lambda body: body[:-1],
    "numbers as they are": lambda _: write_tree(answer()),
}


@pytest.mark.parametrize("lie", LIES)
def test_who_sends_a_malformed_encoding_is_refused_by_name(tmp_path: Path, lie: str) -> None:
    wire, codec = chain(atoll.TopK(0.4, feedback=False))(Wire.of(SIZE, 3, divisor="weights"))
    question = contribute(wire, Setting("train", World(0)), Layout({}), "a vector")
    row = codec.encode(GOOD, {}, EncodeContext(np.ones(1), World(0), 0, np.arange(1))).x
    body = write_answer(question, answer(vector=row))
    with standing(tmp_path, question) as wired:

        def act() -> None:
            for name in NAMES:
                sent = LIES[lie](body) if name == "ben" else body
                assert wired.push(name, {}, raw=sent).accepted == (name != "ben")

        replies = wired.ask(act)
        assert replies.parties.tolist() == [0, 2]
        assert np.array_equal(replies.sums["vector"], 2 * row[0])
        (said,) = [note for note in wired.notes.notes if note.what == "rejected"]
        assert said.facts["party"] == "ben"


def test_bytes_that_are_nothing_are_refused_and_too_many_not_even_read(wired: Wired) -> None:
    def act() -> None:
        too_many = wired.push("ada", {}, raw=bytes(100_000)).reason
        assert too_many.startswith("100000 bytes: an answer to 'train/contribute' has ")
        assert not wired.push("ben", {}, raw=b"\x80\x04" + bytes(300)).accepted
        wired.push("cleo", answer())

    assert wired.ask(act).parties.tolist() == [2]


def test_an_answer_counts_once_however_often_it_is_sent(wired: Wired) -> None:
    def act() -> None:
        payload = wired.lines["ada"].pull(10)
        assert payload is not None
        with payload:
            head = read_envelope(QuestionHead, payload.header.envelope)
        body = write_tree(answer())
        made = header_of("answer", "x", body)
        said = AnswerHead(head.run, head.number, made.size, made.sha256, 0.1)
        sealed = Header(made.kind, made.id, made.size, made.sha256, write_envelope(said))
        for _ in range(5):
            assert read_envelope(Receipt, wired.lines["ada"].push(sealed, body)).accepted
        wired.push("ben", answer())
        wired.push("cleo", answer())

    replies = wired.ask(act)
    assert np.array_equal(replies.sums["vector"], 3 * GOOD[0])


def stored(folder: Path, party: int) -> Path:
    """Wait for the file of a party's answer."""
    end = time.monotonic() + 10
    while not (found := [*folder.glob(f"answers/*-{party}-*[!t]")]):  # not a part of one
        assert time.monotonic() < end
        time.sleep(0.001)
    return found[0]


@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_an_answer_that_the_disk_has_changed_is_asked_for_again(wired: Wired, tmp_path: Path, how: str) -> None:
    """The party sends the same bytes, and the sum is the one of a disk that changes nothing, in the same order."""

    large = np.where(np.arange(SIZE) < SIZE - 1, np.float32(3e8), GOOD)  # what is added to it is rounded

    def act() -> None:
        wired.push("ada", answer(vector=large))
        wired.push("ben", answer())
        path = stored(tmp_path, 1)
        body = bytearray(path.read_bytes())
        body[-5] ^= 1
        path.write_bytes(body) if how == "flipped" else path.unlink()
        wired.push("cleo", answer())
        wired.push("ben", answer())

    replies = wired.ask(act)
    assert replies.parties.tolist() == [0, 1, 2]
    assert replies.sums["vector"].tobytes() == (large + GOOD + GOOD)[0].tobytes()
    (said,) = [note.facts["why"] for note in wired.notes.notes if note.what == "damaged"]
    assert "answers" in str(said)
    assert str(said).endswith("ben is asked for it again")
    assert not list((tmp_path / "answers").iterdir())


def test_a_disk_that_changes_every_answer_ends_the_run_in_a_sentence(
    wired: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(path: Path, body: object, digest: str) -> None:
        path.write_bytes(b"something else")

    monkeypatch.setattr("atoll.runtimes.network.server.store.write_body", wrong)
    ask = Ask(np.arange(1), WHAT, {"t": 0, "broadcast": np.zeros(3, np.float32)}, fold=("vector",))
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(wired.hub.ask, ask)
        for _ in range(TRIES):
            wired.push("ada", answer())
        with pytest.raises(Damaged, match="as 3 others of this round were: see to this disk, then serve again"):
            asked.result(10)


def test_an_answer_to_another_question_does_not_count(wired: Wired) -> None:
    def act() -> None:
        assert not wired.push("ada", answer(), number=999).accepted
        for name in NAMES:
            assert wired.push(name, answer()).accepted

    assert len(wired.ask(act)) == 3


def test_enough_answers_end_the_wait_and_silent_parties_are_not_waited_for(wired: Wired) -> None:
    def two() -> None:
        wired.push("cleo", answer())
        wired.push("ada", answer())

    began = time.monotonic()
    assert wired.ask(two, goal=2).parties.tolist() == [0, 2]
    replies = wired.ask(two)  # ben gives no sign of life any more
    assert replies.parties.tolist() == [0, 2]
    assert replies.facts["lost"] == 1
    assert time.monotonic() - began < 15


def test_sums_do_not_depend_on_who_comes_first(wired: Wired) -> None:
    values = {name: (GOOD * np.float32(0.1 + 0.37 * k)).astype(np.float32) for k, name in enumerate(NAMES)}
    orders = (NAMES, NAMES[::-1], ("ben", "cleo", "ada"))
    found = [
        wired.ask(lambda order=order: [wired.push(name, answer(vector=values[name])) for name in order])
        for order in orders
    ]
    assert np.array_equal(found[0].sums["vector"], found[1].sums["vector"])
    assert np.array_equal(found[0].sums["vector"], found[2].sums["vector"])


def test_nobody_there_ends_the_wait(wired: Wired) -> None:
    with pytest.raises(NobodyThere, match="of 9 parties came"):
        wired.hub.wait_for(9, 0.3)


def test_a_party_that_must_be_there_is_waited_for_by_name(wired: Wired) -> None:
    ada, ben = wired.hub.members()[:2]
    wired.hub.wait_for(1, 0.3, (ada,))
    wired.hub.goodbye("ben")
    with pytest.raises(NobodyThere, match="not all of ada, ben came within"):
        wired.hub.wait_for(1, 0.3, (ada, ben))


def test_with_late_answers_nobody_is_asked_while_at_work_and_old_answers_say_how_old(wired: Wired) -> None:
    def step(t: int, *who: str) -> Any:
        found: list[Any] = []
        body = {"t": t, "broadcast": np.zeros(3, np.float32)}
        ask = Ask(np.arange(3), WHAT, body, goal=len(who), max_staleness=2)
        thread = threading.Thread(target=lambda: found.append(wired.hub.ask(ask)))
        thread.start()
        for name in who:
            assert wired.push(name, answer()).accepted
        thread.join(30)
        (replies,) = found
        return replies.parties.tolist(), replies.each["age"].tolist(), replies.facts["asked"]

    assert step(0, "ada", "ben") == ([0, 1], [0, 0], 3)  # cleo is at work
    assert step(1, "cleo", "ada") == ([0, 2], [0, 1], 2)  # what cleo gives is an answer to round 0; ben is at work
    assert step(2, "ada", "cleo") == ([0, 2], [0, 0], 2)
    max_staleness = wired.lines["ben"].pull(10)
    assert max_staleness is not None
    with max_staleness:
        old = read_envelope(QuestionHead, max_staleness.header.envelope)
    assert old.t == 1
    assert step(3, "ada", "cleo") == ([0, 2], [0, 0], 2)  # after this, an answer to round 1 would be too old
    body = write_tree(answer())
    made = header_of("answer", "x", body)
    head = write_envelope(AnswerHead(old.run, old.number, made.size, made.sha256, 0.1))
    receipt = read_envelope(
        Receipt, wired.lines["ben"].push(Header(made.kind, made.id, made.size, made.sha256, head), body)
    )
    assert not receipt.accepted
    assert "closed" in receipt.reason
    assert step(4, "ada", "ben", "cleo") == ([0, 1, 2], [0, 0, 0], 3)


def max_staleness(wired: Wired, t: int, to: Any, *who: str) -> Any:
    """Take one answer, late ones too, while these parties give theirs."""
    found: list[Any] = []
    ask = Ask(np.array(to), WHAT, {"t": t, "broadcast": np.zeros(3, np.float32)}, goal=1, max_staleness=9)
    thread = threading.Thread(target=lambda: found.append(wired.hub.ask(ask)))
    thread.start()
    for name in who:
        assert wired.push(name, answer()).accepted
    thread.join(30)
    (replies,) = found
    return replies.parties.tolist(), replies.each["age"].tolist(), replies.facts["asked"]


def test_with_late_answers_a_step_takes_as_many_as_are_enough_and_the_others_stay(wired: Wired) -> None:
    assert max_staleness(wired, 0, [0, 1, 2], "ada") == ([0], [0], 3)
    for name in ("cleo", "ben"):
        assert wired.push(name, answer()).accepted
    assert max_staleness(wired, 1, [1, 2]) == ([1], [1], 0)
    assert max_staleness(wired, 2, [2]) == ([2], [2], 0)
    assert max_staleness(wired, 3, [0, 1, 2], "ben") == ([1], [0], 3)


def test_who_is_gone_is_not_at_work(wired: Wired) -> None:
    assert max_staleness(wired, 0, [0, 1, 2], "ada") == ([0], [0], 3)
    wired.hub.goodbye("ben")
    wired.hub.goodbye("cleo")
    assert max_staleness(wired, 1, [0], "ada") == ([0], [0], 1)


def test_who_has_left_is_gone_though_its_last_call_still_waits(wired: Wired) -> None:
    waiting = threading.Thread(target=lambda: wired.hub.next_question("ben", 5))
    waiting.start()
    time.sleep(0.2)
    wired.hub.goodbye("ben")
    began = time.monotonic()
    wired.ask(lambda: [wired.push(name, answer()) for name in ("ada", "cleo")])
    waiting.join(10)
    assert wired.hub.online().tolist() == [0, 2]
    assert time.monotonic() - began < 2.5  # of the 3 s after which who is silent is not waited for


def test_what_a_program_refuses_is_noted_by_name(wired: Wired) -> None:
    wired.hub.note(Note("rejected", {"number": 1, "reason": "secure", "why": "no signature"}))
    assert wired.notes.notes[-1] == Note("rejected", {"party": "ben", "reason": "secure", "why": "no signature"})


def test_a_party_may_decline_and_the_others_are_enough(wired: Wired) -> None:
    def act() -> None:
        for name in ("ada", "cleo"):
            assert wired.push(name, answer()).accepted
        payload = wired.lines["ben"].pull(10)
        assert payload is not None
        with payload:
            head = read_envelope(QuestionHead, payload.header.envelope)
        made = header_of("answer", "x", b"")
        no = AnswerHead(head.run, head.number, made.size, made.sha256, 0.1, "not at this hour")
        sealed = Header(made.kind, made.id, made.size, made.sha256, write_envelope(no))
        assert not read_envelope(Receipt, wired.lines["ben"].push(sealed, b"")).accepted

    replies = wired.ask(act)
    assert replies.parties.tolist() == [0, 2]
    assert np.array_equal(replies.sums["vector"], 2 * GOOD[0])
    assert [n.facts["why"] for n in wired.notes.notes if n.what == "declined"] == ["not at this hour"]


def test_each_party_may_be_asked_something_of_its_own(wired: Wired) -> None:
    seen: dict[str, int] = {}

    def act() -> None:
        for name in NAMES:
            payload = wired.lines[name].pull(10)
            assert payload is not None
            with payload:
                body = payload.body.read()
            seen[name] = int(read_tree(body, len(body))["mine"])
            assert wired.push(name, answer()).accepted

    wired.ask(act, each={p: {"mine": 10 * p} for p in range(3)})
    assert seen == {"ada": 0, "ben": 10, "cleo": 20}


def test_each_party_is_told_which_of_its_answers_was_used_last(wired: Wired) -> None:
    def act() -> None:
        for name in NAMES:
            payload = wired.lines[name].pull(10)
            assert payload is not None
            with payload:
                told[name] = read_envelope(QuestionHead, payload.header.envelope).used
            assert wired.push(name, answer()).accepted

    told: dict[str, int] = {}
    wired.ask(act)
    assert told == {"ada": -1, "ben": -1, "cleo": -1}
    wired.hub.settle(np.array([4, -1, 2], np.int32))
    wired.ask(act)
    assert told == {"ada": 4, "ben": -1, "cleo": 2}


def whats(wired: Wired) -> list[str]:
    return [note.what for note in wired.notes.notes]


def test_below_its_quorum_a_question_stays_open_until_who_was_away_is_back(wired: Wired) -> None:
    wired.hub.require(Quorum(2), {"train"})
    wired.hub.goodbye("ben")
    wired.hub.goodbye("cleo")

    def act() -> None:
        assert wired.push("ada", answer()).accepted
        end = time.monotonic() + 10
        while wired.hub.snapshot()["needed"] != 2:
            assert time.monotonic() < end
            time.sleep(0.02)
        wired.lines["ben"].hello(write_envelope(Hello("ben", 5, DATA)))
        assert wired.push("ben", answer()).accepted

    assert wired.ask(act).parties.tolist() == [0, 1]
    (waited,) = [note for note in wired.notes.notes if note.what == "waiting"]
    assert waited.facts == {"there": 1, "needed": 2}
    assert wired.hub.snapshot()["needed"] == 0


def test_a_required_party_is_waited_for_though_there_are_enough(wired: Wired) -> None:
    wired.hub.require(Quorum(1, frozenset({2})), {"train"})
    wired.hub.goodbye("cleo")

    def act() -> None:
        for name in ("ada", "ben"):
            assert wired.push(name, answer()).accepted
        end = time.monotonic() + 10
        while wired.hub.snapshot()["awaited"] != ["cleo"]:
            assert time.monotonic() < end
            time.sleep(0.02)
        assert wired.push("cleo", answer()).accepted

    assert wired.ask(act).parties.tolist() == [0, 1, 2]


def test_a_quorum_that_declines_is_not_waited_for(wired: Wired) -> None:
    """Whoever has declined does not answer this question any more: the round is over, and does not count."""
    wired.hub.require(Quorum(3), {"train"})

    def act() -> None:
        for name in ("ada", "ben"):
            assert wired.push(name, answer()).accepted
        wired.decline("cleo", "training failed", "declined")

    assert wired.ask(act).parties.tolist() == [0, 1]


def test_who_is_away_does_not_hold_up_those_who_can_begin_anew(wired: Wired) -> None:
    """Two have declined, as after a lost session, and the third does not come back: a new question goes to the two."""
    wired.hub.require(Quorum(1), {"train"})
    wired.hub.goodbye("cleo")
    replies = wired.ask(lambda: [wired.decline(name, "another session", "declined") for name in ("ada", "ben")])
    assert replies.parties.tolist() == []


def test_patience_ends_a_wait_for_answers(wired: Wired) -> None:
    wired.hub.require(Quorum(3), {"train"})
    wired.hub._times = Times(slowest=1e6, silence=3.0, patience=0.3)
    wired.hub.goodbye("cleo", write_envelope(Goodbye("allow_plain: not here")))
    failed: list[NobodyThere] = []

    def ask() -> None:
        try:
            wired.hub.ask(Ask(np.arange(3), WHAT, {"t": 0, "broadcast": np.zeros(3, np.float32)}))
        except NobodyThere as reason:
            failed.append(reason)

    thread = threading.Thread(target=ask)
    thread.start()
    for name in ("ada", "ben"):
        assert wired.push(name, answer()).accepted
    thread.join(20)
    assert "2 of 3 parties came within 0.3 s; cleo refuses: allow_plain: not here" in str(failed[0])


def test_who_refuses_by_its_policy_is_not_there_and_is_named(wired: Wired) -> None:
    wired.lines["ben"].leave(write_envelope(Goodbye("allow_plain: the server would read the vector")))
    wired.ask(
        lambda: [
            wired.decline("ada", "this party takes part at 20:00-06:00 only", NOT_ALLOWED),
            wired.push("cleo", answer()),
        ]
    )
    assert wired.hub.online().tolist() == [2]
    why = {"ada": "this party takes part at 20:00-06:00 only", "ben": "allow_plain: the server would read the vector"}
    assert wired.hub.snapshot()["refused"] == why
    told = {n.facts["party"]: n.facts["why"] for n in wired.notes.notes if n.what == "refused"}
    assert told == why
    wired.lines["ada"].hello(write_envelope(Hello("ada", 5, DATA)))
    assert wired.hub.online().tolist() == [0, 2]
    assert whats(wired)[-1] == "joined"


def test_who_has_only_said_hello_is_not_there_yet(wired: Wired) -> None:
    """It looks at the job, and may refuse it: the run does not begin with it."""
    wired.hub.goodbye("ben")
    wired.lines["ben"].hello(write_envelope(Hello("ben", 5, DATA)))
    assert wired.hub.online().tolist() == [0, 2]
    wired.lines["ben"].pull(0.0)
    assert wired.hub.online().tolist() == [0, 1, 2]


@pytest.mark.parametrize(("failed", "kind"), [(False, RunOver), (True, RunFailed)])
def test_a_party_is_told_whether_the_run_has_finished_or_failed(wired: Wired, failed: bool, kind: type) -> None:
    wired.hub.end("the run is over: so it is", failed=failed)
    with pytest.raises(kind, match="so it is"):
        wired.lines["ada"].pull(1.0)
    with pytest.raises(kind, match="so it is"):  # one that was started again, or comes only now
        wired.lines["ben"].hello(write_envelope(Hello("ben", 5, DATA)))
    assert wired.hub.snapshot()["untold"] == [*NAMES]
    wired.lines["ada"].leave()
    assert wired.hub.snapshot()["untold"] == ["ben", "cleo"]
    assert "left" not in whats(wired), "it takes part to the end"


def test_a_goodbye_with_control_characters_is_refused(wired: Wired) -> None:
    said = write_envelope(Goodbye("no")).replace(b"no", b"\x1bo")
    with pytest.raises(Refused, match="the bytes are no Goodbye"):
        wired.lines["ada"].leave(said)
    assert wired.hub.snapshot()["refused"] == {}


def test_the_clock_of_a_hub_stands_still_while_its_process_does() -> None:
    now = [0.0]
    clock = AwakeClock(lambda: now[0])
    for now[0] in (1.0, 2.0, 62.0, 63.0):
        found = clock()
    assert found == 5.0  # of the minute in which nobody looked, two seconds are left


def test_a_line_that_is_new_counts_between_rounds_and_all_look_again(wired: Wired) -> None:
    def act() -> None:
        wired.listed["dana"] = "key of dana"
        with pytest.raises(Unreachable, match="takes part from the next round on"):
            dana.hello(hello)
        for name in NAMES:  # nobody loses the answer that it is at
            assert wired.push(name, answer()).accepted

    dana = PartyTransport(wired.lines["ada"]._address, Insecure("dana"), times=Times(patience=0.1))
    hello = write_envelope(Hello("dana", 5, DATA))
    assert wired.ask(act).parties.tolist() == [0, 1, 2]
    wired.hub.wait_for(1, 5.0)
    assert wired.hub.renewed
    assert wired.hub.online().tolist() == []  # each looks at the job again, with one more in it
    with pytest.raises(HelloFirst):
        wired.lines["ada"].pull(0.0)
    welcome = read_envelope(Welcome, dana.hello(hello))
    dana.close()
    assert welcome.members == {"ada": 0, "ben": 1, "cleo": 2, "dana": 3}
    assert [note.facts for note in wired.notes.notes if note.what == "roster"] == [{"added": "dana"}]


def test_a_line_that_is_gone_counts_at_once_and_nobody_else_notices(wired: Wired) -> None:
    del wired.listed["ben"]
    wired.hub.wait_for(1, 5.0)
    assert not wired.hub.renewed
    assert wired.hub.online().tolist() == [0, 2]
    wired.hub._live = False  # as an edge is
    with pytest.raises(Refused, match="ben is not in the roster"):
        wired.lines["ben"].hello(write_envelope(Hello("ben", 5, DATA)))


def test_a_key_that_is_replaced_keeps_its_number_and_is_told_to_all(wired: Wired) -> None:
    ada, other = key_text(bytes(range(32))), key_text(bytes(range(1, 33)))
    wired.listed["ada"] = ada
    hello = write_envelope(Hello("ada", 5, DATA))
    for key in (ada, other):
        wired.listed["ada"] = key
        welcome = read_envelope(Welcome, wired.lines["ada"].hello(hello))
        assert welcome.number == 0
        assert hinted(welcome.members, welcome.keys)["ada"] == base64.b64decode(key)[:4]
    wired.hub.wait_for(1, 5.0)
    assert wired.hub.renewed
    assert [note.facts for note in wired.notes.notes if note.what == "roster"] == [{"changed": "ada"}]
