"""The law of resuming: however a run was cut short, going on gives the bits of a run that was not."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_run_parts import SOFT, digits, end, forgetful, no_hang, rounds_of, small, start, until, wide  # noqa: F401

from atoll.core.effects import Note
from atoll.data import build
from atoll.job.file import parse
from atoll.job.job import Job
from atoll.journal import read
from atoll.methods import fedadam
from atoll.models import softmax
from atoll.runtimes.local.memory import PartyMemory
from atoll.runtimes.run import Run, simulate
from atoll.stop.stops import Converged, Patience


class Cut(Exception):
    """The end of the world, in a sink."""


def cut(job: Job, out: Path, at: int, what: str = "round", **more: Any) -> Path:
    """Run a job until a round, then end it; return the folder."""

    def sink(note: Note) -> None:
        if note.what == what and note.facts["round"] == at:
            raise Cut

    with pytest.raises(Cut):
        simulate(job, digits(), out=out, sinks=(sink,), workers=0, **more)
    return max(out.iterdir(), key=lambda p: p.stat().st_mtime)


def onwards(job: Job, folder: Path) -> Run:
    return simulate(job, digits(), resume=folder, workers=0)


def plain(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is noted, without what a clock says and without where it was resumed."""
    clock = ("time", "seconds", "work", "compile")
    return [{k: v for k, v in f.items() if k not in clock} for f in facts if f["what"] != "resume"]


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("*.safetensors"))


# --- real processes, real kills ---------------------------------------------------------------------------------------


