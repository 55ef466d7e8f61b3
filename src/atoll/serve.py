"""Serve a job to real parties: the same program as a simulation's, asked over the network."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from atoll.core.effects import Note, drive
from atoll.core.method import federate
from atoll.core.party import Group
from atoll.core.wire import Mismatch
from atoll.data.federated import Federated, Silos
from atoll.job import Assembled, Job, assemble, check_stops
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
    train = Silos(x, y, np.concatenate([[0], np.cumsum(sizes)]))
    own = None if data.own is None else Silos(x, y, np.zeros(len(sizes) + 1, np.int64))
    return replace(data, train=train, own=own, parties=())


def as_served(job: Job) -> Job:
    """Return the job as it runs between real parties: sums are hidden in earnest."""
    combine: Any = job.channel.combine
    real = replace(combine, real=True) if hasattr(combine, "talk") else combine
    return replace(job, channel=replace(job.channel, combine=real))


def sample_layout(data: Federated) -> Any:
    """Say what one sample is, so that parties with other data are told at once."""
    from atoll.runtimes.network.trees import Layout, Leaf

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
    roster: Callable[[], Mapping[str, str]],
    folder: str | Path,
    parties: int | None = None,
    seeded: bool = False,
    times: Any = None,
    sinks: tuple[Sink, ...] = (),
    health: str | None = None,
    ready: Callable[[str], None] = lambda _: None,
) -> Served:
    """Run a job with the parties of a roster; a folder that holds an unfinished run is gone on with.

    `parties` is how many must be there to begin (default: all of the roster), `times.patience` how long to wait for
    them, `times.answer` for their answers.
    `seeded` draws noise by address, which only tests on one machine may. `health` is an address of this machine, for
    monitors.
    """
    from atoll.runtimes.network.calls import Limits, Times
    from atoll.runtimes.network.store import Store
    from atoll.runtimes.network.transport import ServerTransport
    from atoll.runtimes.network.watch import Watch

    folder, times = Path(folder), times or Times(patience=600.0)
    folder.mkdir(parents=True, exist_ok=True)
    known = roster()
    need = parties or len(known)
    text = manifest_text(job, data, seed)
    memory = _kept(folder, text)
    job = as_served(job)
    first = assemble(job, remote(data, [1] * len(known)), seed)
    check_stops(job.stop, first.plan.rooms)
    with Watch(folder, job.rounds, health) as watch, Store(folder) as store:
        store.enrol([*known.items()])
        name = _entered(store, folder)
        journal = Journal(folder, rest=0.0, sinks=(*sinks, watch))
        layouts = answer_layouts(first, len(known))
        hall = _hall(store, journal, first, layouts, data, text, roster, times, memory)
        watch.follow(hall.snapshot)
        transport = ServerTransport(
            address, credentials, hall, limits=Limits.of(len(known), layouts.values()), times=times, folder=folder
        )
        state, reason = "failed", "the server ended unexpectedly"
        try:
            store.move(name, "running")
            ready(transport.start())
            hall.wait_for(need, times.patience)
            sizes = [m.samples or 1 for m in store.members()]
            made = talking(assemble(job, remote(data, sizes), seed), store)
            run = _drive(
                made, hall, journal, memory, folder, seeded, describe(made, remote(data, sizes), seed), times.patience
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
            if state != "stopped":  # who is not told that it is over waits for a server that is started again
                hall.end(f"the run is over: {reason}")
            transport.stop()
            if state != "stopped":
                store.move(name, state, reason[:500])  # type: ignore[arg-type] # finished or failed
            journal.flush()
            journal.close()


def _hall(
    store: Any, journal: Journal, first: Assembled, layouts: Mapping[str, Any], data: Federated, text: str,
    roster: Callable[[], Mapping[str, str]], times: Any, memory: Any,
) -> Any:  # fmt: skip
    from atoll.runtimes.network.hall import Hall
    from atoll.runtimes.workers import Worker

    return Hall(
        store.path.parent.name, store, journal, Worker(first.handlers, first.rooms, first.plan.seed),
        layouts, data=sample_layout(data), classes=data.classes, job=text,
        manifest=hashlib.sha256(text.encode()).digest(), key_of=lambda who: roster()[who], times=times,
        elapsed=float(memory["elapsed"]) if memory else 0.0,
    )  # fmt: skip


def answer_layouts(made: Assembled, parties: int) -> dict[str, Any]:
    """Say what answers look like, by the question."""
    from atoll.runtimes.network.trees import answer_layout, figures_layout, message_layout

    combine: Any = made.job.channel.combine
    if hasattr(combine, "talk"):
        layouts = {name: message_layout(most) for name, (most, _) in combine.needs(made.wire, parties).items()}
    else:
        layouts = {"contribute": answer_layout(made.wire)}
    if "judge.own" in made.handlers:
        # What a judge tells is seen from a judgement of one sample of zeros.
        judge, method = made.handlers["judge.own"], made.plan.method
        x, y = made.rooms["train"].x, made.rooms["train"].y
        one = Silos(np.zeros((1, *x.shape[1:]), x.dtype), np.zeros((1, *y.shape[1:]), y.dtype), np.array([0, 1]))
        group = Group(np.zeros(1, np.int64), one, np.zeros(1, np.int64), 0, 0)
        told, _ = judge({"share": method.share(method.init(made.plan.seed)), "t": 0}, group)
        layouts["judge.own"] = figures_layout({name: np.asarray(leaf) for name, leaf in told.items()})
    return layouts


def talking(made: Assembled, store: Any) -> Assembled:
    """Let a sum that hides its vectors be a conversation with those who are elsewhere."""
    from atoll.runtimes.network.roster import peer_of

    combine: Any = made.job.channel.combine
    if not hasattr(combine, "talk"):
        return made

    def keys() -> dict[int, bytes]:
        return {m.number: peer_of(f"{m.name} {m.key}").key for m in store.members() if m.listed}

    gather = combine.talk(made.wire, keys, schema_of(made.plan.method))
    return replace(made, plan=replace(made.plan, gather=gather))


def schema_of(method: Any) -> bytes:
    """Hash what a contribution looks like."""
    return hashlib.sha256(repr(method.schema).encode()).digest()


def _entered(store: Any, folder: Path) -> str:
    """Note that the run of this folder begins or goes on; return its name."""
    if is_new(store, folder.name):
        store.create(folder.name)
    elif store.state(folder.name)[0] == "finished":
        raise Mismatch(f"{folder} holds a run that has ended: atoll report shows it, --run names another folder")
    return folder.name


def is_new(store: Any, name: str) -> bool:
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
        from atoll.runtimes.network.disk import Unwritable

        try:
            (folder / "job.toml").write_text(text, encoding="utf-8")
        except OSError as error:
            raise Unwritable(f"cannot write to {folder}: {error.strerror}; choose another folder") from None
        return None
    from atoll.jobfile import dumps

    if dumps(record.job) != text:
        raise Mismatch(f"{folder} holds a run of another job: give --run another folder, or serve that job")
    return record.memory()


def _drive(
    made: Assembled, hall: Any, journal: Journal, memory: Any, folder: Path, seeded: bool, about: Any, patience: float
) -> Run:
    combine: Any = made.job.channel.combine
    # Without the holders of a key nothing would be opened, round after round.
    named = combine.holding(hall.members()) if hasattr(combine, "holding") else ()

    def online(_: int) -> Any:
        hall.wait_for(max(made.wire.floor, getattr(combine, "least", 1)), patience, named)
        return hall.online()

    plan = replace(made.plan, online=online, seeded=seeded)
    journal.note(Note("resume", {"round": int(memory["t"])}) if memory else Note("start", {"round": 0, **about}))
    state = drive(federate(plan, memory), hall)
    run = Run(made.job, state, journal.facts, folder, about)
    journal.guard(lambda: save(folder / "model.safetensors", run.params))
    return run
