"""A runtime that holds a program of a federation to its laws: it reads every message, loses answers, and resumes runs.

`atoll.testing.check_program` uses it for programs such as `federate`, whose parties hold splits of samples and may be
asked with a fold, a goal and a settlement; each law that does not hold raises AssertionError.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from atoll.core.effects import Ask, Cohort, Note, Replies, drive
from atoll.core.party import Group, Handler, Memory
from atoll.core.program import Agreed, Program
from atoll.core.question import Fault, Question
from atoll.core.tree import Array, Tree, leaves, nest
from atoll.core.world import World
from atoll.data.federated import Federated
from atoll.job.assemble import summary_of
from atoll.runtimes.local.memory import PartyMemory, Recalled
from atoll.runtimes.local.simulator import Simulator
from atoll.runtimes.network.messages.trees import read_tree, write_tree
from atoll.select.available import latency

_NEAR = 1e-5  # how far the answer of a group may be from that of its parties one by one, relative to its size
_MEASURED = {"seconds", "work", "compile", "elapsed", "died"}  # facts that no two runs share
_SERVER = "test"  # the split that the server holds: what is asked of it reaches no party


class Federation(NamedTuple):
    """Parties that hold splits of samples, and what they agree on."""

    data: Federated
    agreed: Agreed


def federation_of(program: Program, data: Mapping[str, object], rounds: int) -> Federation | None:
    """Return the parties of a program whose handlers read splits of samples; None where roles hold what they are."""
    for role, held in data.items():
        if isinstance(held, Federated) and set(program.roles) == {role}:
            agreed = Agreed({role: summary_of(held)._replace(parties=len(held))}, rounds)
            if all(handler.split != role for handler in program.handlers(role, agreed).values()):
                return Federation(held, agreed)
    return None


class Outcome(NamedTuple):
    """A run whose every message was read: what the program found, noted and stored, what the parties remember."""

    found: Tree
    notes: list[Note]
    checkpoints: list[tuple[Tree, Array | None]]  # each with the answers that were used by then
    remembered: Recalled
    late: bool  # whether late answers counted: what is on its way is in no checkpoint


def check_federation(program: Program, parties: Federation, world: World) -> Outcome:
    """Hold a program to its laws: as it is, a second time, without the first answer, resumed at every checkpoint."""
    with tempfile.TemporaryDirectory() as folder:  # for what parties remember at each checkpoint
        whole, again = observed(program, parties, world, Path(folder)), observed(program, parties, world)
        _same(again, whole, "a second run gives another result")
        observed(program, parties, world, lose=True)
        for stored in () if whole.late else whole.checkpoints:
            resumed = observed(program, parties, world, Path(folder), stored=stored)
            _same(resumed, whole, f"a run resumed after ask {int(stored[0]['t'])} gives another result")
    return whole


def observed(
    program: Program, parties: Federation, world: World, folder: Path | None = None, *, lose: bool = False,
    stored: tuple[Tree | None, Array | None] = (None, None),
) -> Outcome:  # fmt: skip
    """Run a program with every message written and read; with `lose` the first answer to the first ask is lost."""
    (role,), (data, agreed) = program.roles, parties
    questions = {question.name: question for question in program.questions(agreed)}
    kept, (memory, used) = _Kept(), stored
    handlers: dict[str, Handler] = {
        name: handler if handler.split == _SERVER else _Held(handler, name, questions.get(name))
        for name, handler in program.handlers(role, agreed).items()
    }
    splits = {"train": data.train, "local": data.local, _SERVER: data.test}
    there = {name: samples for name, samples in splits.items() if samples is not None}
    simulator = Simulator(
        handlers, there, world, availability=_Losing(world.seed, lose), journal=kept, memory=PartyMemory(folder)
    )
    everybody = np.arange(len(data))
    posted = _Posted(simulator, questions, {n for n, h in handlers.items() if h.split == _SERVER}, len(data), used)
    try:
        if memory is not None:
            simulator.restore(memory)
        found = drive(program.run({role: everybody}, agreed, world, memory), posted)
        remembered = simulator.memory.recall(everybody)
    finally:
        simulator.close()
    _check_notes(kept.notes, int(memory["rounds"]) if memory is not None else 0)
    assert kept.checkpoints or memory is not None, "it makes no checkpoint: a crash would lose all"
    checkpoints = list(zip(kept.checkpoints, posted.settled, strict=True))
    return Outcome(found, kept.notes, checkpoints, remembered, posted.late)


@dataclass(frozen=True)
class _Losing:
    """Everybody is there, but for the first party at the first ask."""

    seed: int
    first: bool

    def lost(self, who: Cohort, t: int) -> Array:
        return (np.arange(len(who)) == 0) & self.first & (t == 0)

    def latency(self, who: Cohort, t: int) -> Array:
        return latency(who, t, self.seed)


@dataclass(frozen=True)
class _Kept:
    """Stores checkpoints as a folder does: as flat arrays, which are read again."""

    notes: list[Note] = field(default_factory=list)
    checkpoints: list[Tree] = field(default_factory=list)

    def note(self, note: Note) -> None:
        self.notes.append(note)

    def checkpoint(self, memory: Tree) -> None:
        before = self.checkpoints[-1] if self.checkpoints else {"t": 0, "rounds": 0}
        for name in ("t", "rounds"):
            assert name in memory, f"a checkpoint without '{name}': say how many asks (t) and rounds are done"
            assert int(memory[name]) >= int(before[name]), f"'{name}' of a checkpoint is below that of the one before"
        self.checkpoints.append(nest({path: np.array(leaf) for path, leaf in leaves(memory)}))


@dataclass(frozen=True)
class _Held(Handler):
    """Works every answer out twice, from arguments that cannot be changed, and holds it against its declaration."""

    inner: Handler
    what: str
    question: Question | None

    @property
    def split(self) -> str:
        return self.inner.split

    @property
    def group_size(self) -> int:
        return self.inner.group_size

    def cache_key(self, body: Tree) -> bytes | None:
        return self.inner.cache_key(body)

    def prepare(self, body: Tree, group: Group) -> Sequence[object]:
        return self.inner.prepare(body, group)

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]:
        assert self.question, f"'{self.what}' is answered, and no question is declared so"
        for leaf in (*dict(leaves(body)).values(), *group.memory.leaves.values()):
            if isinstance(leaf, np.ndarray):
                leaf.flags.writeable = False
        first, second = self.inner(body, group), self.inner(body, group)
        for part, again in zip(first, second, strict=True):
            assert part.keys() == again.keys(), f"'{self.what}' answers or remembers this or that"
            for name, leaf in part.items():
                same = np.array_equal(np.asarray(leaf), np.asarray(again[name]))
                assert same, f"'{self.what}': '{name}' differs when it is worked out again"
        self._check_alone(body, group, {**first[0], **first[1]})
        return self._read(first[0], len(group)), first[1]

    def _check_alone(self, body: Tree, group: Group, found: Tree) -> None:
        for k in range(len(group)) if len(group) > 1 else ():
            reply, memory = self.inner(body, group.only(k))
            for name, leaf in (*reply.items(), *memory.items()):
                same = _near(np.asarray(leaf)[0], np.asarray(found[name])[k])
                assert same, f"'{self.what}': '{name}' of a party alone differs from it in a group"

    def _read(self, reply: Tree, parties: int) -> Tree:
        """Write what each party answers and read it against its layout, as a server does."""
        assert self.question
        layout, rows = self.question.answers, list[Mapping[str, Array]]()
        for k in range(parties):
            told = write_tree(nest({path: np.asarray(leaf)[k : k + 1] for path, leaf in leaves(reply)}))
            try:
                rows.append(dict(leaves(read_tree(told, layout.max_bytes, schema=layout))))
            except Fault as fault:
                raise AssertionError(f"the answer to '{self.what}' is not as it is declared: {fault}") from None
        return {path: np.concatenate([row[path] for row in rows]) for path in rows[0]}


def _near(one: Array, other: Array) -> bool:
    if one.dtype.kind == "u":  # of a ring: what is near may have wrapped around
        apart = np.abs((one - other).view(one.dtype.name[1:]).astype(np.float64))
        return bool((apart <= 2 + _NEAR * np.abs(other.view(other.dtype.name[1:]).astype(np.float64))).all())
    return np.allclose(one, other, rtol=_NEAR, atol=_NEAR)


class _Posted:
    """Serves a program's effects through a simulator, and holds each against what was declared and what came before."""

    def __init__(
        self, inner: Simulator, questions: Mapping[str, Question], own: set[str], parties: int, used: Array | None
    ) -> None:
        self._inner, self._questions, self._own, self._parties = inner, questions, own, parties
        self._answered: list[set[int]] = [set() for _ in range(parties)]
        self._used = used
        self.settled: list[Array | None] = []  # at each checkpoint
        self._unsettled = False  # whether an answer came since the last settlement
        self._committed = False  # whether answers counted that nobody settled
        self.late = False

    def ask(self, ask: Ask) -> Replies:
        if ask.what in self._own:
            return self._inner.ask(ask)
        assert ask.what in self._questions, f"'{ask.what}' is no question that it declares"
        who, layout = np.asarray(ask.to), self._questions[ask.what]
        known = len(np.unique(who)) == len(who) and bool(np.isin(who, np.arange(self._parties)).all())
        assert known, f"'{ask.what}' is asked of somebody twice, or of nobody who is there: {who.tolist()}"
        goal = ask.goal is None or ask.goal >= 1
        assert goal, f"'{ask.what}' needs {ask.goal} answers of {len(who)} parties"
        strange = sorted(set(ask.fold) - layout.answers.leaves.keys())
        assert not strange, f"'{ask.what}' folds '{strange[:1]}', which no answer has"
        try:
            body = read_tree(write_tree(ask.body), layout.asks.max_bytes, schema=layout.asks)
        except Fault as fault:
            raise AssertionError(f"'{ask.what}' is not asked as it is declared: {fault}") from None
        self.late = self.late or ask.max_staleness is not None
        replies = self._inner.ask(ask._replace(body=body))
        ages = replies.each.get("age", np.zeros(len(replies), np.int64))
        for party, age in zip(replies, np.asarray(ages).tolist(), strict=True):
            self._answered[party].add(int(ask.body["t"]) - int(age))
        self._unsettled = self._unsettled or (len(replies) > 0 and layout.contributes)
        return replies

    def together(self, asks: tuple[Ask, ...]) -> tuple[Replies, ...]:
        return tuple(self.ask(ask) for ask in asks)

    def settle(self, used: Array) -> None:
        used = np.asarray(used)
        assert used.shape == (self._parties,), "settle says of every party which answer was used last"
        assert not self._committed, "it settles only now: what was remembered before has counted already"
        before = np.full(self._parties, -1) if self._used is None else self._used
        assert (used >= before).all(), "settle takes back what was used before"
        for party in np.flatnonzero(used > before).tolist():
            t = int(used[party])
            assert t in self._answered[party], f"settle uses an answer of party {party} to ask {t}, which it never gave"
        self._used, self._unsettled = used.copy(), False
        self._inner.settle(used)

    def checkpoint(self, memory: Tree) -> None:
        self._committed = self._committed or (self._unsettled and self._used is None)
        self.settled.append(self._used)
        self._inner.checkpoint(memory)

    def note(self, note: Note) -> None:
        self._inner.note(note)


