"""A worker answers for a chunk of a cohort and folds it: in this process, or in a warm process of its own."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from atoll.core.errors import AtollError
from atoll.core.meter import spent
from atoll.core.party import NOBODY, Group, Handler, Remembered, Samples
from atoll.core.tree import EMPTY, Array, Tree
from atoll.core.world import World


class Chunk(NamedTuple):
    """One piece of work: these parties, this question of round t, their memory, what to add up."""

    what: str
    t: int
    me: Array
    memory: Remembered | None
    fold: tuple[str, ...]
    each: Mapping[str, Array] = EMPTY  # of the body, one row a party
    wide: bool = False  # whether to add real numbers in double precision


class ChunkResult(NamedTuple):
    """What came of a chunk: folded leaves, leaves per party, the parties' memory, seconds spent."""

    sums: Mapping[str, Array]
    each: Mapping[str, Array]
    memory: Mapping[str, Array]
    seconds: Mapping[str, float]


class PartyFailed(AtollError, RuntimeError):
    """A party's handler raised; the sentence names the round, the party and what it was given."""

    code = "party_failed"


class Cache:
    """What parties prepared, up to so many bytes; what was used longest ago goes first. All can be redone."""

    def __init__(self, max_bytes: int = 2**30) -> None:
        self._max, self._bytes = max_bytes, 0
        self._found: OrderedDict[tuple[str, int], tuple[bytes, Any, int]] = OrderedDict()

    def of(self, key: bytes, group: Group, prepare: Callable[[Group], Sequence[Any]]) -> tuple[Any, ...]:
        """Return what each party of the group has prepared under a key, preparing it where it is not there."""
        names = [(group.split, me) for me in group.me.tolist()]
        for k, name in enumerate(names):
            if name not in self._found or self._found[name][0] != key:
                self._drop(name)
                (one,) = prepare(group.only(k)) or (None,)
                self._found[name] = (key, one, _size(one))
                self._bytes += self._found[name][2]
            self._found.move_to_end(name)
        found = tuple(self._found[name][1] for name in names)
        while self._bytes > self._max and self._found:
            self._drop(next(iter(self._found)))
        return found

    def _drop(self, name: tuple[str, int]) -> None:
        if name in self._found:
            self._bytes -= self._found.pop(name)[2]


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 64


@dataclass(frozen=True)
class Worker:
    """Answers in the process that calls it."""

    handlers: Mapping[str, Handler]
    splits: Mapping[str, Samples]
    world: World
    first: int = 0  # the number of the party whose samples stand first
    cache: Cache = field(default_factory=Cache, compare=False)

    def answer(self, chunk: Chunk, body: Tree) -> ChunkResult:
        """Answer for every party of the chunk; the order of additions is the order of the parties."""
        began, compiled = time.perf_counter(), spent("compile")
        handler = self.handlers[chunk.what]
        group = self._group(chunk)
        body = {**body, **chunk.each} if chunk.each else body
        key = handler.cache_key(body)
        if key is not None:
            # What is prepared outlives the question, whose arrays may be views of memory that is written again.
            kept = cache(lambda: {**body, "constant": _copied(body["constant"])})
            group = replace(group, cache=self.cache.of(key, group, lambda some: handler.prepare(kept(), some)))
        reply, memory = handler(body, group)
        sums = {name: _add(np.asarray(reply[name]), wide=chunk.wide) for name in chunk.fold}
        each = {name: np.asarray(leaf) for name, leaf in reply.items() if name not in chunk.fold}
        compiling = spent("compile") - compiled
        return ChunkResult(sums, each, memory, {"work": time.perf_counter() - began - compiling, "compile": compiling})

    def _group(self, chunk: Chunk) -> Group:
        split = self.handlers[chunk.what].split
        memory = NOBODY if chunk.memory is None else chunk.memory
        at = chunk.me - self.first
        return Group(chunk.me, self.splits[split], at, self.world, chunk.t, split, memory=memory)

    def describe(self, chunk: Chunk) -> str:
        """Say what the parties of a chunk were given, for an error message."""
        x, y = next(iter(self._group(chunk)))
        about = f"x {x.shape} {x.dtype}, y {y.shape} {y.dtype}"
        return f"{about}, y from {y.min()} to {y.max()}" if y.size else about


def _copied(tree: Tree) -> dict[str, Any]:
    return {name: _copied(leaf) if isinstance(leaf, Mapping) else np.array(leaf) for name, leaf in tree.items()}


def _add(rows: Array, *, wide: bool) -> Array:
    # Integers stay of their kind: in a ring a sum wraps around.
    dtype = sum_type(rows, wide=wide)
    return rows[0] if len(rows) == 1 and dtype == rows.dtype else np.add.reduce(rows, axis=0, dtype=dtype)


def sum_type(rows: Array, *, wide: bool) -> np.dtype[Any]:
    """Return the type that rows are added in."""
    return np.dtype(np.float64) if wide and rows.dtype.kind == "f" else rows.dtype
