"""The hub's side of a program: it lets roles meet, puts only declared questions, and starts a round again for a role.

The same code leads a simulation and a federation; a runtime below it says how a question reaches a role.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from atoll.core.effects import Ask, Cohort, Note, Recorder, Replies, Runtime, drive
from atoll.core.errors import AtollError
from atoll.core.method import DataSummary
from atoll.core.program import Agreed, Program
from atoll.core.question import Question
from atoll.core.tree import EMPTY, Array, Tree, leaves, nest
from atoll.core.wire import Mismatch
from atoll.core.world import World
from atoll.programs.roles import END, HELLO, MEET, check_holdings, declared, on_wire, runtime_questions
from atoll.programs.session import read_hello
from atoll.runtimes.roles.memory import NEW


class Unanswered(NamedTuple):
    """Why a party did not answer: its sentence and the code of that; both empty if it said nothing."""

    sentence: str = ""
    code: str = ""


UNSAID = Unanswered()


class Lost(AtollError):
    """A role did not answer; `why` is what it said, if it said anything."""

    code = "role_lost"

    def __init__(self, role: str, what: str, why: Unanswered = UNSAID) -> None:
        super().__init__(f"role {role} gave no answer to '{what}'" + (f": {why.sentence}" if why.sentence else ""))
        self.role, self.what, self.why = role, what, why


class RoleRuntime(Runtime, Protocol):
    """How questions reach roles."""

    def ready(self) -> None:
        """Wait until every role is there."""
        ...

    def declare(self, questions: Mapping[str, Question]) -> None:
        """Learn what may be asked, as it travels, with an axis of parties."""
        ...

    def begin(self, agreed: Agreed) -> None:
        """Begin a session with the parties of roles that many play; the others have met."""
        ...

    def why(self, number: int) -> Unanswered:
        """Say why a party did not answer the last question, if it said so; that is then forgotten."""
        ...

    def lost(self, lost: Lost) -> None:
        """Return if it is worth to begin a new session, or raise why not."""
        ...


class Many(NamedTuple):
    """The parties of a role that many play: their numbers, and what they bring."""

    numbers: Cohort
    summary: DataSummary


class RoleSetup(NamedTuple):
    """A program, who plays in it, and where: all that a conversation needs beside a runtime."""

    program: Program
    roles: Mapping[str, str]  # by role that one plays, the name of who does
    numbers: Mapping[str, int]  # by role that one plays, its number
    rounds: int
    world: World
    many: Mapping[str, Many] = EMPTY  # by role that many play

    @property
    def who(self) -> dict[str, Cohort]:
        """Numbers of the parties, by role."""
        ones = {role: np.array([number], np.int64) for role, number in self.numbers.items()}
        return ones | {role: many.numbers for role, many in self.many.items()}

    @property
    def ones(self) -> Array:
        """Numbers of all who play a role alone: they have keys, and meet."""
        return np.array(sorted(self.numbers.values()), np.int64)

    @property
    def role_of(self) -> dict[int, str]:
        return {int(number): role for role, numbers in self.who.items() for number in numbers}


class Reasons:
    """Takes what a runtime below notes, and remembers why parties declined; see `RoleRuntime.why`."""

    def __init__(self, journal: Recorder) -> None:
        self._journal = journal
        self.why: dict[str, Unanswered] = {}  # by the party, as the runtime calls it

    def note(self, note: Note) -> None:
        if note.what in ("declined", "rejected"):
            self.why[str(note.facts["party"])] = Unanswered(str(note.facts["why"]), str(note.facts.get("code", "")))
        self._journal.note(note)

    def checkpoint(self, memory: Tree) -> None:
        self._journal.checkpoint(memory)


class Ended(NamedTuple):
    """What came of a conversation: what the hub found out, and how many rounds were done."""

    found: Tree
    rounds: int


def converse(
    setup: RoleSetup, runtime: RoleRuntime, memory: Tree | None, begun: Callable[[Agreed], None] = lambda _: None
) -> Ended:
    """Run a program to its end; whenever a role has lost its session, meet again and go on from the last checkpoint.

    Args:
        setup: the program and who plays in it.
        runtime: how questions reach roles.
        memory: the checkpoint of an earlier run, or None.
        begun: is told what everybody brings, when the first session begins.
    """
    while True:
        try:
            runtime.ready()
            used = int(memory["t"]) if memory else NEW
            agreed, questions = _meet(setup, runtime, used)
            begun(agreed)
            begun = _nothing
            conversation = Conversation(setup, runtime, questions, memory)
            before = memory["program"] if memory else None
            try:
                found = drive(setup.program.run(setup.who, agreed, setup.world, before), conversation)
                conversation.end()
            finally:
                memory = conversation.memory
            return Ended(found, conversation.used)
        except Lost as lost:
            runtime.lost(lost)
            done, why = int(memory["t"]) if memory else 0, lost.why.sentence
            runtime.note(Note("again", {"round": done, "role": lost.role, "asked": lost.what, "why": why}))


def _nothing(_: Agreed) -> None:
    return


def _meet(setup: RoleSetup, runtime: RoleRuntime, used: int) -> tuple[Agreed, dict[str, Question]]:
    """Let every role say who it is and what it brings, then tell each what all others said."""
    fixed = runtime_questions(setup.roles)
    runtime.declare({name: on_wire(question, axis=True) for name, question in fixed.items()})
    at = {"t": max(used, 0), "step": 0, "used": used}
    said = _answers(setup, runtime, Ask(setup.ones, HELLO, at))
    hellos = {role: np.asarray(said[number]["hello"]) for role, number in setup.numbers.items()}
    present = {role: read_hello(hello.tobytes(), role, setup.roles[role]) for role, hello in hellos.items()}
    data = {role: one.summary for role, one in present.items()}
    agreed = Agreed(data | {role: many.summary for role, many in setup.many.items()}, setup.rounds)
    check_holdings(setup.program, agreed)
    questions = declared(setup.program, agreed)
    runtime.declare({name: on_wire(question, axis=True) for name, question in questions.items()})
    _answers(setup, runtime, Ask(setup.ones, MEET, {**at, "hellos": hellos}))
    runtime.begin(agreed)
    return agreed, questions


def _answers(setup: RoleSetup, runtime: RoleRuntime, ask: Ask) -> Replies:
    return _whole(setup, runtime, ask, runtime.ask(ask))


def _whole(setup: RoleSetup, runtime: RoleRuntime, ask: Ask, replies: Replies) -> Replies:
    """Return the replies if nobody is missing among them."""
    missing = np.setdiff1d(ask.to, replies.parties).tolist()
    if missing:
        raise Lost(setup.role_of[missing[0]], ask.what, runtime.why(missing[0]))
    return replies


class Conversation:
    """A runtime for a program: gives every question its address, and refuses what was not declared.

    What the program notes is passed on with the next checkpoint: a round that is started again is noted once.
    """

    def __init__(
        self, setup: RoleSetup, runtime: RoleRuntime, questions: Mapping[str, Question], memory: Tree | None
    ) -> None:
        self._setup, self._runtime, self._role_of = setup, runtime, setup.role_of
        self._questions = {name: (question, on_wire(question, axis=False)) for name, question in questions.items()}
        self.memory = memory
        self.used = int(memory["t"]) if memory else NEW
        self._elapsed = float(memory["elapsed"]) if memory else 0.0
        self._asked: set[tuple[int, str, int, int]] = set()
        self._open = False  # whether anything was asked since the last checkpoint
        self._notes: list[Note] = []
        self._spent = dict.fromkeys(("asked", "answered", "bytes_up", "bytes_down", "seconds"), 0.0)

    def ask(self, ask: Ask) -> Replies:
        asked = self._addressed(ask)
        return self._taken(asked, self._runtime.ask(asked))

    def together(self, asks: tuple[Ask, ...]) -> tuple[Replies, ...]:
        names = [ask.what for ask in asks]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise Mismatch(f"'{twice[0]}' is asked twice at once: put both roles into one Ask, or name two questions")
        asked = tuple(self._addressed(ask) for ask in asks)
        found = self._runtime.together(asked)
        return tuple(self._taken(ask, replies) for ask, replies in zip(asked, found, strict=True))

    def checkpoint(self, memory: Tree) -> None:
        t = int(memory["t"])
        if not self.used < t <= self._setup.rounds:
            raise Mismatch(
                f"a checkpoint of round {t} after one of round {self.used}: a program of {self._setup.rounds} rounds "
                "makes one after each, and its t says how many are done"
            )
        self._flush()
        stored = {"t": t, "rounds": t, "elapsed": self._elapsed, "program": dict(memory)}
        self._runtime.checkpoint(stored)
        self.memory, self.used, self._open = stored, t, False

    def note(self, note: Note) -> None:
        facts = dict(note.facts)
        if note.what == "round":
            spent = {name: value if name == "seconds" else int(value) for name, value in self._spent.items()}
            facts, self._spent = {**facts, **spent}, dict.fromkeys(self._spent, 0.0)
        self._notes.append(Note(note.what, facts))

    def settle(self, used: Array) -> None:
        raise Mismatch("a program with roles does not settle: its checkpoint commits what all roles remember")

    def end(self) -> None:
        """Let every role commit what it remembers, now that the program is over."""
        if self._open:
            raise Mismatch("the program asked something after its last checkpoint: make one before it ends")
        self._flush()
        at = {"t": max(self.used - 1, 0), "step": 0, "used": self.used}
        _answers(self._setup, self._runtime, Ask(self._setup.ones, END, at))

    def _flush(self) -> None:
        for note in self._notes:
            self._runtime.note(note)
        self._notes = []

    def _addressed(self, ask: Ask) -> Ask:
        """Give a question its address; refuse one that was not declared, or not so."""
        if ask.what not in self._questions:
            raise Mismatch(f"'{ask.what}' is no question that {type(self._setup.program).__name__} declares")
        question, travels = self._questions[ask.what]
        if ask.fold or ask.goal is not None or ask.max_staleness is not None:
            raise Mismatch(f"'{ask.what}': roles answer for themselves: ask without fold, goal or max_staleness")
        t, step = int(ask.body["t"]), int(ask.body.get("step", 0))
        body = nest(dict(leaves({**ask.body, "t": t, "step": step, "used": self.used})))
        if not ask.each:
            travels.asks.check(body)
        size = _bytes(body)
        for number in np.asarray(ask.to).tolist():
            role = self._role_of[number]
            if role not in question.roles:
                raise Mismatch(f"'{ask.what}' is asked of role {role}, and declared for {', '.join(question.roles)}")
            address = (number, ask.what, t, step)
            if address in self._asked:
                raise Mismatch(f"'{ask.what}' is asked twice at t={t}, step={step}: number the steps of a round")
            self._asked.add(address)
            own = ask.each.get(number, {})
            if ask.each:
                travels.asks.check({**body, **own})
            self._spent["asked"] += 1
            self._spent["bytes_down"] += size + _bytes(own)
        self._open = True
        return ask._replace(body=body)

    def _taken(self, ask: Ask, replies: Replies) -> Replies:
        """Check that everybody answered, and how."""
        replies = _whole(self._setup, self._runtime, ask, replies)
        question, travels = self._questions[ask.what]
        if question.roles[0] in self._setup.many:
            on_wire(question, axis=True, parties=len(replies)).answers.check_leaves(replies.each)
            self._spent["bytes_up"] += _bytes(replies.each)
        else:
            for number in replies:
                found = {name: np.asarray(leaf) for name, leaf in replies[number].items()}
                travels.answers.check_leaves(found)
                self._spent["bytes_up"] += _bytes(found)
        self._spent["answered"] += len(replies)
        self._spent["seconds"] += float(replies.facts.get("seconds", 0.0))
        self._elapsed = float(replies.facts.get("elapsed", self._elapsed))
        return replies


def _bytes(tree: Tree) -> int:
    return sum(np.asarray(leaf).nbytes for _, leaf in leaves(tree))
