"""Federate is a program like others: one role that many play, questions, handlers, and a run that is told the rest."""

from __future__ import annotations

import numpy as np

import atoll
from atoll.core.effects import drive
from atoll.core.program import Agreed, Program
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
