"""What an actor of a Ray cluster does: it answers chunks, keeps their sums and adds them to a running total."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from atoll.core.tree import Array, Tree
from atoll.runtimes.local.pool import failure
from atoll.runtimes.local.worker import Chunk, ChunkResult, Worker
from atoll.runtimes.ray.cluster import import_ray

CALLS = 4  # at a time: one that answers, one that waits to, one that adds, one that is given a total


class ActorPlace(NamedTuple):
    """Where an actor lives, and with what."""

    pid: int
    node: str  # its address
    node_id: str  # several nodes of a machine have one address
    versions: Mapping[str, str]  # of what decides the bits


class Actor:
    """A worker with its samples. One thread answers, another adds: no total waits for an answer.

    Who has the total of all chunks before its own adds each of them as it is answered.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._thread = ThreadPoolExecutor(1)
        self._question = 0
        self._sums: dict[int, Mapping[str, Array]] = {}  # of the question's chunks, not added yet
        self._total: dict[str, Array] = {}  # of all chunks before the next one, if that is known here
        self._next = 0
        self._lock = threading.Lock()  # over these three

    def ready(self) -> ActorPlace:
        """Say where this is."""
        ray = import_ray()
        return ActorPlace(
            os.getpid(), ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_id(), versions()
        )

    def answer(
        self, question: int, chunks: Mapping[int, Chunk], body: Tree
    ) -> tuple[str | None, dict[int, ChunkResult], int]:
        """Answer chunks and keep their sums; return which party failed in a sentence, the rest, bytes of a chunk."""
        return self._thread.submit(self._answer, question, chunks, body).result()

    def _answer(
        self, question: int, chunks: Mapping[int, Chunk], body: Tree
    ) -> tuple[str | None, dict[int, ChunkResult], int]:
        self._begin(question)
        results, size = {}, 0
        for number, chunk in chunks.items():
            try:
                result = self._worker.answer(chunk, body)
            except Exception as error:
                return failure(self._worker, chunk, error), {}, 0
            with self._lock:
                self._sums[number] = result.sums
                self._extend()
            results[number] = result._replace(sums={})
            size = max(size, sum(leaf.nbytes for leaves in result[:3] for leaf in leaves.values()))
        return None, results, size

    def hold(self, question: int, before: int, total: Mapping[str, Array]) -> None:
        """Take the total of all chunks before this one, so that what comes next is added as it is answered."""
        self._begin(question)
        with self._lock:
            if question == self._question and self._next < before:
                self._total, self._next = dict(total), before
                self._extend()

    def add(self, chunks: range, total: Mapping[str, Array] | None) -> tuple[None, Mapping[str, Array]]:
        """Return the total with the sums of these chunks; the None tells that it is there, wherever it stays."""
        with self._lock:
            if self._next != chunks.stop:
                self._total, self._next = dict(total or {}), chunks.start
                self._extend(chunks.stop)
            for number in chunks:
                del self._sums[number]
            return None, self._total

    def _begin(self, question: int) -> None:
        with self._lock:
            if question > self._question:
                self._question, self._sums, self._total, self._next = question, {}, {}, 0

    def _extend(self, stop: int | None = None) -> None:
        """Add what is here and comes next. A total that was handed out does not change: another one is made."""
        while self._next in self._sums and self._next != stop:
            part = self._sums[self._next]
            self._total = {name: self._total[name] + leaf for name, leaf in part.items()} if self._total else dict(part)
            self._next += 1


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Return the versions of what decides the bits, here."""
    found = {}
    for name in ("atoll", "jax", "jaxlib", "numpy", "torch"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
