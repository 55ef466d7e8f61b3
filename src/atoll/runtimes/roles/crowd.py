"""A role that many parties play, on this machine: its handlers answer for groups of parties at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.effects import Ask, Cohort, Replies
from atoll.core.party import Remembered
from atoll.core.program import MODEL, SECRET, Agreed, Program
from atoll.core.tree import Array, Tree, leaves, nest
from atoll.core.wire import Mismatch
from atoll.core.world import World
from atoll.data.roles import ManyData
from atoll.runtimes.local.memory import PartyMemory, Recalled
from atoll.runtimes.local.pool import failure
from atoll.runtimes.local.worker import Chunk, ChunkResult, PartyFailed, Worker
from atoll.runtimes.roles.side import Work


class Crowd:
    """The parties of one role. What they remember changes with every answer, and counts with the hub's checkpoint.

    Args:
        program: the conversation.
        role: which of its roles they play.
        first: the number of the first of them.
        data: what they hold.
        world: where random draws come from.
        stored: what they remembered at the last checkpoint; other roles have theirs in it, too.
        watch: is given who works answers out, and returns who does.
    """

    def __init__(
        self, program: Program, role: str, first: int, data: ManyData, world: World, stored: PartyMemory,
        watch: Callable[[str, Work], Work],
    ) -> None:  # fmt: skip
        self._program, self._role, self._data, self._world, self._watch = program, role, data, world, watch
        self._stored, self._now = stored, PartyMemory()
        self._worker = Worker({}, {}, world, first)
        self._work: Work = InProcess(self._worker)
        self.numbers: Cohort = np.arange(first, first + len(data))

    @property
    def model(self) -> dict[str, Array]:
        """What the parties are left with, one row each."""
        found = _whole(self._now.recall(self.numbers))
        return {name[len(MODEL) :]: _stacked(name, leaf) for name, leaf in found.items() if name.startswith(MODEL)}

    def begin(self, agreed: Agreed) -> None:
        """Begin a session at the last checkpoint: what was remembered after it is forgotten, as are secrets."""
        handlers = self._program.handlers(self._role, agreed)
        self._worker = Worker(handlers, {self._role: self._data.samples}, self._world, self._worker.first)
        self._work = self._watch(self._role, InProcess(self._worker))
        self._now = PartyMemory()
        self._now.remember(self.numbers, _whole(self._stored.recall(self.numbers)))

    def commit(self) -> None:
        """Let what is remembered now count."""
        found = _whole(self._now.recall(self.numbers))
        kept = {name: leaf for name, leaf in found.items() if not name.startswith(SECRET)}
        self._stored.remember(self.numbers, kept)

    def answers(self, what: str) -> bool:
        """Say whether a question is for this role."""
        return what in self._worker.handlers

    def ask(self, ask: Ask) -> Replies:
        """Let the parties answer, in groups as large as the handler likes."""
        began = time.perf_counter()
        who, size = np.asarray(ask.to), self._worker.handlers[ask.what].group_size
        parts = [self._group(ask, who[a : a + size], single=size == 1) for a in range(0, len(who), size)]
        names = parts[0] if parts else {}
        each = {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in names}
        return Replies(who, each, facts={"seconds": time.perf_counter() - began})

    def _group(self, ask: Ask, me: Cohort, *, single: bool) -> Mapping[str, Array]:
        own = [ask.each.get(number, {}) for number in me.tolist()]
        body = {**ask.body, **own[0]} if single else ask.body
        flat = [] if single else [dict(leaves(one)) for one in own]
        rows = {path: np.stack([np.asarray(one[path]) for one in flat]) for path in (flat[0] if flat else ())}
        found = self._now.recall(me)
        memory = Remembered(found.known, found.leaves, found.present)
        result = self._work(Chunk(ask.what, int(ask.body["t"]), me, memory, (), nest(rows)), body)
        if result.memory:
            self._now.remember(me, {name: np.array(leaf) for name, leaf in result.memory.items()})
        return result.each


def _whole(found: Recalled) -> dict[str, Any]:
    """Return what was recalled in the form in which it is remembered: no row where a party does not have the leaf."""
    return {
        name: leaf if found.present[name].all() else [row if has else None for row, has in
                                                      zip(leaf, found.present[name], strict=True)]
        for name, leaf in found.leaves.items()
    }  # fmt: skip


def _stacked(name: str, leaf: Any) -> Array:
    if isinstance(leaf, np.ndarray) and leaf.dtype != object:
        return leaf
    raise Mismatch(f"'{name}' is not of one shape at all parties that play a role: leave each with the same leaves")


@dataclass(frozen=True)
class InProcess:
    """Works answers out in this process, and names the role that fails."""

    worker: Worker

    def __call__(self, chunk: Chunk, body: Tree) -> ChunkResult:
        try:
            return self.worker.answer(chunk, body)
        except Mismatch:
            raise
        except Exception as error:
            raise PartyFailed(failure(self.worker, chunk, error)) from error
