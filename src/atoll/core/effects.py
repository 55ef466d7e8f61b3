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

    `goal` answers end the wait (the rest come too late), `within` seconds at most (simulated ones in a simulation).
    The rows of the leaves named in `fold` are added up as they come in, so that a sum never needs all in memory;
    where it is `wide`, real numbers in double precision.
    `each` is a further body for single parties. With `max_staleness`, answers to asks at most
    so many rounds ago count, too.
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
    """Several questions at once, to different roles."""

    asks: tuple[Ask, ...]


class Checkpoint(NamedTuple):
    """Store this as the program's memory (a server calls it a checkpoint)."""

    memory: Tree


class Settle(NamedTuple):
    """Say whose answers were used: by party, the number of the last ask whose answer was. What a party would remember
    of an answer that was not used is forgotten.
    """

    used: Array


class Note(NamedTuple):
    """Record a fact in the journal."""

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
    """Return a fact that is one number; None where it is not told, or no number."""
    value = facts.get(name)
    return float(value) if isinstance(value, SupportsFloat) else None


Sink = Callable[[Note], None]  # whoever is told of every note, too


@dataclass(frozen=True, eq=False)
class Replies:
    """Answers as arrays: `each` has a leading axis in the order of `parties`; `sums` holds what was folded.

    A party that did not answer is absent. `facts` says what the runtime measured (seconds, bytes, who was lost).
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
    """Ask parties a question and wait for the answers."""
    return (yield Ask(to, what, body, goal, within, fold, each, max_staleness, wide))


@types.coroutine
def checkpoint(memory: Tree) -> Generator[Checkpoint, None, None]:
    """Remember this, should the world end now."""
    yield Checkpoint(memory)


@types.coroutine
def note(what: str, **facts: object) -> Generator[Note, None, None]:
    """Say that something is so."""
    yield Note(what, facts)


@types.coroutine
def settle(used: Array) -> Generator[Settle, None, None]:
    """Say whose answers were used."""
    yield Settle(used)


@types.coroutine
def together(*asks: Ask) -> Generator[Together, tuple[Replies, ...], tuple[Replies, ...]]:
    """Ask several questions at once and wait for all of them."""
    return (yield Together(asks))


def drive(program: Running[T], runtime: Runtime) -> T:
    """Run a program to its end, serving its effects."""
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
