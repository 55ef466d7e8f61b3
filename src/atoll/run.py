"""Run a job on this machine and hold what came of it."""

from __future__ import annotations

import os
import platform
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from atoll.core.effects import Note, drive
from atoll.core.method import federate
from atoll.core.tree import Array, Tree, unflatten
from atoll.data.federated import Federated
from atoll.job import Assembled, Job, World, assemble
from atoll.journal import Journal, read
from atoll.journal.write import save
from atoll.runtimes.simulate import Simulator

Sink = Callable[[Note], None]


@dataclass(frozen=True, eq=False)
class Run:
    """A finished (or interrupted) run: its parameters, its facts, its folder."""

    job: Job
    state: Mapping[str, Any]
    facts: list[dict[str, Any]]
    folder: Path | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def params(self) -> dict[str, Any]:
        """The trained parameters as a tree of named arrays (the model's leaves), or the method's own."""
        model = getattr(self.job.method, "model", None)
        w = np.asarray(self.state["params"])
        return {"params": w} if model is None else unflatten(w, model.schema)

    @property
    def vector(self) -> Array:
        """The trained parameters as one flat vector."""
        return np.asarray(self.state["params"])

    @property
    def reason(self) -> str:
        """Why the run ended."""
        return next((f["reason"] for f in reversed(self.facts) if f["what"] == "end"), "interrupted")

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Return (rounds, values) of a metric such as "test.accuracy", "own.loss" or "bytes_up"."""
        return curve(self.facts, metric)

    def predict(self, x: Array) -> Array:
        """Return the model's scores for rows."""
        return np.asarray(self.job.method.model.scores(self.vector, np.asarray(x)))  # type: ignore[attr-defined]

    def report(self, path: str | Path = "report.html") -> Path:
        """Write the run as one self-contained HTML page."""
        from atoll.report.page import write

        return write(path, self.about, self.facts)

    def plot(self) -> Any:
        """Draw the run's figures (matplotlib), for a notebook."""
        from atoll.report.figures import overview

        return overview(self.about, self.facts)


def curve(facts: list[dict[str, Any]], metric: str) -> tuple[list[int], list[float]]:
    """Read a metric's rounds and values out of facts."""
    room, _, name = metric.partition(".")
    looks = [f for f in facts if f["what"] == "look" and f.get("room") == room and name in f]
    found = looks or [f for f in facts if f["what"] == "round" and metric in f]
    key = name if looks else metric
    if not found:
        rooms = {f"{f['room']}.{k}" for f in facts if f["what"] == "look" for k, v in f.items() if isinstance(v, float)}
        rounds = {k for f in facts if f["what"] == "round" for k, v in f.items() if isinstance(v, int | float)}
        from atoll.catalogue import nearest

        known = sorted(rooms | rounds - {"round", "time"})
        raise KeyError(f"no metric '{metric}' in this run; {nearest(metric, known)}")
    return [f["round"] for f in found], [f[key] for f in found]


def simulate(
    job: Job,
    data: Federated,
    seed: int = 0,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    workers: int | None = None,
    loop: bool = False,
    sinks: tuple[Sink, ...] = (),
) -> Run:
    """Train a federation on this machine.

    With `out` a run folder is written below it and an interrupted run can be resumed. `workers` is a number of
    processes (0: this one; None: as many as help). `loop` asks one party at a time and names the one that fails.
    The result depends on the job, the data and the seed only.
    """
    if workers is not None and workers < 0:
        raise ValueError(f"workers={workers}: a number of processes is 0 (this one) or more")
    if loop and workers:
        raise ValueError(f"loop=True asks one party at a time, in this process: leave out workers={workers}")
    return _train(job, data, seed, out, resume, sinks, {"workers": workers, "loop": loop})


def on_ray(
    job: Job,
    data: Federated,
    seed: int = 0,
    *,
    address: str | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    workers: int | None = None,
    sinks: tuple[Sink, ...] = (),
) -> Run:
    """Train a federation on a Ray cluster; all else is as in `simulate`, and so is the result.

    `address` is what `ray.init` takes ("ray://host:10001", "host:6379", "auto"); without one a cluster is started on
    this machine and ended with the run. `workers` is a number of actors (None: one a CPU of the cluster).
    """
    from functools import partial

    from atoll.runtimes.ray import RayPool

    if workers is not None and workers < 1:
        raise ValueError(f"workers={workers}: a number of actors is 1 or more")
    return _train(job, data, seed, out, resume, sinks, {"crew": partial(RayPool, size=workers, address=address)})


