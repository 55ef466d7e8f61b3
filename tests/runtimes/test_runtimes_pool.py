"""Processes of a simulation: what they hold in memory, and the cores they keep to."""

from __future__ import annotations

import logging
import os
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from atoll.combine import Sum
from atoll.core.effects import Cohort, drive
from atoll.core.tree import Array
from atoll.core.wire import Setting, Wire
from atoll.core.world import World
from atoll.data.federated import Silos
from atoll.journal import Journal
from atoll.runtimes.local.pool import ProcessPool
from atoll.runtimes.local.simulator import Simulator
from atoll.runtimes.local.worker import Chunk, Worker
from atoll.testing import Echo

SIZE = 100_000


class Calm:
    """A world in which everybody answers."""

    def lost(self, who: Cohort, t: int) -> Array:
        return np.zeros(len(who), bool)

    def latency(self, who: Cohort, t: int) -> Array:
        return np.zeros(len(who))


def worker(parties: int) -> Worker:
    samples = Silos(np.zeros((parties, 1), np.float32), np.zeros(parties, np.int32), np.arange(parties + 1))
    return Worker({"train/contribute": Echo()}, {"train": samples}, World())


def peak(parties: int, workers: int) -> int:
    """Most bytes held at a time while the vectors of so many parties are summed, beside the question itself."""
    rows = np.ones((parties, SIZE), np.float32)
    made = worker(parties)
    runtime = Simulator(made.handlers, made.splits, World(), availability=Calm(), journal=Journal(), workers=workers)
    with closing(runtime):
        gather = Sum().gather(Wire.of(SIZE, parties), Setting("train", World()))
        tracemalloc.start()
        try:
            vector, _ = drive(gather(np.arange(parties), {"rows": rows, "t": 0}, None), runtime)
            held = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert (vector == parties).all()
    return held


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sum_takes_no_more_memory_for_a_larger_cohort(workers: int) -> None:
    """Ten times the parties: who kept their vectors would need ten times as much."""
    few, many = peak(20, workers), peak(200, workers)
    assert many < 1.5 * few
    assert many < 200 * SIZE * 4 / 10


# --- cores ------------------------------------------------------------------------------------------------------------

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes choose their cores on Linux only")


def asked(pool: ProcessPool) -> Iterator[Any]:
    chunks = [Chunk("train/contribute", 0, np.array([p]), None, ()) for p in range(6)]
    return (answer.each["me"].tolist() for answer, _ in pool.answers(chunks, {"rows": np.eye(6), "t": 0}))


@linux
def test_processes_keep_to_their_cores_and_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    cores = sorted(os.sched_getaffinity(0))
    with closing(ProcessPool(worker(6), 3)) as pool, caplog.at_level(logging.INFO, "atoll"):
        while len(caplog.messages) < 3:  # whoever starts first may do all the work
            assert list(asked(pool)) == [[p] for p in range(6)]
        expect = [cores[i % len(cores)] for i in range(3)]
        assert [os.sched_getaffinity(pid) for pid in pool.processes()] == [{core} for core in expect]
        said = {f"process {pid} keeps to core {core}" for pid, core in zip(pool.processes(), expect, strict=True)}
        assert set(caplog.messages) == said


@linux
def test_a_core_that_is_not_to_be_had_is_said_aloud_and_the_work_is_done(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, true = os.getpid(), os.sched_getaffinity
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {9999} if os.getpid() == here else true(pid))
    with closing(ProcessPool(worker(6), 1)) as pool:
        monkeypatch.undo()
        assert list(asked(pool)) == [[p] for p in range(6)]
        (process,), cores = pool.processes(), sorted(os.sched_getaffinity(0))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == f"process {process} could not keep to core 9999, it works on {cores}"
