"""The simulator: all parties on this machine. It cuts cohorts into chunks, hands them to workers, folds the answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from atoll.core.effects import Ask, Cohort, Note, Replies
from atoll.core.party import Handler, Samples
from atoll.core.tree import Array, Tree
from atoll.core.wire import Mismatch
from atoll.runtimes.pool import CannotStart, Pool, failure
from atoll.runtimes.workers import Answer, Chunk, PartyFailed, Worker


class World(Protocol):
    """Who is lost in a round and who is slow; see `atoll.select.available`."""

    def lost(self, who: Cohort, t: int) -> Array: ...
    def latency(self, who: Cohort, t: int) -> Array: ...


class Journal(Protocol):
    """Where notes and kept memory go; see `atoll.journal`."""

    def note(self, note: Note) -> None: ...
    def keep(self, memory: Tree) -> None: ...


class Crew(Protocol):
    """Who answers chunks in parallel: processes (`Pool`), or actors of a cluster (`RayPool`)."""

    died: list[str]

    def answers(self, chunks: Sequence[Chunk], body: Tree) -> Iterator[tuple[Answer, int]]: ...
    def processes(self) -> list[int]: ...
    def close(self) -> None: ...


class Pending(NamedTuple):
    """An answer on its way: when, in simulated seconds, it comes, the round it was asked in, its leaves."""

    finish: float
    t: int
    leaves: Mapping[str, Array]


class Simulator:
    """Answers a program's questions for all parties.

    Chunks depend on the cohort only, and their sums are added in one order; so the result is the same bits for any
    number of workers. `loop` asks one party at a time and names the one that fails. Where late answers count (`late`),
    a clock of simulated seconds says whose answer comes first; what is on its way is not kept.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        rooms: Mapping[str, Samples],
        seed: int,
        *,
        world: World,
        journal: Journal,
        workers: int = 0,
        crew: Callable[[Worker], Crew] | None = None,
        loop: bool = False,
        elapsed: float = 0.0,
    ) -> None:
        self._worker = Worker(handlers, rooms, seed)
        self._world, self._journal, self._loop = world, journal, loop
        self._pool: Crew | None = None
        if workers and crew is None:
            crew = partial(Pool, size=workers)
        if crew and not loop:
            try:
                self._pool = crew(self._worker)
            except CannotStart as reason:
                journal.note(Note("in process", {"why": str(reason)}))
        self._began = time.perf_counter() - elapsed
        self.memory: dict[int, Mapping[str, Array]] = {}
        self._pending: dict[int, Pending] = {}
        self._clock = 0.0  # simulated seconds

    @property
    def processes(self) -> list[int]:
        """Ids of the worker processes."""
        return self._pool.processes() if self._pool else []

    def note(self, note: Note) -> None:
        self._journal.note(note)

    def keep(self, memory: Tree) -> None:
        parties = {"parties": _pack(self.memory)} if self.memory else {}
        clock = {"virtual": self._clock} if self._clock else {}
        self._journal.keep({**memory, **parties, **clock})

    def restore(self, memory: Tree) -> None:
        """Give parties back what they remembered when this was kept."""
        self.memory = _unpack(memory.get("parties", {}))
        self._clock = float(memory.get("virtual", 0.0))

    def close(self) -> None:
        if self._pool:
            self._pool.close()

    def ask(self, ask: Ask) -> Replies:
        began = time.perf_counter()
        if ask.each:
            raise Mismatch("a simulation puts one question to everybody: what is for single parties is for the network")
        t = int(ask.body["t"])
        if ask.late is not None:
            return self._ask_late(ask, t, ask.late, began)
        who, lost = self._answering(ask, t)
        parties, each, sums, spent = self._work(ask, who, t)
        return Replies(parties, each, sums, self._facts(began, spent, len(lost)))

    def _ask_late(self, ask: Ask, t: int, late: int, began: float) -> Replies:
        """Ask whoever is free, and hand over the earliest answers, to whichever question they are."""
        if ask.fold:
            raise Mismatch("answers of different rounds are weighed before they are added: ask without fold")
        stale = [p for p, answer in self._pending.items() if t - answer.t > late]
        for party in stale:
            del self._pending[party]
        asked = np.asarray(ask.to)[~np.isin(ask.to, list(self._pending))]
        asked = np.sort(asked[: max(len(ask.to) - len(self._pending), 0)])
        gone = self._world.lost(asked, t)
        parties, each, _, spent = self._work(ask, asked[~gone], t)
        for k, seconds in enumerate(self._world.latency(parties, t).tolist()):
            leaves = {name: leaf[k].copy() for name, leaf in each.items()}
            self._pending[int(parties[k])] = Pending(self._clock + seconds, t, leaves)
        until = np.inf if ask.within is None else self._clock + ask.within
        there = [p for p, answer in self._pending.items() if answer.finish <= until]
        first = sorted(there, key=lambda p: (self._pending[p].finish, p))[: ask.enough]
        in_vain = len(there) < min(len(self._pending), ask.enough or np.inf)  # who is to come was waited for to the end
        answers = {p: self._pending.pop(p) for p in sorted(first)}
        self._clock = until if in_vain else max((a.finish for a in answers.values()), default=self._clock)
        names = next(iter(answers.values())).leaves if answers else ()
        rows = {name: np.stack([a.leaves[name] for a in answers.values()]) for name in names}
        rows["age"] = np.array([t - a.t for a in answers.values()], np.int64)
        facts = self._facts(began, spent, int(gone.sum())) | {"asked": len(asked), "virtual": self._clock}
        facts |= {"stale": len(stale)} if stale else {}
        return Replies(np.array(list(answers), np.int64), rows, facts=facts)

    def _work(
        self, ask: Ask, who: Cohort, t: int
    ) -> tuple[Cohort, dict[str, Array], dict[str, Array], dict[str, float]]:
        """Let these parties answer; return them in order, their leaves, what was folded, and the seconds it took."""
        answers = []
        sums: dict[str, Array] = {}
        spent = {"work": 0.0, "compile": 0.0}
        chunks = self._chunks(ask, who, t)
        by_worker: dict[int, dict[str, float]] = {}
        for chunk, (answer, worker) in zip(chunks, self._answers(chunks, ask.body), strict=True):
            for name, part in answer.sums.items():
                if name in sums:
                    sums[name] += part
                else:
                    sums[name] = part.copy()
            # Small leaves are copied out of shared memory, as are rows that no fold has taken.
            answers.append((chunk.me, {name: leaf.copy() for name, leaf in answer.each.items()}))
            self._remember(chunk.me, answer.memory)
            mine = by_worker.setdefault(worker, dict.fromkeys(spent, 0.0))
            for name in spent:
                mine[name] += answer.seconds[name]
        for name in spent:
            spent[name] = max((mine[name] for mine in by_worker.values()), default=0.0)
        parties = np.concatenate([me for me, _ in answers]) if answers else np.arange(0)
        order = np.argsort(parties, kind="stable")
        names = answers[0][1] if answers else ()
        each = {name: np.concatenate([leaf[name] for _, leaf in answers])[order] for name in names}
        return parties[order], each, sums, spent

    def _facts(self, began: float, spent: Mapping[str, float], lost: int) -> dict[str, Any]:
        now = time.perf_counter()
        facts: dict[str, Any] = {"seconds": now - began, **spent, "elapsed": now - self._began}
        if lost:
            facts["lost"] = lost
        if self._pool and self._pool.died:
            facts["died"] = "; ".join(self._pool.died)
            self._pool.died.clear()
        return facts

    def _answering(self, ask: Ask, t: int) -> tuple[Cohort, Cohort]:
        """Tell who answers in time, and who was lost; judges on the server's own data are always there."""
        who = np.asarray(ask.to)
        if self._worker.handlers[ask.what].room != "train":
            return who, who[:0]
        gone = self._world.lost(who, t)
        if ask.within is not None:
            gone = gone | (self._world.latency(who, t) > ask.within)
        there = who[~gone]
        if ask.enough is not None and len(there) > ask.enough:
            fastest = np.argsort(self._world.latency(there, t), kind="stable")[: ask.enough]
            there = np.sort(there[fastest])
        return there, who[gone]

    def _chunks(self, ask: Ask, who: Cohort, t: int) -> list[Chunk]:
        handler = self._worker.handlers[ask.what]
        width = 1 if self._loop else handler.width
        if width > 1:  # parties of like size go together, so that little is padded
            offsets = self._worker.rooms[handler.room].offsets
            sizes = offsets[who + 1] - offsets[who]
            bucket = np.ceil(np.log2(np.maximum(sizes, 1)))
            who = who[np.lexsort((who, bucket))]
        return [
            Chunk(ask.what, t, who[a : a + width], self._recall(who[a : a + width]), ask.fold)
            for a in range(0, len(who), width)
        ]

    def _answers(self, chunks: Sequence[Chunk], body: Tree) -> Iterator[tuple[Answer, int]]:
        if self._pool and len(chunks) > 1:
            try:
                for answer, worker in self._pool.answers(chunks, body):
                    yield answer, worker
                    chunks = chunks[1:]
                return
            except CannotStart as reason:  # a process died and cannot be replaced: the rest is done here
                self._pool.close()
                self._pool = None
                self.note(Note("in process", {"why": str(reason)}))
        for chunk in chunks:
            try:
                answer = self._worker.answer(chunk, body)
            except Exception as error:
                raise PartyFailed(failure(self._worker, chunk, error)) from error
            yield answer, 0

    def _recall(self, me: Cohort) -> Mapping[str, Array]:
        """Stack what these parties remember; who remembers nothing starts from zeros."""
        known = [self.memory[p] for p in me.tolist() if p in self.memory] if self.memory else []
        if not known:
            return {}
        blank = {name: np.zeros_like(leaf) for name, leaf in known[0].items()}
        rows = [self.memory.get(p, blank) for p in me.tolist()]
        return {name: np.stack([row[name] for row in rows]) for name in blank}

    def _remember(self, me: Cohort, memory: Mapping[str, Array]) -> None:
        if memory:
            for k, party in enumerate(me.tolist()):
                self.memory[party] = {name: leaf[k].copy() for name, leaf in memory.items()}


def _pack(memory: Mapping[int, Mapping[str, Array]]) -> Tree:
    who = sorted(memory)
    names = list(memory[who[0]])
    return {"who": np.asarray(who), "leaf": {n: np.stack([memory[p][n] for p in who]) for n in names}}


def _unpack(packed: Tree) -> dict[int, Mapping[str, Array]]:
    if not packed:
        return {}
    rows = packed["leaf"]
    return {int(p): {n: leaf[k] for n, leaf in rows.items()} for k, p in enumerate(packed["who"])}
