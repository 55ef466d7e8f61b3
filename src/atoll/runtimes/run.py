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

from atoll.combine.hidden import LEAST
from atoll.combine.protocol import PartySession
from atoll.core.disk import replace_file
from atoll.core.effects import Note, Sink, drive
from atoll.core.errors import AtollError
from atoll.core.given import number
from atoll.core.tree import Array
from atoll.core.wire import ClientSide, Member, Mismatch
from atoll.core.world import World
from atoll.crypto.keys import Identity
from atoll.crypto.lists import SignedLists
from atoll.crypto.secagg.policy import SpentHere
from atoll.data.federated import Federated
from atoll.job.assemble import Assembled, Dropouts, agreement_of, assemble
from atoll.job.job import Job, check_job
from atoll.journal import Journal, Past, reopen
from atoll.journal.sealed import save
from atoll.journal.write import mend, write_format
from atoll.programs.influence import at_will
from atoll.programs.phases import lines_by_phase
from atoll.runtimes.given import check_given, check_switches
from atoll.runtimes.local.memory import PartyMemory
from atoll.runtimes.local.simulator import Simulator

MAX_PEERS = 2000  # parties that run a protocol in one process


class NoMetric(AtollError, KeyError):
    """A run has no metric of that name."""

    code = "no_metric"
    __str__ = Exception.__str__  # that of KeyError would quote the sentence


