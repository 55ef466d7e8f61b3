"""What a program may do to the world: ask, keep, note. No event loop, thread, socket or clock lives here."""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from atoll.core.tree import Array, Tree

T = TypeVar("T")
Cohort = Array  # sorted numbers of parties


class Ask(NamedTuple):
    """Put one question to many parties.

    `enough` answers end the wait (the rest come too late), `within` seconds at most (simulated ones in a simulation).
    The rows of the leaves named in `fold` are added up as they come in, so that a sum never needs all in memory.
    `each` is a further body for single parties. With `late`, answers to asks at most so many rounds ago count, too.
    """

    to: Cohort
    what: str
    body: Tree
    enough: int | None = None
    within: float | None = None
    fold: tuple[str, ...] = ()
    each: Mapping[int, Tree] = types.MappingProxyType({})
    late: int | None = None


class Keep(NamedTuple):
    """Store this as the program's memory (a server calls it a checkpoint)."""

    memory: Tree


class Note(NamedTuple):
    """Record a fact in the journal."""

    what: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Replies:
    """Answers as arrays: `each` has a leading axis in the order of `parties`; `sums` holds what was folded.

    A party that did not answer is absent. `facts` says what the runtime measured (seconds, bytes, who was lost).
    """

    parties: Cohort
    each: Mapping[str, Array] = field(default_factory=dict)
    sums: Mapping[str, Array] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.parties)

    def __iter__(self) -> Iterator[int]:
        return iter(self.parties.tolist())

    def __getitem__(self, party: int) -> dict[str, Any]:
        (at,) = np.nonzero(self.parties == party)
        if not len(at):
            raise KeyError(party)
        return {name: leaf[at[0]] for name, leaf in self.each.items()}


Program = Coroutine[Any, Any, T]


class Runtime(Protocol):
    """Whoever serves a program's effects: the one seam between what is said and how it is done."""

    def ask(self, ask: Ask) -> Replies: ...
    def keep(self, memory: Tree) -> None: ...
    def note(self, note: Note) -> None: ...


@types.coroutine
def ask(
    to: Cohort,
    what: str,
    body: Tree,
    *,
    enough: int | None = None,
    within: float | None = None,
    fold: tuple[str, ...] = (),
    each: Mapping[int, Tree] = types.MappingProxyType({}),
    late: int | None = None,
) -> Generator[Ask, Replies, Replies]:
    """Ask parties a question and wait for the answers."""
    return (yield Ask(to, what, body, enough, within, fold, each, late))


@types.coroutine
def keep(memory: Tree) -> Generator[Keep, None, None]:
    """Remember this, should the world end now."""
    yield Keep(memory)


@types.coroutine
def note(what: str, **facts: Any) -> Generator[Note, None, None]:
    """Say that something is so."""
    yield Note(what, facts)


def drive(program: Program[T], runtime: Runtime) -> T:
    """Run a program to its end, serving its effects."""
    reply: Replies | None = None
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
                case Keep():
                    runtime.keep(effect.memory)
                case Note():
                    runtime.note(effect)
                case _:
                    raise TypeError(f"a program may ask, keep or note; it said {effect!r}")
    finally:
        program.close()