def _check_notes(notes: Sequence[Note], done: int) -> None:
    """Rounds are noted in order, and the end last, with its reason."""
    for note in notes:
        if note.what in ("round", "empty"):
            assert done <= note.t <= done + 1, f"it notes round {note.t} after round {done}: note each when it is done"
            done = note.t
    assert notes and notes[-1].what == "end" and notes[-1].facts.get("reason"), "it does not note why it ends"  # noqa: PT018


def _same(one: Outcome, other: Outcome, sentence: str) -> None:
    _equal(dict(leaves(one.found)), dict(leaves(other.found)), sentence)
    _equal(one.remembered.leaves, other.remembered.leaves, f"{sentence}: parties remember something else")
    mine, theirs = ([_facts(note) for note in run.notes] for run in (one, other))
    assert mine == theirs[len(theirs) - len(mine) :], f"{sentence}: it notes something else"


def _facts(note: Note) -> str:
    return repr((note.what, {name: fact for name, fact in note.facts.items() if name not in _MEASURED}))


def _equal(one: Mapping[str, object], other: Mapping[str, object], sentence: str) -> None:
    assert one.keys() == other.keys(), sentence
    for name, leaf in one.items():
        assert np.array_equal(np.asarray(leaf), np.asarray(other[name])), f"{sentence} ('{name}')"