@dataclass(frozen=True, eq=False)
class Run:
    """A finished or interrupted run: its parameters, its facts, its folder.

    Args:
        job: what was trained.
        state: the last state of the method.
        facts: what was recorded.
        folder: the run folder. Default: there is none.
        about: what was known before the first round.

    Example:
        >>> import atoll
        >>> data = atoll.data.load("digits").split(10, seed=0)
        >>> job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.Count(5), rounds=3)
        >>> run = atoll.simulate(job, data)
        >>> run.reason, run.curve("test.accuracy")[0], run.predict(data.test.x[:2]).shape
        ('all 3 rounds done', [0, 1, 2, 3], (2, 10))
    """

    job: Job
    state: Mapping[str, Any]
    facts: list[dict[str, Any]]
    folder: Path | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def params(self) -> dict[str, Any]:
        """What was trained, as a tree of named arrays (of a model, its leaves)."""
        return dict(self.job.method.parameters(self.state))

    @property
    def vector(self) -> Array:
        """The trained parameters as one flat vector."""
        if "params" not in self.state:
            what = type(self.job.method).__name__
            raise Mismatch(f"the state of {what} has no params to make one vector of: use run.params, or run.state")
        return np.asarray(self.state["params"])

    @property
    def reason(self) -> str:
        """Why the run ended."""
        return next((f["reason"] for f in reversed(self.facts) if f["what"] == "end"), "interrupted")

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Return (rounds, values) of a metric such as "test.accuracy", "local.loss" or "bytes_up"."""
        return curve(self.facts, metric)

    def predict(self, x: Array) -> Array:
        """Return what the trained model says of rows: scores of classes, or numbers."""
        try:
            rows = np.asarray(x)
        except ValueError:  # rows of different lengths
            rows = np.zeros(())
        if not rows.ndim:
            what = type(x).__name__
            raise Mismatch(f"x is a {what}, and an array of rows, all of one length, is needed, such as data.test.x")
        return self.job.method.predict(self.state, rows)

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
    if not isinstance(metric, str):
        raise Mismatch(f'metric must be a name such as "test.accuracy", got {metric!r}')
    split, _, name = metric.partition(".")
    evaluations = [f for f in facts if f["what"] == "evaluation" and f.get("split") == split and name in f]
    found = evaluations or [f for f in facts if f["what"] == "round" and metric in f]
    key = name if evaluations else metric
    if not found:
        splits = {
            f"{f['split']}.{k}"
            for f in facts
            if f["what"] == "evaluation"
            for k, v in f.items()
            if isinstance(v, float)
        }
        rounds = {k for f in facts if f["what"] == "round" for k, v in f.items() if isinstance(v, int | float)}
        from atoll.core.errors import nearest

        known = sorted(splits | rounds - {"round", "time"})
        raise NoMetric(f"no metric '{metric}' in this run; {nearest(metric, known)}")
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
    protocols: bool = False,
    sinks: tuple[Sink, ...] = (),
) -> Run:
    """Train a federation on this machine. The result depends on the job, the data and the seed only.

    Args:
        job: what to train.
        data: the parties' data.
        seed: of all randomness. Default 0.
        out: folder below which a run folder is written. Default: nothing is written.
        resume: the folder of an interrupted run of the same job. Default: a new run.
        workers: number of processes; 0: this one. Default: as many as help.
        loop: ask one party at a time and name the one that fails. Default false.
        protocols: run the whole protocol of hidden sums among all parties, instead of adding the same integers. Default
            false.
        sinks: functions that receive every fact. Default: none.

    Example:
        >>> import atoll
        >>> data = atoll.data.load("digits").split(10, seed=0)
        >>> job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.Count(5), rounds=3)
        >>> atoll.simulate(job, data, seed=0).reason
        'all 3 rounds done'
    """
    check_job(job)
    check_given(out=out, resume=resume, sinks=sinks)
    check_switches(loop=loop, protocols=protocols)
    seed = number("seed", seed, least=None)
    if workers is not None:
        workers = number("workers", workers, least=0)
    if loop and workers:
        raise Mismatch(f"loop=True asks one party at a time, in this process: leave out workers={workers}")
    world = World.simulated(seed, protocols=protocols)
    return _train(job, data, world, out, resume, sinks, {"workers": workers, "loop": loop})


def on_ray(
    job: Job,
    data: Federated,
    seed: int = 0,
    *,
    address: str | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    workers: int | None = None,
    protocols: bool = False,
    sinks: tuple[Sink, ...] = (),
) -> Run:
    """Train a federation on a Ray cluster. All else is as in `simulate`, and so is the result.

    Args:
        job: what to train.
        data: the parties' data.
        seed: of all randomness. Default 0.
        address: as `ray.init` takes it ("ray://host:10001", "host:6379", "auto"). Default: a cluster on this machine,
            which ends with the run.
        out: folder below which a run folder is written. Default: nothing is written.
        resume: the folder of an interrupted run of the same job. Default: a new run.
        workers: number of actors. Default: one for each CPU of the cluster.
        protocols: run the whole protocol of hidden sums, in the driver. Default false.
        sinks: functions that receive every fact. Default: none.

    Example:
        >>> import atoll
        >>> data = atoll.data.load("digits").split(10, seed=0)
        >>> job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.Count(5), rounds=3)
        >>> run = atoll.on_ray(job, data, workers=2)  # doctest: +SKIP
    """
    from functools import partial

    from atoll.runtimes.ray.pool import RayPool

    check_job(job)
    check_given(out=out, resume=resume, sinks=sinks)
    check_switches(protocols=protocols)
    seed = number("seed", seed, least=None)
    if not isinstance(address, str | None):
        raise Mismatch(f'address must be text, as in address="auto", got {address!r}')
    if workers is not None:
        workers = number("workers", workers)
    executor = partial(RayPool, size=workers, address=address)
    world = World.simulated(seed, protocols=protocols)
    return _train(job, data, world, out, resume, sinks, {"executor": executor})


def _train(
    job: Job, data: Federated, world: World, out: str | Path | None, resume: str | Path | None, sinks: tuple[Sink, ...],
    executor: dict[str, Any],
) -> Run:  # fmt: skip
    """Train with this executor: what a simulator is told of who does the work."""
    from atoll.data import check
    from atoll.job.catalogue import BadJob
    from atoll.job.file import dumps, to_table

    check(data)
    seed = world.seed
    text = dumps(to_table(job, data.recipe, seed))
    peers = Peers(data) if not world.shortcut else None
    assembled = assemble(
        job, data, seed, world=world, agreement=agreement_of(text), members=peers.members if peers else dict
    )
    record = reopen(resume) if resume else None
    folder = record.folder if record else new_folder(Path(out), job.name) if out else None
    parties = PartyMemory(folder)
    past = record.past(parties.fits) if record else Past()
    memory, about = past.memory, describe(assembled, data, seed)
    if record and dumps(record.job) != dumps(about["job"]):
        raise BadJob(f"{folder} holds a run of another job or seed: resume with that one (its job.toml), or start anew")
    journal = Journal(folder, sinks=sinks)
    runtime = None
    try:
        if record:
            journal.guard(lambda: mend(record))
        elif folder:
            journal.guard(lambda: write_job(folder, about))
        if folder:
            for sink in sinks:
                sink(Note("folder", {"path": str(folder)}))
        if executor.get("workers", 0) is None:
            executor = {**executor, "workers": how_many(assembled)}
        runtime = Simulator(
            assembled.handlers, assembled.splits, world, availability=Dropouts(job.availability.drop, seed),
            journal=journal, memory=parties, client=peers.sides(assembled) if peers else None,
            elapsed=float(memory["elapsed"]) if memory else 0.0, **executor,
        )  # fmt: skip
        journal.begin(about, past)
        if memory:
            runtime.restore(memory)
        state = drive(assembled.running(memory), runtime)
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


def how_many(assembled: Assembled) -> int:
    """Decide how many processes help: none for small work, else one a core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    program, cohort = assembled.program, assembled.wire.total.cohort
    numbers = assembled.wire.row.size * float(program.sizes.mean()) * cohort * program.method.passes
    return min(cores, cohort) if cores > 1 and cohort > 1 and numbers > 1e7 else 0


