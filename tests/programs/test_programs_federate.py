"""Federate is a program like others: one role that many play, questions, handlers, and a run that is told the rest."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.effects import Ask, Note, Replies, drive
from atoll.core.program import Agreed, Program
from atoll.core.tree import Array, Tree
from atoll.core.world import World
from atoll.job.assemble import Assembled
from atoll.testing import Loopback


def made(rounds: int = 2) -> Assembled:
    data = atoll.data.load("wine").split(5, seed=0)
    job = atoll.Job(atoll.FedSGD(atoll.models.softmax()), atoll.All(), rounds=rounds)
    return atoll.assemble(job, data)


def test_federate_is_a_program() -> None:
    assembled = made()
    program: Program = assembled.program
    agreed = Agreed({"party": assembled.agreed.data["party"]}, rounds=2)
    program.check(agreed)
    (role,) = program.roles.values()
    assert role.many
    assert role.holds == "samples"
    asked, answered = {q.name for q in program.questions(agreed)}, program.handlers("party", agreed)
    assert asked == {"train/contribute"}
    assert answered.keys() == {"train/contribute", "evaluate/test"}  # the latter at the server, on data of its own
    assert {"server", "network"} <= program.seen().keys()


def test_rounds_are_those_that_were_agreed_on() -> None:
    """The same program, told of another number of rounds, of a world and of everybody."""
    assembled = made(rounds=3)
    program: Program = assembled.program
    runtime = Loopback({"train/contribute": assembled.handlers["train/contribute"]}, assembled.splits["train"])
    judged = Loopback({"evaluate/test": assembled.handlers["evaluate/test"]}, assembled.splits["test"])
    plain, runtime.ask = runtime.ask, lambda ask: (judged.ask if ask.what == "evaluate/test" else plain)(ask)
    agreed = Agreed(assembled.agreed.data, rounds=1)
    state = drive(program.run({"party": np.arange(5)}, agreed, World.simulated(0), None), runtime)
    assert [note.what for note in runtime.notes] == ["evaluation", "round", "evaluation", "end"]
    assert int(runtime.kept[-1]["rounds"]) == 1
    expected = atoll.simulate(atoll.Job(atoll.FedSGD(atoll.models.softmax()), atoll.All(), rounds=1),
                              atoll.data.load("wine").split(5, seed=0), workers=0)  # fmt: skip
    assert np.allclose(state["params"], expected.vector, rtol=1e-5)


class Watched:
    """Serves a program as a simulator of one process does, and remembers which models were kept and shown."""

    def __init__(self, assembled: Assembled, after: int = 10**6) -> None:
        self.loops = {
            name: Loopback({name: handler}, assembled.splits[handler.split])
            for name, handler in assembled.handlers.items()
        }
        self.kept: list[Tree] = []
        self.notes: list[Note] = []
        self.shown: list[tuple[str, bool]] = []  # the question, and whether a checkpoint has its model
        self.after = after

    def ask(self, ask: Ask) -> Replies:
        model = np.asarray(ask.body["broadcast"]["params"])
        self.shown.append((ask.what, any(np.array_equal(kept["state"]["params"], model) for kept in self.kept)))
        if len(self.shown) > self.after:
            raise KeyboardInterrupt
        return self.loops[ask.what].ask(ask)

    def together(self, asks: tuple[Ask, ...]) -> tuple[Replies, ...]:
        return tuple(map(self.ask, asks))

    def checkpoint(self, memory: Tree) -> None:
        self.kept.append(memory)

    def note(self, note: Note) -> None:
        self.notes.append(note)

    def settle(self, used: Array) -> None:
        return


def test_a_checkpoint_has_every_model_before_anybody_is_shown_it() -> None:
    assembled = made(rounds=3)
    watched = Watched(assembled)
    drive(assembled.running(None), watched)
    assert [what for what, _ in watched.shown] == ["evaluate/test", *["train/contribute", "evaluate/test"] * 3]
    assert all(kept for _, kept in watched.shown)
    assert "unseen" not in watched.kept[-1], "the last one has what was seen of its model"


def test_a_run_that_is_killed_before_its_model_was_evaluated_does_so_first() -> None:
    whole, assembled = Watched(made(rounds=3)), made(rounds=3)
    drive(assembled.running(None), whole)
    for after in range(1, 7):
        cut = Watched(assembled, after)
        with pytest.raises(KeyboardInterrupt):
            drive(assembled.running(None), cut)
        resumed = Watched(assembled)
        drive(assembled.running(cut.kept[-1]), resumed)
        assert resumed.shown[0][0] == "evaluate/test"
        assert np.array_equal(resumed.kept[-1]["state"]["params"], whole.kept[-1]["state"]["params"])
        curves = [kept[-1]["curves"]["test.loss"] for kept in (resumed.kept, whole.kept)]
        assert np.array_equal(*curves)
