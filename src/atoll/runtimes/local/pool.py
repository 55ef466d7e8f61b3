"""Warm single-threaded processes, one a core: they take chunks, give sums back, and are replaced when they die."""

from __future__ import annotations

import contextlib
import logging
import mmap
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, Protocol

import numpy as np

from atoll.core.errors import AtollError
from atoll.core.party import Handler
from atoll.core.tree import Array, Tree, leaves
from atoll.core.world import World
from atoll.runtimes.local.process import TooLong, quiet_main, settle
from atoll.runtimes.local.shared import Block
from atoll.runtimes.local.worker import Chunk, ChunkResult, PartyFailed, Worker

log = logging.getLogger(__name__)
SLOTS = 4  # answers of one process that may wait for their turn to be added
TRIES = 3  # processes that may die over one chunk before the run gives up


class CannotStart(AtollError, RuntimeError):
    """No process can be given this work; the sentence says why."""

    code = "cannot_start"


class WorkerFactory(Protocol):
    """A worker that is made in the process that needs it."""

    @property
    def first(self) -> int: ...
    def create(self) -> Worker: ...


class _WorkerProcess(NamedTuple):
    """One process and the means to talk to it."""

    process: Any
    line: Connection
    slots: Sequence[Block]
    core: int


class ProcessPool:
    """Processes that answer chunks in parallel; `answers` yields them in the order of the chunks."""

    def __init__(self, worker: Worker | WorkerFactory, size: int) -> None:
        self._worker = worker
        self._buffer = Block()  # what everybody is told
        self._shared: dict[int, tuple[Block, Any]] = {}  # samples, as spawned processes see them
        self._cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
        self._hands: list[_WorkerProcess] = []
        for i in range(size):
            self._hands.append(self._start(i))
        self.died: list[str] = []

    def __len__(self) -> int:
        return len(self._hands)

    def processes(self) -> list[int]:
        """Return the process ids, for those who watch."""
        return [hand.process.pid for hand in self._hands]

    def _start(self, i: int) -> _WorkerProcess:
        ours, theirs = multiprocessing.Pipe()
        slots = [Block() for _ in range(SLOTS)]
        paths = [slot.path for slot in slots]
        # Parties of a network that share a machine do not all take its first core.
        core = self._cores[(self._worker.first + i) % len(self._cores)]
        how = "fork" if _may_fork() else "spawn"
        whole = isinstance(self._worker, Worker) and how == "spawn"
        worker = _share_memory(self._worker, self._shared) if whole else self._worker  # type: ignore[arg-type]
        args = (theirs, worker, self._buffer.path, paths, core, os.getpid())
        context: Any = multiprocessing.get_context(how)
        process = context.Process(target=_serve, args=args, daemon=True, name=f"atoll-{i}")
        with quiet_main(how):
            process.start()
        theirs.close()
        return _WorkerProcess(process, ours, slots, core)

    def answers(
        self, chunks: Sequence[Chunk], body: Tree, until: float | None = None
    ) -> Iterator[tuple[ChunkResult, int]]:
        """Yield each chunk's (answer, process number), in order; an answer holds until the next one is asked for.

        What is not there by `until`, a moment of time.monotonic, is given up: that raises TooLong.
        """
        told = self._buffer.write(body)
        free = {h: list(range(SLOTS)) for h in range(len(self._hands))}
        queued: dict[int, list[int]] = {h: [] for h in free}  # chunks in each process's hands
        where: dict[int, tuple[int, int, Any]] = {}  # answered chunks: process, slot, answer
        tries = [0] * len(chunks)
        todo, turn = list(range(len(chunks)))[::-1], 0
        while turn < len(chunks):
            for h in sorted(free, key=lambda h: len(queued[h])):
                # Two in hand hide the way there and back; the slot goes with the chunk.
                while todo and free[h] and len(queued[h]) < 2:
                    c = todo.pop()
                    try:
                        self._hands[h].line.send((c, chunks[c], told, free[h][-1]))
                    except (BrokenPipeError, OSError):
                        todo.append(c)
                        break
                    queued[h].append(c)
                    where[c] = (h, free[h].pop(), None)
            if turn in where and where[turn][2] is not None:
                h, slot, answer = where.pop(turn)
                yield answer, h
                free[h].append(slot)
                turn += 1
                continue
            for done, h, answer in self._listen(until):
                if done is None:  # the process died: another one does its chunks
                    self._replace(h, [chunks[i] for i in queued[h]], tries, queued[h])
                    lost = [i for i, place in where.items() if place[0] == h]
                    for i in lost:
                        del where[i]
                    todo += sorted(lost, reverse=True)
                    queued[h], free[h] = [], list(range(SLOTS))
                    continue
                queued[h].remove(done)
                where[done] = (*where[done][:2], answer)

    def _listen(self, until: float | None) -> Iterator[tuple[int | None, int, ChunkResult | None]]:
        lines = {hand.line: h for h, hand in enumerate(self._hands)}
        ready = wait(list(lines), None if until is None else max(until - time.monotonic(), 0.0))
        if not ready:
            for h in lines.values():
                self._renew(h)
            raise TooLong("training was not done in time, and was given up")
        for line in ready:
            h = lines[line]  # type: ignore[index] # wait returns what it was given
            try:
                c, failed, spec, seconds = self._hands[h].line.recv()
            except (EOFError, OSError):
                yield None, h, None
                continue
            if failed:
                raise PartyFailed(failed)
            if c is None:  # its first word
                _log_cores(self._hands[h], spec)
                continue
            slot, packed = spec
            tree = self._hands[h].slots[slot].read(packed)
            each, memory = (dict(leaves(tree.get(name, {}))) for name in ("each", "memory"))
            yield c, h, ChunkResult(tree.get("sums", {}), each, memory, seconds)

    def _replace(self, h: int, chunks: Sequence[Chunk], tries: list[int], numbers: Sequence[int]) -> None:
        hand = self._hands[h]
        hand.process.join(5)
        code = hand.process.exitcode
        self.died.append(f"worker {h} ended with code {code}")
        for i in numbers:
            tries[i] += 1
        worst = max(numbers, key=lambda i: tries[i], default=None)
        if worst is not None and tries[worst] >= TRIES:
            parties = ", ".join(str(p) for c in chunks for p in c.me[:5].tolist())
            raise PartyFailed(
                f"{TRIES} processes died (code {code}) over the same parties ({parties}): "
                "too little memory, or a crash in native code; run with --loop to see which party it is"
            )
        self._renew(h)

    def _renew(self, h: int) -> None:
        """Put another process in the place of one, whatever that is at; even one that is stopped."""
        hand = self._hands[h]
        hand.process.kill()
        hand.process.join(5)
        hand.line.close()
        self._hands[h] = self._start(h)

    def close(self) -> None:
        """End all processes."""
        for hand in self._hands:
            with contextlib.suppress(OSError):
                hand.line.close()
            hand.process.terminate()
        for hand in self._hands:
            hand.process.join(2)
            if hand.process.is_alive():
                hand.process.kill()
                hand.process.join(2)
        self._hands = []