def new_folder(out: Path, name: str) -> Path:
    """Name a new run folder."""
    return out / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def describe(assembled: Assembled, data: Federated, seed: int) -> dict[str, Any]:
    """Say what a report needs to know of a run before it starts: job, data, wire, environment.

    `simulated`: all parties are on this machine.
    """
    from atoll.job.file import to_table

    job, wire, world = assembled.job, assembled.wire, assembled.program.world
    exchanges = assembled.program.exchanges
    privacy: dict[str, Any] = {}
    if (ledger := assembled.ledger) is not None:
        asks = ledger.planned(job.rounds)
        planned = {} if asks is None else {"epsilon_planned": ledger.accounts[0].epsilon(asks)}
        privacy = {**ledger.terms(), **planned}
    shown, counts = data.label_counts()
    sizes = data.train.sizes
    if not world.watched:  # a server knows how much a party holds, not what
        counts = sizes[shown][:, None]
    return {
        "job": to_table(job, data.recipe, seed),
        "simulated": not world.secret,
        "parties": len(data),
        "parameters": max(phase.schema.size for phase in job.method.phases.values()),
        "cohort": wire.total.cohort,
        "bytes_per_vector": max(exchange.wire.row.bytes for exchange in exchanges.values()),
        "seen": dict(assembled.program.seen()),
        "at_will": lines_by_phase({name: at_will(exchange) for name, exchange in exchanges.items()}),
        "better": dict(assembled.program.evaluation.better) if assembled.program.evaluation else {},
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


class Peers:
    """Parties of a simulation that run protocols among themselves: each with a key of its own, known to all."""

    def __init__(self, data: Federated) -> None:
        if len(data) > MAX_PEERS:
            raise Mismatch(
                f"protocols of {len(data):,} parties do not fit into one process: simulate without protocols"
            )
        names = data.parties or tuple(f"party {k}" for k in range(len(data)))
        self._identities = {k: Identity.new() for k in range(len(data))}
        self._members = {k: Member(names[k], self._identities[k].public) for k in range(len(data))}

    def members(self) -> Mapping[int, Member]:
        return self._members

    def sides(self, made: Assembled) -> Callable[[str, int], ClientSide]:
        """Return how to make a party's side of a phase's conversation."""

        def side(phase: str, party: int) -> ClientSide:
            session = PartySession(party, self._identities[party], LEAST, 2**31, SpentHere(), SignedLists())
            exchange = made.program.conversations[phase]
            found = exchange.combine.client(exchange.wire, exchange.setting, session)
            if found is None:
                raise Mismatch(f"{exchange.combine} has no conversation with single parties")
            return found

        return side


def environment() -> dict[str, str]:
    """Say on what a run ran."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "machine": platform.machine(), "cores": str(os.cpu_count())}
    for name in ("atoll", "jax", "numpy", "optax", "torch"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def write_job(folder: Path, about: Mapping[str, Any]) -> None:
    from atoll.job.file import dumps

    write_format(folder)
    replace_file(folder / "job.toml", dumps(about["job"]).encode(), mode=0o600, sync=False)
