"""What a program may do to the world: ask, checkpoint, settle, note. No event loop, thread, socket or clock is here."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, SupportsFloat, TypeVar

import numpy as np

from atoll.core.tree import Array, Tree

T = TypeVar("T")
Cohort = Array  # sorted numbers of parties


class Ask(NamedTuple):
    """Put one question to many parties.

    Args:
        to: numbers of the parties, sorted.
        what: the name of the question.
        body: what every party receives.
        goal: the number of answers that ends the wait; the rest come too late. Default: all.
        within: seconds to wait at most, simulated ones in a simulation. Default: no limit.
        fold: leaves whose rows are added up as they come in, so that a sum never needs all in memory. Default: none.
        each: a further body for single parties, by their numbers. Default: none.
        max_staleness: answers to asks at most so many rounds ago count, too. Default: only answers to this ask.
        wide: whether real numbers are added up in double precision. Default false.
    """

    to: Cohort
    what: str
    body: Tree
    goal: int | None = None
    within: float | None = None
    fold: tuple[str, ...] = ()
    each: Mapping[int, Tree] = types.MappingProxyType({})
    max_staleness: int | None = None
    wide: bool = False


class Together(NamedTuple):
    """Several questions at once, to different roles.

    Args:
        asks: the questions.
    """

    asks: tuple[Ask, ...]


class Checkpoint(NamedTuple):
    """Store this as the program's memory (a server calls it a checkpoint).

    Args:
        memory: what the program needs to resume here.
    """

    memory: Tree


class Settle(NamedTuple):
    """Say whose answers were used. What a party would remember of an answer that was not used is forgotten.

    Args:
        used: by party, the number of the last ask whose answer was used.
    """

    used: Array


class Note(NamedTuple):
    """Record a fact in the journal.

    Args:
        what: the kind of fact, such as "round".
        facts: its values by name.
    """

    what: str
    facts: Mapping[str, object]

    @property
    def t(self) -> int:
        """The round that it is of; 0 where it names none."""
        return int(self.number("round") or 0)

    def number(self, name: str) -> float | None:
        return number(self.facts, name)

    @property
    def job(self) -> Mapping[str, object]:
        """The table of the job, where a start tells it."""
        job = self.facts.get("job")
        return job if isinstance(job, Mapping) else {}


def number(facts: Mapping[str, object], name: str) -> float | None:
    """Return a fact that is one number; None where it is not told, or no number.

    Args:
        facts: values by name.
        name: the value to return.
    """
    value = facts.get(name)
    return float(value) if isinstance(value, SupportsFloat) else None


Sink = Callable[[Note], None]  # whoever is told of every note, too


@dataclass(frozen=True, eq=False)
class Replies:
    """Answers as arrays. A party that did not answer is absent.

    Args:
        parties: numbers of those that answered, sorted.
        each: leaves of the answers, with a leading axis in the order of `parties`. Default: none.
        sums: leaves that were added up (`fold`). Default: none.
        facts: what the runtime measured: seconds, bytes, who was lost. Default: nothing.
    """

    parties: Cohort
    each: Mapping[str, Array] = field(default_factory=dict)
    sums: Mapping[str, Array] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reports(self) -> dict[str, Array]:
        """What parties reported beside their vectors, by the names that the method declares."""
        return {name[len("report/") :]: leaf for name, leaf in self.each.items() if name.startswith("report/")}

    def __len__(self) -> int:
        return len(self.parties)

    def __iter__(self) -> Iterator[int]:
        return iter(self.parties.tolist())

    def __getitem__(self, party: int) -> dict[str, Any]:
        (at,) = np.nonzero(self.parties == party)
        if not len(at):
            raise KeyError(party)
        return {name: leaf[at[0]] for name, leaf in self.each.items()}


Effect = Ask | Together | Checkpoint | Settle | Note
Reply = Replies | tuple[Replies, ...] | None  # what a program gets for an effect
Running = Coroutine[Effect, Reply, T]  # a program that has started


class Recorder(Protocol):
    """Where notes and checkpoints go, such as a run's journal."""

    def note(self, note: Note) -> None: ...
    def checkpoint(self, memory: Tree) -> None: ...


class Runtime(Protocol):
    """Whoever serves a program's effects: the one seam between what is said and how it is done."""

    def ask(self, ask: Ask) -> Replies: ...
    def together(self, asks: tuple[Ask, ...]) -> tuple[Replies, ...]: ...
    def checkpoint(self, memory: Tree) -> None: ...
    def note(self, note: Note) -> None: ...
    def settle(self, used: Array) -> None: ...


@types.coroutine
def ask(
    to: Cohort, what: str, body: Tree, *, goal: int | None = None, within: float | None = None, wide: bool = False,
    fold: tuple[str, ...] = (), each: Mapping[int, Tree] = types.MappingProxyType({}), max_staleness: int | None = None,
) -> Generator[Ask, Replies, Replies]:  # fmt: skip
    """Ask parties a question and wait for the answers.

    Args:
        to: numbers of the parties, sorted.
        what: the name of the question.
        body: what every party receives.
        goal: the number of answers that ends the wait. Default: all.
        within: seconds to wait at most, simulated ones in a simulation. Default: no limit.
        wide: whether real numbers are added up in double precision. Default false.
        fold: leaves whose rows are added up as they come in. Default: none.
        each: a further body for single parties, by their numbers. Default: none.
        max_staleness: answers to asks at most so many rounds ago count, too. Default: only answers to this ask.
    """
    return (yield Ask(to, what, body, goal, within, fold, each, max_staleness, wide))


@types.coroutine
def checkpoint(memory: Tree) -> Generator[Checkpoint, None, None]:
    """Store the program's memory: a run that is interrupted later resumes here.

    Args:
        memory: what the program needs to resume.
    """
    yield Checkpoint(memory)


@types.coroutine
def note(what: str, **facts: object) -> Generator[Note, None, None]:
    """Record a fact in the journal.

    Args:
        what: the kind of fact, such as "round".
        **facts: its values by name.
    """
    yield Note(what, facts)


@types.coroutine
def settle(used: Array) -> Generator[Settle, None, None]:
    """Say whose answers were used. What a party would remember of an answer that was not used is forgotten.

    Args:
        used: by party, the number of the last ask whose answer was used.
    """
    yield Settle(used)


@types.coroutine
def together(*asks: Ask) -> Generator[Together, tuple[Replies, ...], tuple[Replies, ...]]:
    """Ask several questions at once and wait for all of them.

    Args:
        *asks: the questions, to different roles.
    """
    return (yield Together(asks))


def drive(program: Running[T], runtime: Runtime) -> T:
    """Run a program to its end, serving its effects.

    Args:
        program: the program, started.
        runtime: what serves its effects.
    """
    reply: Reply = None
    try:
        while True:
            try:
                effect = program.send(reply)
            except StopIteration as stop:
                result: T = stop.value
                return result
            reply = None
            match effect:
                case Ask():
                    reply = runtime.ask(effect)
                case Checkpoint():
                    runtime.checkpoint(effect.memory)
                case Together():
                    reply = runtime.together(effect.asks)
                case Settle():
                    runtime.settle(effect.used)
                case Note():
                    runtime.note(effect)
                case _:
                    raise TypeError(f"a program may ask, checkpoint, settle or note; it said {effect!r}")
    finally:
        program.close()
