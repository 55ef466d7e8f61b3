"""A worker answers for a chunk of a cohort and folds it: in this process, or in a warm process of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from atoll.core.meter import spent
from atoll.core.party import Group, Handler, Samples
from atoll.core.tree import Array, Tree


class Chunk(NamedTuple):
    """One piece of work: these parties, this question of round t, their memory, what to add up."""

    what: str
    t: int
    me: Array
    memory: Mapping[str, Array]
    fold: tuple[str, ...]


class Answer(NamedTuple):
    """What came of a chunk: folded leaves, leaves per party, the parties' memory, seconds spent."""

    sums: Mapping[str, Array]
    each: Mapping[str, Array]
    memory: Mapping[str, Array]
    seconds: Mapping[str, float]


class PartyFailed(RuntimeError):
    """A party's handler raised; the sentence names the round, the party and what it was given."""


@dataclass(frozen=True)
class Worker:
    """Answers in the process that calls it."""

    handlers: Mapping[str, Handler]
    rooms: Mapping[str, Samples]
    seed: int
    first: int = 0  # the number of the party whose samples stand first

    def answer(self, chunk: Chunk, body: Tree) -> Answer:
        """Answer for every party of the chunk; the order of additions is the order of the parties."""
        began, compiled = time.perf_counter(), spent("compile")
        handler = self.handlers[chunk.what]
        at = chunk.me - self.first
        group = Group(chunk.me, self.rooms[handler.room], at, self.seed, chunk.t, chunk.memory)
        reply, memory = handler(body, group)
        sums = {name: _add(np.asarray(reply[name])) for name in chunk.fold}
        each = {name: np.asarray(leaf) for name, leaf in reply.items() if name not in chunk.fold}
        compiling = spent("compile") - compiled
        return Answer(sums, each, memory, {"work": time.perf_counter() - began - compiling, "compile": compiling})

    def describe(self, chunk: Chunk) -> str:
        """Say what the parties of a chunk were given, for an error message."""
        samples = self.rooms[self.handlers[chunk.what].room]
        group = Group(chunk.me, samples, chunk.me - self.first, self.seed, chunk.t)
        x, y = next(iter(group))
        about = f"x {x.shape} {x.dtype}, y {y.shape} {y.dtype}"
        return f"{about}, y from {y.min()} to {y.max()}" if y.size else about


def _add(rows: Array) -> Array:
    # Integers stay of their kind: in a ring a sum wraps around.
    return rows[0] if len(rows) == 1 else np.add.reduce(rows, axis=0, dtype=rows.dtype)
