"""What parts ask and answer is laid out as the job declares before it runs, so that it may travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("atoll.combine.layouts")

from parts.active import Active, Valued
from parts.componentwise import Componentwise, Rest
from parts.distil import FedMD, JaxNet, RidgeNet
from parts.drift import FedDyn, FedLin, FedNova, Scaffold
from parts.personal import Ditto, FedPer
from parts.small import Scale
from parts.statistics import KMeans, Logit, Query
from parts.trees import Boost

import atoll
from atoll.core.effects import Ask, Note, Replies, drive
from atoll.core.question import Question
from atoll.core.tree import Array, Tree
from atoll.job.assemble import Dropouts
from atoll.journal import Journal
from atoll.runtimes.local.simulator import Simulator

SUMS, AVERAGE = atoll.Channel([]), atoll.Channel([atoll.Average()])
SOFTMAX = atoll.models.softmax()
JOBS: dict[str, tuple[str, Any, Any, Any]] = {
    "scaffold": ("digits", Scaffold(SOFTMAX), atoll.Count(3), AVERAGE),
    "feddyn": ("digits", FedDyn(SOFTMAX), atoll.Count(3), AVERAGE),
    "fedlin": ("digits", FedLin(SOFTMAX), atoll.Count(3), AVERAGE),
    "fednova": ("digits", FedNova(SOFTMAX, (1, 2)), atoll.All(), atoll.Channel()),
    "boost": ("breast_cancer", Boost(4), atoll.All(), SUMS),
    "logit": ("breast_cancer", Logit(), atoll.All(), SUMS),
    "kmeans": ("digits", KMeans(), atoll.All(), SUMS),
    "query": ("digits", Query(), atoll.All(), SUMS),
    "componentwise": ("diabetes", Componentwise(4), Rest(), SUMS),
    "active": ("digits", Valued(SOFTMAX), Active(3), atoll.Channel([Scale(), atoll.Weigh()])),
    "ditto": ("digits", Ditto(SOFTMAX), atoll.Count(3), AVERAGE),
    "fedper": ("digits", FedPer(SOFTMAX, "1.dense.b"), atoll.Count(3), AVERAGE),
    "fedmd": ("digits", FedMD((JaxNet(), RidgeNet())), atoll.All(), AVERAGE),
}


@dataclass
class Checked:
    """A runtime that holds every question and every answer against its declaration."""

    runtime: Simulator
    questions: dict[str, Question]

    def ask(self, ask: Ask) -> Replies:
        if ask.what == "evaluate/test":  # the server asks itself
            return self.runtime.ask(ask)
        question = self.questions[ask.what]
        question.asks.check(ask.body)
        replies = self.runtime.ask(ask._replace(fold=()))
        for k in range(len(replies)):
            question.answers.check_leaves({name: leaf[k : k + 1] for name, leaf in replies.each.items()})
        sums = {name: replies.each[name].sum(0) for name in ask.fold if len(replies)}
        return Replies(replies.parties, {n: v for n, v in replies.each.items() if n not in sums}, sums, replies.facts)

    def checkpoint(self, memory: Tree) -> None:
        self.runtime.checkpoint(memory)

    def note(self, note: Note) -> None:
        self.runtime.note(note)

    def settle(self, used: Array) -> None:
        self.runtime.settle(used)


@pytest.mark.parametrize("name", JOBS)
def test_questions_and_answers_are_as_declared(name: str) -> None:
    use, method, select, channel = JOBS[name]
    data = atoll.data.build({"use": use, "clients": 4, "test": 0.2}, 0)
    job = atoll.Job(method, select, channel, rounds=4, eval_every=2, availability=atoll.Always(drop=0.2))
    made = atoll.assemble(job, data)
    questions = made.questions(len(data))
    assert all(question.exposure == "plain" for question in questions.values())
    runtime = Simulator(
        made.handlers, made.splits, made.program.world, availability=Dropouts(0.2, 0), journal=Journal()
    )  # fmt: skip
    try:
        drive(made.running(), Checked(runtime, questions))
    finally:
        runtime.close()
    assert {what.partition("/")[0] for what in questions} >= set(made.job.method.phases)
