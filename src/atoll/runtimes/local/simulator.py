"""The simulator: all parties on this machine. It cuts cohorts into chunks, hands them to workers, folds the answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from atoll.core.effects import Ask, Cohort, Note, Recorder, Replies
from atoll.core.party import Handler, Remembered, Samples, ragged
from atoll.core.tree import Array, Tree
from atoll.core.wire import ClientSide, Mismatch
from atoll.core.world import World
from atoll.crypto.keys import Abort, Refused
from atoll.runtimes.local.memory import PartyMemory
from atoll.runtimes.local.pool import CannotStart, ProcessPool, failure
from atoll.runtimes.local.worker import Chunk, ChunkResult, PartyFailed, Worker


class Outages(Protocol):
    """Who is lost in a round and who is slow; see `atoll.select.available`."""

    def lost(self, who: Cohort, t: int) -> Array: ...
    def latency(self, who: Cohort, t: int) -> Array: ...


class Executor(Protocol):
    """Who answers chunks in parallel: processes (`ProcessPool`), or actors of a cluster (`RayPool`)."""

    died: list[str]

    def answers(self, chunks: Sequence[Chunk], body: Tree) -> Iterator[tuple[ChunkResult, int]]:
        """Yield each chunk's (result, worker number), in order.

        The sums of the results, added in this order, are ((c0 + c1) + c2) + … of the chunks' own sums, bit for bit. An
        executor that adds them itself gives them with the last result, and never raises CannotStart before it.
        """
        ...

    def processes(self) -> list[int]: ...
    def close(self) -> None: ...


class Pending(NamedTuple):
    """An answer on its way: when, in simulated seconds, it comes, the round it was asked in, its leaves and memory."""

    finish: float
    t: int
    leaves: Mapping[str, Array]
    memory: Mapping[str, Array]


class Simulator:
    """Answers a program's questions for all parties.

    Chunks depend on the cohort only, and their sums are added in one order; so the result is bit-for-bit
    reproducible for any number of workers. `loop` asks one party at a time and names the one that fails. Where late
    answers count (`late`), a clock of simulated seconds says whose answer comes first; what is on its way is not kept.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        splits: Mapping[str, Samples],
        world: World,
        *,
        availability: Outages,
        journal: Recorder,
        memory: PartyMemory | None = None,
        client: Callable[[str, int], ClientSide] | None = None,
        workers: int = 0,
        executor: Callable[[Worker], Executor] | None = None,
        loop: bool = False,
        elapsed: float = 0.0,
    ) -> None:
        self._worker = Worker(handlers, splits, world)
        self._world, self._journal, self._loop = availability, journal, loop
        self._client, self._sides = client, dict[tuple[str, int], ClientSide]()
        self._pool: Executor | None = None
        if workers and executor is None:
            executor = partial(ProcessPool, size=workers)
        if executor and not loop:
            try:
                self._pool = executor(self._worker)
            except CannotStart as reason:
                journal.note(Note("in process", {"why": str(reason)}))
        self._began = time.perf_counter() - elapsed
        self.memory = memory if memory is not None else PartyMemory()
        self._provisional: list[tuple[int, Cohort, Mapping[str, Array]]] = []  # of answers that may not be used
        self._settles = False
        self._pending: dict[int, Pending] = {}
        self._clock = 0.0  # simulated seconds

    @property
    def processes(self) -> list[int]:
        """Ids of the worker processes."""
        return self._pool.processes() if self._pool else []

    @property
    def elapsed(self) -> float:
        """Seconds of this run, also before it was resumed."""
        return time.perf_counter() - self._began

    def note(self, note: Note) -> None:
        self._journal.note(note)

    def checkpoint(self, memory: Tree) -> None:
        self._commit()
        # A folder has the parties' memory in a log beside the checkpoint; what it says of it is part of it.
        parties = {"parties": self.memory.save(int(memory["t"]))} if len(self.memory) else {}
        clock = {"virtual": self._clock} if self._clock else {}
        self._journal.checkpoint({**memory, **parties, **clock})

    def restore(self, memory: Tree) -> None:
        """Give parties back what they remembered at this checkpoint."""
        if "parties" in memory:
            self.memory.restore(memory["parties"])
        self._clock = float(memory.get("virtual", 0.0))

    def settle(self, used: Array) -> None:
        """Let parties remember what they gave where it was used, and forget it where it was not."""
        self._settles = True
        for t, me, leaves in self._provisional:
            kept = np.flatnonzero(used[me] == t)
            if len(kept):
                self.memory.remember(me[kept], {name: leaf[kept] for name, leaf in leaves.items()})
        self._provisional = []

    def _commit(self) -> None:
        """A program that does not say whose answers it used has used them all."""
        if not self._settles:
            for _, me, leaves in self._provisional:
                self.memory.remember(me, leaves)
            self._provisional = []

    def _forget_before(self, t: int) -> None:
        """Drop what came of earlier asks and was not settled; a protocol asks several times with one t."""
        self._commit()
        self._provisional = [one for one in self._provisional if one[0] == t]

    def close(self) -> None:
        if self._pool:
            self._pool.close()
        self.memory.close()

    def ask(self, ask: Ask) -> Replies:
        began = time.perf_counter()
        t = int(ask.body["t"])
        self._forget_before(t)
        if ask.max_staleness is not None:
            return self._ask_late(ask, t, ask.max_staleness, began)
        if ask.what not in self._worker.handlers:
            return self._converse(ask, t, began)
        who, lost = self._answering(ask, t)
        parties, each, sums, spent = self._work(ask, who, t)
        return Replies(parties, each, sums, self._facts(began, spent, len(lost)))

    def together(self, asks: tuple[Ask, ...]) -> tuple[Replies, ...]:
        return tuple(self.ask(ask) for ask in asks)

    def _converse(self, ask: Ask, t: int, began: float) -> Replies:
        """Let each party answer a message of a protocol by itself; all train at once, when the first of them must."""
        if self._client is None:
            raise Mismatch(f"nobody in this simulation can answer '{ask.what}'")
        phase, _, step = ask.what.partition("/")
        who, lost = self._answering(ask, t)
        rows: dict[int, Array] = {}
        spent = {"work": 0.0, "compile": 0.0}

        def train(party: int, question: Tree) -> Array:
            if not rows:
                parties, each, _, cost = self._work(Ask(who, f"{phase}/contribute", question), who, t)
                rows.update(zip(parties.tolist(), each["vector"], strict=True))
                spent.update(cost)
            return rows[party]

        answers: dict[int, Tree] = {}
        for party in who.tolist():
            side = self._sides.setdefault((phase, party), self._client(phase, party))
            body = {**ask.body, **ask.each.get(party, {})}
            try:
                answers[party] = side.answer(step, body, partial(train, party))
            except (Abort, Refused) as reason:
                self.note(Note("declined", {"party": party, "asked": ask.what, "why": str(reason)}))
        names = next(iter(answers.values())) if answers else ()
        each = {name: ragged([np.asarray(answer[name]) for answer in answers.values()]) for name in names}
        return Replies(np.array(list(answers), np.int64), each, facts=self._facts(began, spent, len(lost)))

    def _ask_late(self, ask: Ask, t: int, max_staleness: int, began: float) -> Replies:
        """Ask whoever is free, and hand over the earliest answers, to whichever question they are."""
        if ask.fold:
            raise Mismatch("answers of different rounds are weighed before they are added: ask without fold")
        stale = [p for p, answer in self._pending.items() if t - answer.t > max_staleness]
        for party in stale:
            del self._pending[party]
        asked = np.asarray(ask.to)[~np.isin(ask.to, list(self._pending))]
        asked = np.sort(asked[: max(len(ask.to) - len(self._pending), 0)])
        gone = self._world.lost(asked, t)
        parties, each, _, spent = self._work(ask, asked[~gone], t)
        memory = self._taken()  # it comes with the answer, and goes with one that is never used
        for k, seconds in enumerate(self._world.latency(parties, t).tolist()):
            party, leaves = int(parties[k]), {name: leaf[k].copy() for name, leaf in each.items()}
            self._pending[party] = Pending(self._clock + seconds, t, leaves, memory.get(party, {}))
        until = np.inf if ask.within is None else self._clock + ask.within
        there = [p for p, answer in self._pending.items() if answer.finish <= until]
        first = sorted(there, key=lambda p: (self._pending[p].finish, p))[: ask.goal]
        in_vain = len(there) < min(len(self._pending), ask.goal or np.inf)  # who is to come was waited for to the end
        answers = {p: self._pending.pop(p) for p in sorted(first)}
        self._provisional = [(a.t, np.array([p]), a.memory) for p, a in answers.items() if a.memory]
        self._clock = until if in_vain else max((a.finish for a in answers.values()), default=self._clock)
        names = next(iter(answers.values())).leaves if answers else ()
        rows = {name: np.stack([a.leaves[name] for a in answers.values()]) for name in names}
        rows["age"] = np.array([t - a.t for a in answers.values()], np.int64)
        facts = self._facts(began, spent, int(gone.sum())) | {"asked": len(asked), "virtual": self._clock}
        facts |= {"stale": len(stale)} if stale else {}
        return Replies(np.array(list(answers), np.int64), rows, facts=facts)

    def _taken(self) -> dict[int, Mapping[str, Array]]:
        """Take back, by party, what came of the last ask."""
        found: dict[int, Mapping[str, Array]] = {}
        for _, me, leaves in self._provisional:
            for k, party in enumerate(me.tolist()):
                found[party] = {name: leaf[k : k + 1] for name, leaf in leaves.items()}
        self._provisional = []
        return found

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
            if answer.memory:
                kept = {name: np.array(leaf) for name, leaf in answer.memory.items()}
                self._provisional.append((t, chunk.me, kept))
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
        facts: dict[str, Any] = {"seconds": time.perf_counter() - began, **spent, "elapsed": self.elapsed}
        if lost:
            facts["lost"] = lost
        if self._pool and self._pool.died:
            facts["died"] = "; ".join(self._pool.died)
            self._pool.died.clear()
        return facts

    def _answering(self, ask: Ask, t: int) -> tuple[Cohort, Cohort]:
        """Tell who answers in time, and who was lost; the server, which evaluates on its own data, is always there."""
        who = np.asarray(ask.to)
        answered = ask.what, f"{ask.what.partition('/')[0]}/contribute"  # itself, or as a step of a protocol
        handler = next((self._worker.handlers[name] for name in answered if name in self._worker.handlers), None)
        if handler is not None and handler.split != "train":
            return who, who[:0]
        gone = self._world.lost(who, t)
        if ask.within is not None:
            gone = gone | (self._world.latency(who, t) > ask.within)
        there = who[~gone]
        if ask.goal is not None and len(there) > ask.goal:
            fastest = np.argsort(self._world.latency(there, t), kind="stable")[: ask.goal]
            there = np.sort(there[fastest])
        return there, who[gone]

    def _chunks(self, ask: Ask, who: Cohort, t: int) -> list[Chunk]:
        handler = self._worker.handlers[ask.what]
        group_size = 1 if self._loop else handler.group_size
        if group_size > 1:  # parties of like size go together, so that little is padded
            offsets = self._worker.splits[handler.split].offsets
            sizes = offsets[who + 1] - offsets[who]
            bucket = np.ceil(np.log2(np.maximum(sizes, 1)))
            who = who[np.lexsort((who, bucket))]
        return [self._chunk(ask, handler, t, who[a : a + group_size]) for a in range(0, len(who), group_size)]

    def _answers(self, chunks: Sequence[Chunk], body: Tree) -> Iterator[tuple[ChunkResult, int]]:
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

    def _chunk(self, ask: Ask, handler: Handler, t: int, me: Cohort) -> Chunk:
        single = [ask.each.get(party, {}) for party in me.tolist()] if ask.each else []
        each = {name: np.stack([np.asarray(one[name]) for one in single]) for name in single[0]} if single else {}
        return Chunk(ask.what, t, me, self._recall(handler.split, me), ask.fold, each, ask.wide)

    def _recall(self, split: str, me: Cohort) -> Remembered | None:
        """Return what these parties remember; the server's own test data is nobody's."""
        if split == "test" or not len(self.memory):
            return None
        found = self.memory.recall(me)
        return Remembered(found.known, found.leaves, found.present)