def _train(
    job: Job, data: Federated, seed: int, out: str | Path | None, resume: str | Path | None, sinks: tuple[Sink, ...],
    hands: dict[str, Any],
) -> Run:  # fmt: skip
    """Train with these hands: what a simulator is told of who does the work."""
    from atoll.catalogue import BadJob
    from atoll.data import check
    from atoll.jobfile import dumps

    check(data)
    assembled = assemble(job, data, seed)
    record = read(resume) if resume else None
    folder = record.folder if record else new_folder(Path(out), job.name) if out else None
    memory = record.memory() if record else None
    about = describe(assembled, data, seed)
    if record and dumps(record.job) != dumps(about["job"]):
        raise BadJob(f"{folder} holds a run of another job or seed: resume with that one (its job.toml), or start anew")
    journal = Journal(folder, sinks=sinks)
    runtime = None
    try:
        if memory and record:
            journal.facts += [f for f in record.facts if f["what"] != "end" and f.get("round", 0) <= _round(memory)]
        if folder and not record:
            journal.guard(lambda: _write_job(folder, about))
        if folder:
            for sink in sinks:
                sink(Note("folder", {"path": str(folder)}))
        if hands.get("workers", 0) is None:
            hands = {**hands, "workers": how_many(assembled)}
        runtime = Simulator(
            assembled.handlers, assembled.rooms, seed, world=World(job.availability, seed), journal=journal,
            elapsed=float(memory["elapsed"]) if memory else 0.0, **hands,
        )  # fmt: skip
        journal.note(Note("resume", {"round": _round(memory)}) if memory else Note("start", {"round": 0, **about}))
        if memory:
            runtime.restore(memory)
        state = drive(federate(assembled.plan, memory), runtime)
        run = Run(assembled.job, state, journal.facts, folder, about)
        if folder:
            journal.guard(lambda: save(folder / "model.safetensors", run.params))
    finally:
        if runtime:
            runtime.close()
        with suppress(OSError):
            journal.flush()
        journal.close()
    return run


def _round(memory: Tree | None) -> int:
    return int(memory["t"]) if memory else 0


def how_many(assembled: Assembled) -> int:
    """Decide how many processes help: none for small work, else one a core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    plan, method = assembled.plan, assembled.job.method
    cohort = assembled.wire.cohort
    numbers = assembled.wire.size * float(plan.sizes.mean()) * cohort * getattr(method, "epochs", 1)
    return min(cores, cohort) if cores > 1 and cohort > 1 and numbers > 1e7 else 0


def new_folder(out: Path, name: str) -> Path:
    """Name a new run folder."""
    return out / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def describe(assembled: Assembled, data: Federated, seed: int) -> dict[str, Any]:
    """Say what a report needs to know of a run before it starts: job, data, wire, environment."""
    from atoll.jobfile import to_table

    job, wire = assembled.job, assembled.wire
    accounts = assembled.ledger.accounts if assembled.ledger else ()
    privacy: dict[str, Any] = {f"epsilon_{a.spend.unit}_means": a.words() for a in accounts[1:]}
    for a in accounts[:1]:
        privacy |= {"words": a.words(), "delta": a.delta, "epsilon_planned": a.epsilon(job.rounds), "simulated": True}
    shown, counts = data.label_counts()
    sizes = data.train.sizes
    return {
        "job": to_table(job, data.recipe, seed),
        "parties": len(data),
        "parameters": job.method.schema.size,
        "cohort": wire.cohort,
        "bytes_per_vector": assembled.plan.up,
        "seen": dict(job.channel.combine.seen(wire)),
        **({"privacy": privacy} if privacy else {}),
        "kind": data.kind,
        "classes": data.classes,
        "names": [data.parties[k] for k in shown] if data.parties else [],  # as the rows of the partition
        "sizes": {
            "least": int(sizes.min()),
            "mean": float(sizes.mean()),
            "most": int(sizes.max()),
            "all": int(sizes.sum()),
        },
        "partition": counts.tolist(),
        "environment": environment(),
    }


def environment() -> dict[str, str]:
    """Say on what a run ran."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "machine": platform.machine(), "cores": str(os.cpu_count())}
    for name in ("atoll", "jax", "numpy", "optax", "torch"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _write_job(folder: Path, about: Mapping[str, Any]) -> None:
    from atoll.jobfile import dumps

    part = folder / "job.toml.part"
    part.write_text(dumps(about["job"]), encoding="utf-8")
    part.replace(folder / "job.toml")