def _log_cores(hand: _WorkerProcess, cores: Sequence[int]) -> None:
    """Say on which core a process works, and aloud if it is not its own: two on one core take twice as long."""
    if cores == [hand.core]:
        log.info("process %d keeps to core %d", hand.process.pid, hand.core)
    elif cores:
        log.warning("process %d could not keep to core %d, it works on %s", hand.process.pid, hand.core, cores)


# --- in the child -----------------------------------------------------------------------------------------------------


def _serve(
    line: Connection, worker: Worker | WorkerFactory, buffer: str, slots: list[str], core: int, parent: int
) -> None:
    cores = settle(core, parent)
    worker = worker if isinstance(worker, Worker) else worker.create()
    told, mine = Block(buffer), [Block(path) for path in slots]
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        line.send((None, None, cores, None))
        while True:
            number, chunk, spec, slot = line.recv()
            try:
                answer = worker.answer(chunk, told.read(spec))
                tree = {"sums": answer.sums, "each": answer.each, "memory": answer.memory}
                line.send((number, None, (slot, mine[slot].write(tree)), answer.seconds))
            except Exception as error:
                line.send((number, failure(worker, chunk, error), None, None))
    os._exit(0)


def failure(worker: Worker, chunk: Chunk, error: Exception) -> str:
    """Say who failed, in which round, on what, and why."""
    who = f"party {chunk.me[0]}" if len(chunk.me) == 1 else f"one of parties {', '.join(map(str, chunk.me[:5]))}…"
    where = traceback.extract_tb(error.__traceback__)[-1]
    hint = "" if len(chunk.me) == 1 else "; run with --loop to see which party it is"
    return (
        f"round {chunk.t + 1}, {who}, '{chunk.what}' on {worker.describe(chunk)}: "
        f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno}){hint}"
    )


# --- how a child gets its work ----------------------------------------------------------------------------------------


def _may_fork() -> bool:
    """Forking is quick and shares everything, but only safe before a backend or a thread exists."""
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    bridge = sys.modules.get("jax._src.xla_bridge")
    # PyTorch and gRPC have threads of their own, which no Python count shows.
    threads = {"torch", "grpc"} & set(sys.modules)
    return not (bridge is not None and getattr(bridge, "_backends", None)) and not threads


class _SharedWorker(NamedTuple):
    """A worker whose samples are named, not copied, on their way to a spawned child."""

    handlers: Mapping[str, Handler]
    splits: Mapping[str, Sequence[Any]]
    world: World
    first: int

    def create(self) -> Worker:
        splits = {name: _Samples(*map(_fetch, split)) for name, split in self.splits.items()}
        return Worker(self.handlers, splits, self.world, self.first)


class _Samples(NamedTuple):
    x: Any
    y: Any
    offsets: Any
    index: Any


def _share_memory(worker: Worker, shared: dict[int, tuple[Block, Any]]) -> _SharedWorker:
    """Name a worker's arrays instead of copying them; refuse what a new interpreter could not import."""
    try:
        travels = bytes(ForkingPickler.dumps(worker.handlers))
    except Exception as error:  # pickling fails in many ways
        raise CannotStart(f"the job cannot travel to another process ({error})") from None
    if b"__main__" in travels:
        raise CannotStart("the job uses a function or class of the running script or notebook")
    arrays = {name: (silos.x, silos.y, silos.offsets, silos.index) for name, silos in worker.splits.items()}
    splits = {name: [_reference(array, shared) for array in some] for name, some in arrays.items()}
    return _SharedWorker(worker.handlers, splits, worker.world, worker.first)


def _reference(array: Array | None, shared: dict[int, tuple[Block, Any]]) -> Any:
    if array is None:
        return None
    if isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap) and array.flags.c_contiguous:
        # A slice of a mapped array has the offset of the whole: only the whole can be named by its file.
        return ("file", str(array.filename), array.offset, array.shape, array.dtype.str)
    if id(array) not in shared:
        block = Block()
        shared[id(array)] = (block, block.write({"a": array}))
    block, spec = shared[id(array)]
    return ("block", block.path, spec)


def _fetch(reference: Any) -> Array | None:
    if reference is None:
        return None
    if reference[0] == "file":
        _, name, offset, shape, dtype = reference
        return np.memmap(name, dtype, "r", offset, shape)
    array: Array = Block(reference[1]).read(reference[2])["a"]
    return array
