"""Actors on a Ray cluster that answer chunks, as the processes of a pool do. No round, method or journal lives here."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from atoll.core.errors import AtollError, Mismatch
from atoll.core.tree import Array, Tree
from atoll.runtimes.local.pool import SLOTS, TRIES
from atoll.runtimes.local.worker import Chunk, ChunkResult, PartyFailed, Worker
from atoll.runtimes.ray.actor import CALLS, Actor, ActorPlace, versions
from atoll.runtimes.ray.cluster import NoCluster, cause, connect, import_ray, stay
from atoll.runtimes.ray.plan import Add, Plan

PATIENCE = 60.0  # seconds until some actor must be there
MEMORY = 256 << 20  # bytes of sums that may wait to be added, on average over the actors

Ref = Any  # a promise of Ray's


class OtherVersions(AtollError, RuntimeError):
    """A node that would compute other bits."""

    code = "other_versions"


class _Question:
    """What is asked, the calls under way, what has come of it."""

    def __init__(self, number: int, chunks: Sequence[Chunk], body: Ref) -> None:
        self.number, self.chunks, self.body = number, chunks, body
        self.plan = Plan(len(chunks))
        self.answering: dict[Ref, tuple[int, range]] = {}  # (actor, chunks), oldest first
        self.adding: dict[Ref, tuple[Add, Ref]] = {}  # at most one, and the total that comes of it
        self.total: Ref | None = None  # None: nothing is added yet
        self.holding: dict[Ref, int] = {}  # actors that are given the total early
        self.falls = 0  # totals that were lost
        self.done: dict[int, tuple[ChunkResult, int]] = {}


class RayPool:
    """Actors that answer chunks in parallel, one a CPU; `answers` yields them in the order of the chunks.

    Samples and handlers are placed in the cluster once. The sums of chunks stay with the actors: see `plan`. An actor
    that is lost, alone or with its node, is started anew wherever a CPU is free, and its chunks are done again; until
    then the others do them.
    """

    def __init__(self, worker: Worker, size: int | None = None, address: str | None = None) -> None:
        if size is not None and size < 1:
            raise Mismatch(f"workers={size}: a number of actors is 1 or more")
        self._leave = connect(address, size)
        self.died: list[str] = []
        self._actors: dict[int, Any] = {}
        self._starting: dict[Ref, int] = {}
        self._places: dict[int, ActorPlace] = {}  # the actors that are there
        self._stumbles: dict[int, int] = {}  # starts that failed, in a row
        self._asked = 0  # questions so far
        self._sizes: dict[str, int] = {}  # bytes of a chunk's answer, by what is asked
        try:
            ray = import_ray()
            self._node = ray.get_runtime_context().get_node_id()
            self._actor = ray.remote(Actor).options(
                num_cpus=1, max_concurrency=CALLS, runtime_env={"env_vars": _alone()}
            )
            try:
                self._worker = ray.put(worker)
            except Exception as error:  # pickling fails in many ways, and a store may be full
                raise NoCluster(f"the job or its data cannot travel to Ray's actors ({cause(error)})") from None
            for h in range(size or max(int(ray.cluster_resources().get("CPU", 1)), 1)):
                self._start(h)
            while not self._places:
                self._settle(self._landed(()))
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._actors)

    def processes(self) -> list[int]:
        """Return the process ids of the actors that are there, each on its own node."""
        return [place.pid for _, place in sorted(self._places.items())]

    def answers(self, chunks: Sequence[Chunk], body: Tree) -> Iterator[tuple[ChunkResult, int]]:
        """Yield each chunk's (answer, actor number), in order; the sums of all chunks come with the last one."""
        self._asked += 1
        question = _Question(self._asked, chunks, import_ray().put(body))
        for turn in range(len(chunks) - 1):
            while turn not in question.done:
                self._advance(question, turn)
            yield question.done.pop(turn)
        last = len(chunks) - 1
        while (sums := self._sums(question)) is None or last not in question.done:
            self._advance(question, last)
        result, h = question.done[last]
        yield result._replace(sums=sums), h

    def _sums(self, question: _Question) -> Mapping[str, Array] | None:
        """Return the total if all is added."""
        if question.plan.added < len(question.chunks):
            return None
        try:
            sums: Mapping[str, Array] = import_ray().get(question.total)
        except _losses() as error:
            self._lost_total(question, error)
            return None
        return sums

    def _advance(self, question: _Question, turn: int) -> None:
        """Let everybody have work, and wait until something is done."""
        self._deal(question)
        landed = self._landed([*question.answering, *question.adding, *question.holding])
        self._settle(landed)
        for ref in landed:
            if ref in question.answering:
                self._collect(question, ref, turn)
            elif ref in question.adding:  # else it is a start, or of an actor that is lost
                self._collect_total(question, ref)
            elif ref in question.holding:
                del question.holding[ref]
                with contextlib.suppress(*_losses()):  # who is lost has calls of greater weight; a total is asked for
                    import_ray().get(ref)

    def _deal(self, question: _Question) -> None:
        """Give chunks to whom has too few, and let the next sums be added."""
        plan, here, what = question.plan, self._places, question.chunks[0].what
        capacity = max(MEMORY // max(self._sizes[what], 1), SLOTS) if what in self._sizes else SLOTS
        # Who is on our node gets later chunks: the total of all ends where it is needed.
        for h in 2 * sorted(here, key=lambda h: (here[h].node_id == self._node, here[h].node_id, h)):
            if chunks := plan.take(h, len(here), capacity):
                some = {c: question.chunks[c] for c in chunks}
                ref = self._actors[h].answer.remote(question.number, some, question.body)
                question.answering[ref] = h, chunks
        if question.adding:
            return
        if add := plan.add():
            call = self._actors[add.actor].add.options(num_returns=2)
            ref, total = call.remote(add.chunks, question.total)
            question.adding[ref] = add, total
        elif (holder := plan.hold()) is not None:
            ref = self._actors[holder].hold.remote(question.number, plan.added, question.total)
            question.holding[ref] = holder

    def _collect(self, question: _Question, ref: Ref, turn: int) -> None:
        """Take in answers; where their actor is lost, its chunks are to be done again."""
        h, chunks = question.answering[ref]
        try:
            failed, results, size = import_ray().get(ref)
        except _losses() as error:
            self._died(question, h, chunks, error)
            return
        if failed:
            raise PartyFailed(failed)
        del question.answering[ref]
        self._sizes[question.chunks[0].what] = size
        question.plan.answered(h, chunks)
        question.done |= {c: (result, h) for c, result in results.items() if c >= turn}  # some are done again

    def _collect_total(self, question: _Question, ref: Ref) -> None:
        add, total = question.adding[ref]
        try:
            import_ray().get(ref)
        except import_ray().exceptions.ObjectLostError as error:
            with contextlib.suppress(import_ray().exceptions.ObjectLostError):
                import_ray().get(total)  # Ray prints errors that nobody has looked at
            self._lost_total(question, error)
        except _losses() as error:
            self._died(question, add.actor, add.chunks, error)
        else:
            question.plan.has_added(add)
            question.adding, question.total = {}, total

    def _died(self, question: _Question, h: int, chunks: range, error: Exception) -> None:
        """Take back all that an actor has; note over which chunks it died, three are too many."""
        for c in question.plan.lost(h) or chunks:
            question.plan.tries[c] += 1
            if question.plan.tries[c] >= TRIES:
                raise _given_up(question.chunks[c], error) from None
        question.answering = {ref: call for ref, call in question.answering.items() if call[0] != h}
        question.adding = {ref: call for ref, call in question.adding.items() if call[0].actor != h}
        self._lost(h, error)

    def _lost_total(self, question: _Question, error: Exception) -> None:
        """Begin to add anew: the running total went with its node."""
        question.falls += 1
        if question.falls >= TRIES:
            raise NoCluster(f"the running sum was lost {TRIES} times ({cause(error)}): keep the nodes running")
        question.plan.lost_total()
        question.adding, question.total = {}, None

    def close(self) -> None:
        """End all actors; leave the cluster, and end it if it was started for this."""
        for actor in self._actors.values():
            with contextlib.suppress(Exception):  # the cluster may be gone
                import_ray().kill(actor)
        self._actors, self._starting, self._places = {}, {}, {}
        self._worker = None  # the cluster may forget the samples
        leave, self._leave = self._leave, stay
        leave()

    def _start(self, h: int) -> None:
        self._actors[h] = self._actor.remote(self._worker)
        self._starting[self._actors[h].ready.remote()] = h

    def _landed(self, flying: Iterable[Ref]) -> list[Ref]:
        """Wait until an answer or an actor is there; without any actor only so long."""
        waiting = [*flying, *self._starting]
        limit = None if self._places else PATIENCE
        landed: list[Ref] = import_ray().wait(waiting, timeout=limit)[0] if waiting else []
        if not landed:
            free = import_ray().available_resources().get("CPU", 0)
            why = f"; the last to be lost: {self.died[-1]}" if self.died else ""
            raise NoCluster(f"no actor started within {PATIENCE:g} s: the Ray cluster has {free:g} free CPUs{why}")
        return landed

    def _settle(self, landed: Sequence[Ref]) -> None:
        """Take in the actors that have started; start anew those that failed to, but not for ever."""
        gone: tuple[type[Exception], ...] = (*_losses(), OtherVersions)
        for ref in landed:
            if ref not in self._starting:
                continue
            h = self._starting.pop(ref)
            try:
                place = import_ray().get(ref)
                if place.versions != versions():
                    raise OtherVersions(_difference(place))
            except gone as error:
                self._stumbles[h] = self._stumbles.get(h, 0) + 1
                self._lost(h, error)
                continue
            self._stumbles[h] = 0
            self._places[h] = place

    def _lost(self, h: int, error: Exception) -> None:
        place = self._places.pop(h, None)
        self.died.append(f"actor {h}{f' on {place.node}' if place else ''}: {cause(error)}")
        with contextlib.suppress(Exception):  # what cannot be reached may still be alive
            import_ray().kill(self._actors[h])
        del self._actors[h]
        if self._stumbles.get(h, 0) < TRIES:
            self._start(h)
        elif not self._actors:
            raise NoCluster(f"no actor can start: {cause(error)}") from None


def _given_up(chunk: Chunk, error: Exception) -> PartyFailed:
    parties = ", ".join(map(str, chunk.me[:5].tolist()))
    return PartyFailed(
        f"{TRIES} actors died over the same parties ({parties}; {cause(error)}): "
        "too little memory, or a crash in native code; run with --loop to see which party it is"
    )


def _difference(place: ActorPlace) -> str:
    ours = versions()
    names = sorted(n for n in ours.keys() | place.versions.keys() if ours.get(n) != place.versions.get(n))
    differ = ", ".join(f"{n} {place.versions.get(n, 'missing')} (here {ours.get(n, 'missing')})" for n in names)
    return f"node {place.node} has {differ}: results would differ, install the same on every node"


def _alone() -> dict[str, str]:
    """Give an actor one thread and memory that is used again at once, as the processes of a pool have."""
    flag = "--xla_cpu_multi_thread_eigen=false"
    given = os.environ.get("XLA_FLAGS", "")
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")
    return {
        **dict.fromkeys(threads, "1"),
        "XLA_FLAGS": given if flag in given else f"{given} {flag}".strip(),
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    }


def _losses() -> tuple[type[Exception], ...]:
    """What Ray raises when an actor, its node or what it left there is gone."""
    from ray import exceptions as e

    return (
        e.RayActorError, e.ObjectLostError, e.NodeDiedError, e.WorkerCrashedError, e.OutOfMemoryError,
        e.RuntimeEnvSetupError, e.ActorUnschedulableError,
    )  # fmt: skip
