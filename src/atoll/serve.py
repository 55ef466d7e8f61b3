"""Serve a job to real parties: the same program as a simulation's, asked over the network."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from atoll.combine import Each, Sum
from atoll.core.effects import Note, drive
from atoll.core.method import federate
from atoll.core.wire import Mismatch
from atoll.data.federated import Federated, Silos
from atoll.job import Assembled, Job, assemble
from atoll.journal import Journal, read
from atoll.journal.read import NoRun
from atoll.journal.write import save
from atoll.run import Run, Sink, describe


@dataclass(frozen=True)
class Served:
    """How a run over the network ended."""

    run: Run
    state: str
    reason: str


def remote(data: Federated, sizes: list[int]) -> Federated:
    """Describe parties that are elsewhere: how many samples each has, of which shape; the test set is the server's."""
    x, y = data.train.x[:0], data.train.y[:0]
    return replace(data, train=Silos(x, y, np.concatenate([[0], np.cumsum(sizes)])), own=None, parties=())


def check_served(job: Job) -> None:
    """Refuse what does not work over the network yet, instead of doing something else."""
    combine = job.channel.combine
    if not isinstance(combine, Sum | Each):
        name = type(combine).__name__
        raise Mismatch(f"{name}() over the network is not there yet: serve with Sum() and local noise, or simulate it")


def sample_layout(data: Federated) -> Any:
    """Say what one sample is, so that parties with other data are told at once."""
    from atoll.runtimes.network.message import Layout, Leaf

    arrays = {"x": data.train.x, "y": data.train.y}
    return Layout({name: Leaf(a.dtype.name, tuple(a.shape[1:]), finite=False) for name, a in arrays.items()})


def manifest_text(job: Job, data: Federated, seed: int) -> str:
    """Write the job as parties get it: what they read, check against their policy, and hold the server to."""
    from atoll.jobfile import dumps, to_table

    return dumps(to_table(job, data.recipe, seed))


def serve(
    job: Job,
    data: Federated,
    seed: int = 0,
    *,
    address: str,
    credentials: Any,
    roster: Callable[[], list[tuple[str, str]]],
    folder: str | Path,
    parties: int | None = None,
    patience: float = 600.0,
    deadline: float = 600.0,
    seeded: bool = False,
    times: Any = None,
    sinks: tuple[Sink, ...] = (),
    ready: Callable[[str], None] = lambda _: None,
) -> Served:
    """Run a job with the parties of a roster; a folder that holds an unfinished run is gone on with.

    `parties` is how many must be there to begin (default: all of the roster), `patience` how long to wait for them.
    `seeded` draws noise by address, which only tests on one machine may.
    """
    from atoll.runtimes.network.calls import Times
    from atoll.runtimes.network.hall import Hall
    from atoll.runtimes.network.message import answer_layout
    from atoll.runtimes.network.store import Store
    from atoll.runtimes.network.transport import ServerTransport
    from atoll.runtimes.workers import Worker

    check_served(job)
    folder, times = Path(folder), times or Times()
    folder.mkdir(parents=True, exist_ok=True)
    known = roster()
    need = parties or len(known)
    text = manifest_text(job, data, seed)
    memory = _kept(folder, text)
    first = assemble(job, remote(data, [1] * len(known)), seed)
    with Store(folder) as store:
        store.enrol(known)
        name = folder.name
        if _is_new(store, name):
            store.create(name)
        journal = Journal(folder, rest=0.0, sinks=sinks)
        hall = Hall(
            name, store, journal, Worker(first.handlers, first.rooms, seed), {"contribute": answer_layout(first.wire)},
            data=sample_layout(data), job=text, manifest=hashlib.sha256(text.encode()).digest(),
            key_of=lambda who: dict(roster())[who], times=times, deadline=deadline,
            elapsed=float(memory["elapsed"]) if memory else 0.0,
        )  # fmt: skip
        transport = ServerTransport(address, credentials, hall, times=times, folder=folder)
        state, reason = "failed", "the server ended unexpectedly"
        try:
            store.move(name, "running")
            ready(transport.start())
            hall.wait_for(need, patience)
            sizes = [m.samples or 1 for m in store.members()]
            made = assemble(job, remote(data, sizes), seed)
            run = _drive(
                made, hall, journal, memory, folder, seeded, describe(made, remote(data, sizes), seed), patience
            )
            state, reason = "finished", run.reason
            return Served(run, state, reason)
        except KeyboardInterrupt:
            state, reason = "stopped", "stopped by hand"
            raise
        except Exception as error:
            reason = str(error)
            raise
        finally:
            hall.end(f"the run is over: {reason}")
            transport.stop()
            if state != "stopped":
                store.move(name, state, reason[:500])  # type: ignore[arg-type] # finished or failed
            journal.flush()
            journal.close()


def _is_new(store: Any, name: str) -> bool:
    from atoll.runtimes.network.tables import Illegal

    try:
        store.state(name)
    except Illegal:
        return True
    return False


def _kept(folder: Path, text: str) -> Any:
    """Return what an unfinished run of the same job has kept; refuse a folder of another job."""
    try:
        record = read(folder)
    except NoRun:
        (folder / "job.toml").write_text(text, encoding="utf-8")
        return None
    from atoll.jobfile import dumps

    if dumps(record.job) != text:
        raise Mismatch(f"{folder} holds a run of another job: give --run another folder, or serve that job")
    return record.memory()


def _drive(
    made: Assembled, hall: Any, journal: Journal, memory: Any, folder: Path, seeded: bool, about: Any, patience: float
) -> Run:
    def online(_: int) -> Any:
        hall.wait_for(max(made.wire.floor, 1), patience)
        return hall.online()

    plan = replace(made.plan, online=online, seeded=seeded)
    journal.note(Note("resume", {"round": int(memory["t"])}) if memory else Note("start", {"round": 0, **about}))
    state = drive(federate(plan, memory), hall)
    run = Run(made.job, state, journal.facts, folder, about)
    journal.guard(lambda: save(folder / "model.safetensors", run.params))
    return run