def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bytes(tmp_path: Path) -> None:
    said = parse(SOFT, "soft")
    whole = simulate(said.job, build(said.data, said.seed), said.seed, out=tmp_path / "whole", workers=0)
    (tmp_path / "soft.toml").write_text(SOFT)
    process = start(tmp_path, "run", "soft.toml")
    folder = until(lambda: next(iter((tmp_path / "runs").glob("*/job.toml")), None)).parent
    until(lambda: _lines(folder) >= 1)
    end(process)  # before the first checkpoint: JAX has not compiled anything yet
    assert len(checkpoints(folder)) <= 1
    for delay in np.random.default_rng(0).uniform(0, 1.2, 5):
        before = _lines(folder)
        process = start(tmp_path, "run", "--resume", str(folder))
        until(lambda n=before, p=process: _lines(folder) > n + 3 or p.poll() is not None)
        time.sleep(delay)
        end(process)
    assert start(tmp_path, "run", "--resume", str(folder)).wait(90) == 0
    assert whole.folder
    assert (folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()
    record = read(folder)
    assert rounds_of(record.facts) == list(range(1, said.job.rounds + 1))
    assert plain(record.facts) == plain(json.loads(json.dumps(whole.facts)))


def _lines(folder: Path) -> int:
    path = folder / "facts.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


# --- in this process: every way of being cut --------------------------------------------------------------------------


def stopping() -> Job:
    return small(stop=[Patience("test.loss", 4, min_delta=0.06)], rounds=60)


JOBS: dict[str, Callable[[], Job]] = {
    "plain": small,
    "server memory": lambda: small(method=fedadam(softmax())),
    "memory of parties": forgetful,
    "patience": stopping,
    "seldom evaluated": lambda: small(eval_every=4, rounds=7),
}


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    out = tmp_path_factory.mktemp("whole")
    return {name: simulate(job(), digits(), out=out, workers=0) for name, job in JOBS.items()}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_cut_and_resumed_is_uncut(name: str, where: str, wholes: dict[str, Run], tmp_path: Path) -> None:
    whole = wholes[name]
    last = rounds_of(whole.facts)[-1]
    folder = cut(JOBS[name](), tmp_path, {"first": 1, "middle": last // 2 + 1, "last": last}[where])
    run = onwards(JOBS[name](), folder)
    assert run.vector.tobytes() == whole.vector.tobytes()
    assert run.reason == whole.reason
    assert plain(run.facts) == plain(whole.facts)
    assert plain(read(folder).facts) == plain(json.loads(json.dumps(whole.facts)))
    assert whole.folder
    assert (folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()


def test_these_jobs_test_what_they_say(wholes: dict[str, Run]) -> None:
    assert "patience" in wholes["patience"].reason
    assert 5 < rounds_of(wholes["patience"].facts)[-1] < 60
    folder = wholes["memory of parties"].folder or Path()
    memory = read(folder).memory()
    assert memory
    parties = PartyMemory(folder)
    parties.restore(memory["parties"])
    found = parties.recall(np.arange(20))
    assert found.known.all()
    assert np.abs(found.leaves["stage/train/0.rest"]).max() > 0
    assert memory["used"]["parties"].tolist() == list(range(20))
    assert (memory["used"]["t"] == 7).all()  # everybody's answer to the eighth ask, the last, was used
    assert read(wholes["server memory"].folder or "").memory()["state"]["server"]  # type: ignore[index]


@pytest.mark.parametrize("name", ["plain", "patience", "server memory"])
def test_a_finished_run_that_is_resumed_ends_at_once(name: str, wholes: dict[str, Run], tmp_path: Path) -> None:
    whole = wholes[name]
    folder = Path(shutil.copytree(whole.folder or "", tmp_path / "again"))
    run = onwards(JOBS[name](), folder)
    assert run.vector.tobytes() == whole.vector.tobytes()
    assert run.reason == whole.reason
    assert rounds_of(run.facts) == rounds_of(whole.facts)
    assert rounds_of(read(folder).facts) == rounds_of(whole.facts)
    assert [f["what"] for f in read(folder).facts].count("end") == 1


def test_a_run_that_stands_still_and_is_resumed_ends_at_once(tmp_path: Path) -> None:
    job = small(stop=[Converged(0.2)], rounds=60)
    whole = simulate(job, digits(), out=tmp_path, workers=0)
    assert "still" in whole.reason
    assert onwards(job, whole.folder or tmp_path).vector.tobytes() == whole.vector.tobytes()


def test_a_crash_just_before_the_end_is_noted_gives_the_same_end(wholes: dict[str, Run], tmp_path: Path) -> None:
    """The last checkpoint is written before stop is asked: a crash between them must not cost a round."""
    whole = wholes["patience"]
    folder = cut(stopping(), tmp_path, rounds_of(whole.facts)[-1], what="end")
    run = onwards(stopping(), folder)
    assert run.vector.tobytes() == whole.vector.tobytes()
    assert run.reason == whole.reason


def test_without_any_checkpoint_it_starts_again(wholes: dict[str, Run], tmp_path: Path) -> None:
    folder = cut(small(), tmp_path, 3)
    shutil.rmtree(folder / "checkpoints")
    run = onwards(small(), folder)
    assert run.vector.tobytes() == wholes["plain"].vector.tobytes()
    assert plain(run.facts) == plain(wholes["plain"].facts)
    assert plain(read(folder).facts) == plain(json.loads(json.dumps(wholes["plain"].facts)))


def test_a_torn_checkpoint_falls_back_to_the_one_before(wholes: dict[str, Run], tmp_path: Path) -> None:
    folder = cut(small(), tmp_path, 4)
    first, newest = checkpoints(folder)
    newest.write_bytes(newest.read_bytes()[:-100])
    assert int(read(folder).memory()["t"]) == int(first.stem)  # type: ignore[index]
    run = onwards(small(), folder)
    assert run.vector.tobytes() == wholes["plain"].vector.tobytes()
    assert rounds_of(read(folder).facts) == list(range(1, 7))


@pytest.mark.parametrize("torn", ['{"what": "rou', "{", '{"what": "evaluation", "round": 2, "each": [0.1, 0.'])
def test_a_torn_line_is_cut_off_and_the_next_fact_starts_a_new_one(
    torn: str, wholes: dict[str, Run], tmp_path: Path
) -> None:
    folder = cut(small(), tmp_path, 3)
    path = folder / "facts.jsonl"
    whole = path.read_text()
    path.write_text(whole + torn)
    assert len(read(folder).facts) == len(whole.splitlines())
    run = onwards(small(), folder)
    assert run.vector.tobytes() == wholes["plain"].vector.tobytes()
    lines = path.read_text().splitlines()
    assert json.loads(lines[len(whole.splitlines())])["what"] == "resume"
    assert not read(folder).damaged
    assert path.read_text().endswith("\n")
    assert rounds_of(read(folder).facts) == list(range(1, 7))


def test_a_run_that_noted_nothing_can_still_be_resumed_and_reported(wholes: dict[str, Run], tmp_path: Path) -> None:
    """A kill between the job file and the first fact."""
    folder = cut(small(), tmp_path, 1)
    (folder / "facts.jsonl").write_text("")
    shutil.rmtree(folder / "checkpoints")
    run = onwards(small(), folder)
    assert run.vector.tobytes() == wholes["plain"].vector.tobytes()
    from atoll.cli.report import report_run

    report_run(folder)


def test_resuming_with_another_job_is_refused(tmp_path: Path) -> None:
    folder = cut(small(), tmp_path, 3)
    with pytest.raises(ValueError, match=r"job|seed|differ"):
        simulate(small(method=fedadam(softmax())), digits(), resume=folder, workers=0)


def test_workers_may_change_between_cut_and_resume(tmp_path: Path) -> None:
    whole = simulate(wide(rounds=3), digits(), workers=0)
    folder = cut(wide(rounds=3), tmp_path, 2)
    assert simulate(wide(rounds=3), digits(), resume=folder, workers=2).vector.tobytes() == whole.vector.tobytes()
