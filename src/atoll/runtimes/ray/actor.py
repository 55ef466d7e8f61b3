"""What an actor of a Ray cluster does: it answers chunks, keeps their sums and adds them to a running total."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from atoll.core.tree import Array, Tree
from atoll.runtimes.local.pool import failure
from atoll.runtimes.local.worker import Chunk, ChunkResult, Worker
from atoll.runtimes.ray.cluster import import_ray

CALLS = 3  # at a time: one that answers, one that waits to, one that adds


class ActorPlace(NamedTuple):
    """Where an actor lives, and with what."""

    pid: int
    node: str  # its address
    node_id: str  # several nodes of a machine have one address
    versions: Mapping[str, str]  # of what decides the bits


class Actor:
    """A worker with its samples. One thread answers, another adds: no total waits for an answer."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._thread = ThreadPoolExecutor(1)
        self._question = 0
        self._sums: dict[int, Mapping[str, Array]] = {}  # of the question's chunks, not added yet

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
        if question != self._question:
            self._question, self._sums = question, {}
        results, size = {}, 0
        for number, chunk in chunks.items():
            try:
                result = self._worker.answer(chunk, body)
            except Exception as error:
                return failure(self._worker, chunk, error), {}, 0
            self._sums[number] = result.sums
            results[number] = result._replace(sums={})
            size = max(size, sum(leaf.nbytes for leaves in result[:3] for leaf in leaves.values()))
        return None, results, size

    def add(self, chunks: Sequence[int], total: Mapping[str, Array] | None) -> tuple[None, Mapping[str, Array]]:
        """Return the total with the sums of these chunks; the None tells that it is there, wherever it stays."""
        sums = dict(total or self._sums.pop(chunks[0]))
        for number in chunks if total else chunks[1:]:
            for name, part in self._sums.pop(number).items():
                sums[name] = sums[name] + part
        return None, sums


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Return the versions of what decides the bits, here."""
    found = {}
    for name in ("atoll", "jax", "jaxlib", "numpy", "torch"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
