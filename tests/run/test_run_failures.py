"""What goes wrong in a party or a process is named or mended; nothing hangs and nothing is left behind."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_run_parts import Fails, digits, no_hang, rounds_of, script, small, wide  # noqa: F401

from atoll.core.effects import Note
from atoll.models import mlp, softmax
from atoll.runtimes.local.pool import _fetch, _reference
from atoll.runtimes.local.worker import PartyFailed
from atoll.runtimes.run import Run, simulate
from atoll.select import Always, Count


def failing(how: str = "raise", hidden: int = 300) -> Any:
    return small(method=Fails(mlp((hidden,)), how=how), rounds=4)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_handler_that_raises_is_named_with_round_party_and_inputs(workers: int) -> None:
    with pytest.raises(PartyFailed) as raised:
        simulate(failing(), digits(), workers=workers)
    said = str(raised.value)
    size = int(digits().train.sizes[7])
    assert re.search(r"round 2, party 7\b", said)
    assert "ValueError: the sensor of this party is broken" in said
    assert f"x ({size}, 64)" in said or f"x ({size}, 8, 8)" in said
    assert f"y ({size},)" in said
    assert not multiprocessing.active_children()


def test_the_loop_names_the_party_that_the_fast_path_cannot_tell() -> None:
    job = small(method=Fails(softmax()), rounds=4)
    with pytest.raises(PartyFailed, match=r"one of parties .*--loop"):
        simulate(job, digits(), workers=0)
    with pytest.raises(PartyFailed, match=r"round 2, party 7, .*broken"):
        simulate(job, digits(), loop=True)


@lru_cache
def calm() -> Run:
    return simulate(wide(), digits(), workers=0)


def killed(at: int, delay: float | None) -> Run:
    def sink(note: Note) -> None:
        if note.what == "round" and note.facts["round"] == at:
            pid = next(p.pid for p in multiprocessing.active_children() if p.pid)
            if delay is None:
                os.kill(pid, signal.SIGKILL)
            else:
                threading.Timer(delay, os.kill, (pid, signal.SIGKILL)).start()

    return simulate(wide(), digits(), workers=2, sinks=(sink,))


@pytest.mark.parametrize("delay", [None, 0.02])
def test_a_killed_worker_is_replaced_and_the_bits_are_the_same(delay: float | None) -> None:
    run = killed(3, delay)
    assert np.array_equal(run.vector, calm().vector)
    assert rounds_of(run.facts) == list(range(1, 7))
    died = [f for f in run.facts if "died" in f]
    assert len(died) == 1
    assert "-9" in died[0]["died"]
    assert died[0]["round"] > 3


def test_a_party_that_kills_its_process_again_and_again_ends_the_run() -> None:
    with pytest.raises(PartyFailed, match=r"3 processes died \(code 3\).*\b7\b") as raised:
        simulate(failing("exit"), digits(), workers=2)
    assert "--loop" in str(raised.value)
    assert not multiprocessing.active_children()


def test_classes_of_a_script_are_run_in_process_once_jax_is_awake(tmp_path: Path) -> None:
    found = script(
        """
import json
from dataclasses import dataclass
from functools import lru_cache
import test_run_parts as parts
from atoll.models import mlp
from atoll.runtimes.run import simulate

@dataclass(frozen=True)
class Mine(parts.Fails):
    party: int = 99

simulate(parts.small(rounds=1), parts.digits(), workers=0)
run = simulate(parts.small(method=Mine(mlp((300,))), rounds=2), parts.digits(), workers=2)
print(json.dumps([f for f in run.facts if f["what"] in ("in process", "end")]))
""",
        tmp_path,
    )
    assert [f["what"] for f in found] == ["in process", "end"]
    assert "script" in found[0]["why"]


def test_a_script_whose_classes_were_forked_survives_a_killed_worker(tmp_path: Path) -> None:
    found = script(
        """
import json, multiprocessing, os, signal
from dataclasses import dataclass
from functools import lru_cache
import test_run_parts as parts
from atoll.models import mlp
from atoll.runtimes.run import simulate

@dataclass(frozen=True)
class Mine(parts.Fails):
    party: int = 99

def sink(note):
    if note.what == "round" and note.facts["round"] == 2:
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

job = parts.small(method=Mine(mlp((300,))), rounds=3)
disturbed = simulate(job, parts.digits(), workers=2, sinks=(sink,))
calm = simulate(job, parts.digits(), workers=0)
print(json.dumps(bool((disturbed.vector == calm.vector).all())))
""",
        tmp_path,
    )
    assert found is True


def test_a_spawning_script_without_a_main_guard_is_not_run_again(tmp_path: Path) -> None:
    found = script(
        """
import json
import test_run_parts as parts
from pathlib import Path
from atoll.runtimes.run import simulate
with Path("times").open("a") as file:
    file.write("x")
calm = simulate(parts.wide(rounds=2), parts.digits(), workers=0)
run = simulate(parts.wide(rounds=2), parts.digits(), workers=2)
print(json.dumps([Path("times").read_text(), bool((run.vector == calm.vector).all())]))
""",
        tmp_path,
    )
    assert found == ["x", True]


def test_a_method_that_cannot_travel_is_run_in_process() -> None:
    @dataclass(frozen=True)
    class Local(Fails):
        party: int = 99

    run = simulate(small(method=Local(mlp((300,))), rounds=2), digits(), workers=2)
    assert [f["what"] for f in run.facts if f["what"] == "in process"] == ["in process"]


@pytest.mark.parametrize("cut", [slice(None), slice(37, None), slice(None, None, 2)])
def test_mapped_samples_reach_spawned_workers_unchanged(cut: slice, tmp_path: Path) -> None:
    np.arange(4000, dtype=np.float32).tofile(tmp_path / "x.bin")
    x = np.memmap(tmp_path / "x.bin", np.float32, "r", shape=(1000, 4))[cut]
    lent: dict[int, object] = {}  # holds the block for as long as it is looked at
    assert np.array_equal(_fetch(_reference(x, lent)), x)  # type: ignore[arg-type]


def test_a_round_in_which_everybody_is_lost_leaves_the_model_as_it_is() -> None:
    job = small(select=Count(1), availability=Always(drop=0.9), rounds=6)
    run = simulate(job, digits())
    silent = [f for f in run.facts if f["what"] == "round" and f["answered"] == 0]
    assert silent
    assert all(f["update_norm"] == 0 for f in silent)


def test_a_negative_number_of_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="workers"):
        simulate(small(rounds=1), digits(), workers=-1)


def test_so_are_workers_for_a_loop_that_needs_none() -> None:
    with pytest.raises(ValueError, match="leave out workers=2"):
        simulate(small(rounds=1), digits(), loop=True, workers=2)
