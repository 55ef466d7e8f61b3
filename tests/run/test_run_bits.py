"""The result of a run is a function of job, data and seed: the same bits whoever does the work."""

from __future__ import annotations

import hashlib
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from test_run_parts import digits, no_hang, script, small, wide  # noqa: F401

from atoll.core.effects import Note
from atoll.job.job import Job
from atoll.methods import FedAvg
from atoll.models import mlp
from atoll.runtimes.run import Run, simulate

MANY = 100  # parties: three chunks of the vectorised model


def narrow() -> Job:
    return small(method=FedAvg(mlp((64,)), epochs=2), rounds=3)


def large() -> Job:
    return wide(rounds=3)


CASES = {"narrow": (narrow, MANY), "large": (large, 20)}


def digest(vector: Any) -> str:
    return hashlib.sha256(np.asarray(vector).tobytes()).hexdigest()


class Watch:
    """A sink that looks who works."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def __call__(self, note: Note) -> None:
        if note.what == "round":
            self.seen.append([" ".join(psutil.Process(p.pid).cmdline()) for p in multiprocessing.active_children()])


@pytest.fixture(scope="module")
def alone() -> dict[str, Run]:
    return {name: simulate(job(), digits(n), workers=0) for name, (job, n) in CASES.items()}


@pytest.fixture(scope="module")
def bits(alone: dict[str, Run]) -> dict[str, str]:
    return {name: digest(run.vector) for name, run in alone.items()}


def plain(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is noted, without what a clock says."""
    return [{k: v for k, v in f.items() if k not in ("time", "seconds", "work", "compile")} for f in facts]


@pytest.mark.parametrize(("case", "workers"), [("narrow", 1), ("narrow", 3), ("large", 2)])
def test_spawned_workers_give_the_bits_of_none(case: str, workers: int, alone: dict[str, Run]) -> None:
    job, n = CASES[case]
    watch = Watch()
    run = simulate(job(), digits(n), workers=workers, sinks=(watch,))
    assert all(len(seen) == workers and all("spawn_main" in c for c in seen) for seen in watch.seen)
    assert digest(run.vector) == digest(alone[case].vector)
    assert plain(run.facts) == plain(alone[case].facts)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(("case", "workers"), [("narrow", 2), ("large", 1), ("large", 3)])
def test_forked_workers_give_the_bits_of_none(case: str, workers: int, bits: dict[str, str], tmp_path: Path) -> None:
    found = script(
        f"""
import json
from test_run_bits import CASES, Watch, digest, digits, simulate
job, n = CASES[{case!r}]
watch = Watch()
run = simulate(job(), digits(n), workers={workers}, sinks=(watch,))
print(json.dumps({{"bits": digest(run.vector), "seen": watch.seen}}))
""",
        tmp_path,
    )
    assert all(len(seen) == workers and not any("spawn_main" in c for c in seen) for seen in found["seen"])
    assert found["bits"] == bits[case]


@pytest.mark.parametrize("case", CASES)
def test_two_runs_of_a_seed_are_one_and_another_seed_is_another(case: str, bits: dict[str, str]) -> None:
    job, n = CASES[case]
    assert digest(simulate(job(), digits(n), 0, workers=0).vector) == bits[case]
    assert digest(simulate(job(), digits(n), 1, workers=0).vector) != bits[case]


@pytest.mark.parametrize("case", CASES)
def test_the_loop_agrees_with_the_fast_path(case: str, alone: dict[str, Run]) -> None:
    job, n = CASES[case]
    fast, loop = alone[case], simulate(job(), digits(n), loop=True)
    np.testing.assert_allclose(loop.vector, fast.vector, atol=1e-5)
    assert loop.curve("test.accuracy")[1] == pytest.approx(fast.curve("test.accuracy")[1], abs=0.01)
