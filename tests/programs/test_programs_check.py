"""`check_program` holds `federate` to the laws of programs, and a program that breaks one of them is caught."""

from __future__ import annotations

import types
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.effects import Ask, Checkpoint, Cohort, Effect, Note, Running, Settle
from atoll.core.party import Group, Handler, Memory
from atoll.core.program import Agreed, Program, Role
from atoll.core.question import Layout, Leaf, Question
from atoll.core.tree import Tree
from atoll.core.world import World
from atoll.data import Federated
from atoll.testing import check_program

DATA: Federated = atoll.data.load("wine").split(6, test=0.3, seed=0)
MODEL = atoll.models.softmax()
JOBS = {
    "sums": atoll.Job(atoll.FedSGD(MODEL), atoll.Uniform(0.5)),
    "goal": atoll.Job(atoll.FedAvg(MODEL), atoll.Oversample(atoll.Count(3), 2.0)),
    "memory": atoll.Job(atoll.FedAvg(MODEL), atoll.Count(4), atoll.Channel([atoll.Weigh(), atoll.TopK(0.2)])),
    "ring": atoll.Job(
        atoll.FedAvg(MODEL),
        atoll.All(),
        atoll.Channel([atoll.Clip(1.0), atoll.Average(), atoll.Ring()], atoll.SecureSum()),
    ),
    "late": atoll.Job(atoll.FedAvg(MODEL), atoll.All(), atoll.Channel([atoll.Weigh()], atoll.Buffered(3))),
    "rows": atoll.Job(atoll.FedSGD(MODEL), atoll.All(), atoll.Channel([atoll.Average()], atoll.Each(atoll.Median()))),
}


@pytest.mark.parametrize("name", JOBS)
def test_federate_obeys_the_laws_of_programs(name: str) -> None:
    run = check_program(atoll.assemble(JOBS[name], DATA).program, {"party": DATA}, rounds=3)
    assert run.reason == "all 3 rounds done"
    expected = atoll.simulate(replace(JOBS[name], rounds=3), DATA, workers=0)
    assert np.array_equal(run.found["params"], expected.vector)  # a message that is written loses no bit


Lie = Callable[[Effect], Effect | None]


@types.coroutine
def lying(running: Running[Tree], lie: Lie) -> Generator[Any, Any, Tree]:
    """Pass a program's effects on as the lie has them; None: not at all."""
    reply = None
    while True:
        try:
            effect = lie(running.send(reply))
        except StopIteration as stop:
            return dict(stop.value)
        reply = (yield effect) if effect is not None else None


@dataclass(frozen=True)
class Liar(Program):
    """A federation's program with one lie in it."""

    inner: Program
    lie: Callable[[], Lie] = lambda: lambda effect: effect
    handle: Callable[[Handler], Handler] = lambda handler: handler
    declare: Callable[[Question], Question] = lambda question: question
    about: str = "trains"
    says: str = "all"

    @property
    def roles(self) -> Mapping[str, Role]:
        return {"party": Role(self.about, "samples", many=True)}

    def questions(self, agreed: Agreed) -> tuple[Question, ...]:
        return tuple(map(self.declare, self.inner.questions(agreed)))

    def handlers(self, role: str, agreed: Agreed) -> Mapping[str, Handler]:
        found = self.inner.handlers(role, agreed)
        return {name: self.handle(one) if name.endswith("contribute") else one for name, one in found.items()}

    def seen(self) -> Mapping[str, str]:
        return {"server": self.says} if self.says else {}

    def run(self, who: Mapping[str, Cohort], agreed: Agreed, world: World, memory: Tree | None) -> Running[Tree]:
        return lying(self.inner.run(who, agreed, world, memory), self.lie())  # type: ignore[return-value]


def of(kind: type, change: Callable[[Any, int], Effect | None]) -> Callable[[], Lie]:
    """Change every effect of a kind; the second argument counts them."""

    def begin() -> Lie:
        count = iter(range(10**6))
        return lambda effect: change(effect, next(count)) if isinstance(effect, kind) else effect

    return begin


def trained(change: Callable[[Ask, int], Ask]) -> Callable[[], Lie]:
    return of(Ask, lambda ask, k: change(ask, k) if ask.what == "train/contribute" else ask)


@dataclass(frozen=True)
class Handling(Handler):
    """A handler whose answer is changed."""

    inner: Handler
    change: Callable[[dict[str, Any], Tree, Group], dict[str, Any]]
    split: str = "train"
    group_size: int = 3

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]:
        reply, memory = self.inner(body, group)
        return self.change(dict(reply), body, group), memory


