"""Below its quorum a run waits, then fails; it never counts a round that too few answered. For every combine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc")

import atoll
from atoll.core.effects import Note, drive
from atoll.core.world import World
from atoll.data import build
from atoll.job.assemble import Assembled, assemble, summary_of
from atoll.job.quorum import quorum_of
from atoll.runtimes.local.worker import Worker
from atoll.runtimes.network.edge import Level
from atoll.runtimes.network.messages.calls import Times
from atoll.runtimes.network.messages.envelope import AnswerHead, Hello, QuestionHead, read_envelope, write_envelope
from atoll.runtimes.network.messages.payload import Header, header_of
from atoll.runtimes.network.server.hub import Hub, NobodyThere
from atoll.runtimes.network.server.serve import members_of, remote
from atoll.runtimes.network.server.store import Store
from atoll.runtimes.network.trust.roster import key_text

NAMES = ("ada", "ben", "cleo", "dan")
PLAIN = (atoll.Weigh(),)
RING = (atoll.Clip(1.0), atoll.Average(), atoll.Ring())
KINDS: dict[str, tuple[Any, Any]] = {
    "sum": (PLAIN, atoll.Sum()),
    "each": ((atoll.Average(),), atoll.Each(atoll.Median())),
    "secure": (RING, atoll.SecureSum()),
    "light": (RING, atoll.LightSum()),
    "encrypted": (RING, atoll.EncryptedSum()),
    "buffered": (PLAIN, atoll.Buffered(3)),
}
DATA = build({"use": "digits", "clients": 4})


@dataclass
class Run:
    """A hub that drives a job, and parties that call it."""

    hub: Hub
    store: Store
    made: Assembled
    notes: list[Note] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    def note(self, note: Note) -> None:
        self.notes.append(note)

    def checkpoint(self, memory: Any) -> None:
        self.rounds.append(int(memory["rounds"]))

    def train(self, patience: float) -> None:
        """Do what a server does, from the first round on."""
        least = self.made.job.channel.combine.min_cohort(self.made.wire)

        def online(_: int) -> Any:
            self.hub.wait_for(least, patience)
            return self.hub.online()

        program = replace(self.made.program, online=online, splits=())
        drive(replace(self.made, program=program).running(), self.hub)

    def come(self, name: str) -> None:
        self.hub.hello(name, write_envelope(Hello(name, 9, summary_of(DATA).sample)))
        self.hub.next_question(name, 0.0)

    def decline(self, name: str, stop: threading.Event) -> None:
        """Answer every question with a no."""
        while not stop.is_set():
            question = self.hub.next_question(name, 0.05)
            if question is None:
                continue
            head = read_envelope(QuestionHead, question.header.envelope)
            made = header_of("answer", "x", b"")
            said = write_envelope(AnswerHead(head.run, head.number, 0, made.sha256, 0.1, "not now", "declined"))
            self.hub.answer(name, Header(made.kind, made.id, 0, made.sha256, said), question.body)  # type: ignore[arg-type]


@contextmanager
def running(folder: Path, kind: str, **asked: Any) -> Iterator[Run]:
    stages, combine = KINDS[kind]
    made_job = atoll.Job(
        atoll.FedAvg(atoll.models.softmax()), atoll.All(), atoll.Channel(stages, combine), rounds=2, **asked
    )
    times = Times(wait=1.0, answer=5.0, silence=2.0, grace=0.2, patience=1.0)
    with Store(folder) as store:
        store.enrol([(name, key_text(bytes([k]) * 32)) for k, name in enumerate(NAMES)])
        store.create("run")
        store.move("run", "running")
        made = assemble(
            made_job, remote(DATA, [9] * 4), world=World.real(0), agreement=bytes(32), members=lambda: members_of(store)
        )
        hub = Hub(
            "run", store, (run := Run(None, store, made)), Worker({}, {}, World.real(0)), made.questions(4),  # type: ignore[arg-type]
            data=summary_of(DATA).sample, classes=10, job="", manifest=bytes(32),
            roster=lambda: {m.name: m.key for m in store.members()}, times=times,
        )  # fmt: skip
        run.hub = hub
        quorum = quorum_of(made_job, {member.name: member.number for member in store.members()})
        hub.require(quorum, made.program.exchanges)
        run.made = replace(made, program=replace(made.program, quorum=quorum))
        yield run


@pytest.mark.parametrize("asked", [{"min_parties": 3}, {"required": ["dan"]}], ids=["min_parties", "required"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "buffered"])
def test_a_run_without_its_quorum_waits_and_then_fails(tmp_path: Path, kind: str, asked: Any) -> None:
    """Two of four are there; a buffered job has no quorum, and is refused one at its assembly."""
    with running(tmp_path, kind, **asked) as run:
        for name in ("ada", "ben"):
            run.come(name)
        with pytest.raises(NobodyThere, match=r"2 of 3 parties came|not all of dan came"):
            run.train(0.3)
        assert set(run.rounds) == {0}
        assert not [note for note in run.notes if note.what in ("round", "end")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_that_nobody_answers_does_not_count(tmp_path: Path, kind: str) -> None:
    """All are there, and each declines every question: the same round is asked again, until they leave."""
    with running(tmp_path, kind) as run:
        stop = threading.Event()
        threads = [threading.Thread(target=run.decline, args=(name, stop)) for name in NAMES]
        for name, thread in zip(NAMES, threads, strict=True):
            run.come(name)
            thread.start()

        def leave() -> None:
            while sum(note.what == "round" for note in run.notes) < 3:
                time.sleep(0.01)
            stop.set()
            for thread in threads:
                thread.join(5)
            for name in NAMES:
                run.hub.goodbye(name)

        leaving = threading.Thread(target=leave)
        leaving.start()
        try:
            with pytest.raises(NobodyThere, match="0 of"):
                run.train(0.3)
        finally:
            stop.set()
            leaving.join(10)
        assert set(run.rounds) == {0}
        told = [note for note in run.notes if note.what == "round"]
        assert {(note.facts["round"], note.facts["answered"]) for note in told} == {(1, 0)}
        assert "waiting" in [note.what for note in run.notes]
        assert "end" not in [note.what for note in run.notes]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "buffered"])
def test_an_edge_passes_no_question_on_to_too_few(tmp_path: Path, kind: str) -> None:
    with running(tmp_path, kind) as run:
        level = Level(run.hub, run.store, None, lambda: run.made, None)  # type: ignore[arg-type]
        for name in ("ada", "ben"):
            run.come(name)
        with pytest.raises(NobodyThere, match="2 of 4 parties"):
            level.gather(0.3)
        assert np.array_equal(run.hub.online(), [0, 1])
        assert not run.notes[2:], "nothing was asked"