_random = np.random.default_rng()


def grown(reply: dict[str, Any], body: Tree, group: Group) -> dict[str, Any]:
    body["broadcast"]["params"] += 1.0
    return reply


def typed(question: Question) -> Question:
    """Declare other numbers than those that are sent."""
    leaves = {**question.answers.leaves, "finite": Leaf("uint8", (1,))}
    return question._replace(answers=Layout(leaves))


def handling(change: Callable[[dict[str, Any], Tree, Group], dict[str, Any]]) -> dict[str, Any]:
    return {"handle": lambda handler: Handling(handler, change)}


def without(*names: str) -> Callable[[Checkpoint, int], Checkpoint]:
    return lambda one, _: Checkpoint({name: leaf for name, leaf in one.memory.items() if name not in names})


def noted(change: Callable[[Note], Note | None]) -> dict[str, Any]:
    return {"lie": of(Note, lambda note, _: change(note))}


LIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "undeclared": ("sums", {"lie": trained(lambda a, _: a._replace(what="train/more"))}, "no question that"),
    "more is told": ("sums", {"lie": trained(lambda a, _: a._replace(body={**a.body, "x": 1}))}, "not asked as it is"),
    "a stranger": ("sums", {"lie": trained(lambda a, _: a._replace(to=np.array([1, 99])))}, "nobody who is there"),
    "twice": ("sums", {"lie": trained(lambda a, _: a._replace(to=np.array([1, 1])))}, "somebody twice"),
    "no goal": ("goal", {"lie": trained(lambda a, _: a._replace(goal=0))}, "needs 0 answers"),
    "a strange fold": ("sums", {"lie": trained(lambda a, _: a._replace(fold=("weight",)))}, "which no answer has"),
    "another type": ("sums", {"declare": typed}, "not as it is declared"),
    "more is answered": ("sums", handling(lambda r, b, g: {**r, "x": r["finite"]}), "not as it is declared"),
    "a draw": ("sums", handling(lambda r, b, g: {**r, "vector": r["vector"] + _random.normal()}), "worked out again"),
    "by the group": ("sums", handling(lambda r, b, g: {**r, "vector": r["vector"] * len(g)}), "differs from it in a"),
    "it writes": ("sums", handling(grown), "read-only"),
    "never answered": ("memory", {"lie": of(Settle, lambda s, k: Settle(s.used + (k > 0)))}, "which it never gave"),
    "taken back": ("memory", {"lie": of(Settle, lambda s, k: Settle(s.used - 9 * (k > 1)))}, "takes back"),
    "settled late": ("memory", {"lie": of(Settle, lambda s, k: s if k > 1 else None)}, "it settles only now"),
    "few": ("memory", {"lie": of(Settle, lambda s, _: Settle(s.used[:2]))}, "says of every party"),
    "forgotten": ("memory", {"lie": of(Checkpoint, without("used"))}, "takes back what was used"),
    "no number": ("sums", {"lie": of(Checkpoint, without("t"))}, "a checkpoint without 't'"),
    "backwards": (
        "sums", {"lie": of(Checkpoint, lambda c, k: Checkpoint({**c.memory, "t": 5 - k}))}, "below that of"
    ),
    "never stored": ("sums", {"lie": of(Checkpoint, lambda c, _: None)}, "makes no checkpoint"),
    "a round too many": (
        "sums", noted(lambda n: Note(n.what, {**n.facts, "round": 2 * n.t}) if n.what == "round" else n), "notes round"
    ),
    "no end": ("sums", noted(lambda n: None if n.what == "end" else n), "why it ends"),
    "a note by chance": ("sums", noted(lambda n: Note(n.what, {**n.facts, "x": _random.normal()})), "something else"),
    "no role": ("sums", {"about": ""}, "says what it is about"),
    "no words": ("sums", {"says": ""}, "seen.. says nothing"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_program_that_breaks_a_law_is_caught(name: str) -> None:
    job, lie, sentence = LIES[name]
    program = atoll.assemble(JOBS[job], DATA).program
    liar = Liar(program, **lie)
    with pytest.raises((AssertionError, RuntimeError), match=sentence):
        check_program(liar, {"party": DATA}, rounds=2)


def test_a_liar_without_a_lie_passes() -> None:
    for job in ("sums", "memory"):
        assert check_program(Liar(atoll.assemble(JOBS[job], DATA).program), {"party": DATA}, rounds=2).found
