"""Serve a job to real parties: the same program as a simulation's, asked over the network."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np

from atoll.core.disk import replace_file
from atoll.core.effects import Cohort, Note, Sink, drive, number
from atoll.core.errors import AtollError, Unwritable
from atoll.core.question import Question
from atoll.core.tree import Tree
from atoll.core.wire import Member, Mismatch
from atoll.core.world import World
from atoll.data.federated import Federated, Silos
from atoll.job.assemble import Assembled, agreement_of, assemble, check_stops, summary_of
from atoll.job.job import Job
from atoll.job.quorum import check_quorum, quorum_of
from atoll.journal import Damaged, Journal, Past, reopen
from atoll.journal.read import NoRun
from atoll.journal.sealed import save
from atoll.journal.write import mend, write_format
from atoll.programs.influence import weight_limits
from atoll.programs.traffic import travels
from atoll.runtimes.run import Run, describe

if TYPE_CHECKING:
    from atoll.runtimes.network.messages.calls import Limits, Times
    from atoll.runtimes.network.server.hub import Hub
    from atoll.runtimes.network.server.monitor import Monitor
    from atoll.runtimes.network.server.store import Store
    from atoll.runtimes.network.server.tables import RunState
    from atoll.runtimes.network.trust.tls import Insecure, ServerTLS


RETURN = 60.0  # seconds in which parties that were there look at a job again, before a round begins without them


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
    local = None if data.local is None else Silos(x, y, np.zeros(len(sizes) + 1, np.int64))
    return replace(data, train=train, local=local, parties=())


def manifest_text(job: Job, data: Federated, seed: int) -> str:
    """Write the job as parties get it: what they read, check against their policy, and hold the server to."""
    from atoll.job.file import dumps, to_table

    # Of a file parties are told what its columns mean, and not where the server has it.
    recipe = data.recipe if data.schema is None else {"use": "schema", **data.schema.table()}
    return dumps(to_table(job, recipe, seed))


def serve(
    job: Job,
    data: Federated,
    seed: int = 0,
    *,
    address: str,
    credentials: ServerTLS | Insecure,
    roster: Callable[[], Mapping[str, str]],
    folder: str | Path,
    parties: int | None = None,
    world: Callable[[int], World] = World.real,
    times: Times | None = None,
    sinks: tuple[Sink, ...] = (),
    health: str | None = None,
    ready: Callable[[str], None] = lambda _: None,
) -> Served:
    """Run a job with the parties of a roster; a folder that holds an unfinished run is resumed.

    Args:
        job: what to train.
        data: a description of the parties' data, and the server's own test set.
        seed: of all public randomness.
        address: where to listen, as host:port.
        credentials: the server's keys.
        roster: names and keys of all who may come; read again whenever somebody comes.
        folder: the run folder.
        parties: how many must be there to begin (default: all of the roster).
        world: where private draws come from; anything but the default is for tests on one machine.
        times: `times.patience` is how long to wait for parties before the run fails (default: for ever), `times.answer`
            for their answers, in seconds.
        sinks: functions that are told every fact.
        health: an address of this machine, for monitors.
        ready: is told the address when the server listens.
    """
    from atoll.job.file import third_party
    from atoll.runtimes.network.messages.calls import Limits, Times

    third_party(job)  # refuses parts that no party could have
    folder, times = Path(folder), times or Times()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    known, place = roster(), world(seed)
    text = manifest_text(job, data, seed)
    past = kept(folder, text)
    first = assemble(job, remote(data, [1] * len(known)), seed, world=place)
    check_stops(job.stop, first.program.splits, first.program.evaluation)
    check_quorum(job, len(known))
    with entered(folder, known, past, job.rounds, health, sinks) as (monitor, store, journal):
        questions = first.questions(len(known))
        hub = _hub(store, journal, first, questions, data, text, roster, times, past, credentials.successor)
        monitor.follow(hub.snapshot)

        def assembled() -> tuple[Assembled, Federated]:
            there = remote(data, [m.samples or 1 for m in store.members()])
            agreement, members = agreement_of(text), partial(members_of, store)
            made = assemble(job, there, seed, world=place, agreement=agreement, members=members)
            hub.renew(made.questions(len(there)))
            quorum = quorum_of(job, {member.name: member.number for member in store.members()})
            hub.require(quorum, made.program.exchanges)
            declared = np.array([member.samples or 0 for member in store.members()])
            return replace(made, program=replace(made.program, quorum=quorum, declared=declared)), there

        work = partial(_work, hub, store, journal, past, assembled, seed, parties, times)
        limits = Limits.of(len(known), map(travels, questions.values()))
        run = listening(Line(address, credentials, limits, times, ready), hub, store, journal, work)
        return Served(run, "finished", run.reason)


class Line(NamedTuple):
    """Where a server listens, as whom, within which limits; `ready` is told the address when it does."""

    address: str
    credentials: ServerTLS | Insecure
    limits: Limits
    times: Times
    ready: Callable[[str], None]


class _Ended(Protocol):
    """What came of a run; `reason` says why it ended."""

    @property
    def reason(self) -> str: ...


R = TypeVar("R", bound=_Ended)


def listening(line: Line, hub: Hub, store: Store, journal: Journal, work: Callable[[], R]) -> R:
    """Serve parties' calls while the work of a run goes on, and write down how it ended.

    Args:
        line: where to listen.
        hub: what serves the calls.
        store: the run's, in its folder.
        journal: the run's; it is closed.
        work: runs the program.
    """
    from atoll.runtimes.network.transport import ServerTransport

    folder = store.path.parent
    transport = ServerTransport(
        line.address, line.credentials, hub, limits=line.limits, times=line.times, folder=folder
    )
    hub.allow = transport.allow
    state: RunState = "failed"
    reason = "the server ended unexpectedly"
    try:
        store.move(folder.name, "running")
        line.ready(transport.start())
        run = work()
        state, reason = "finished", run.reason
        return run
    except KeyboardInterrupt:
        state, reason = "stopped", "stopped by hand"
        raise
    except Exception as error:
        reason = str(error)
        raise
    finally:
        if state != "stopped":  # who is not told that it is over waits for a server that is started again
            hub.end(f"the run is over: {reason}", failed=state == "failed")
            hub.farewell(line.times.grace)
        transport.stop()
        if state != "stopped":
            store.move(folder.name, state, reason[:500])
        journal.flush()
        journal.close()


def _hub(
    store: Store, journal: Journal, first: Assembled, questions: Mapping[str, Question], data: Federated, text: str,
    roster: Callable[[], Mapping[str, str]], times: Times, past: Past, successor: bytes,
) -> Hub:  # fmt: skip
    from atoll.runtimes.local.worker import Worker
    from atoll.runtimes.network.server.hub import Hub

    return Hub(
        store.path.parent.name, store, journal, Worker(first.handlers, first.splits, first.program.world),
        questions, data=summary_of(data).sample, schema=data.schema, classes=data.classes, job=text,
        manifest=agreement_of(text), roster=roster, times=times, live=True, successor=successor,
        elapsed=float(past.memory["elapsed"]) if past.memory else 0.0,
        weights=weight_limits(first.program.exchanges),
    )  # fmt: skip


def members_of(store: Store) -> dict[int, Member]:
    """Names and keys of all who may come, by their numbers."""
    from atoll.runtimes.network.trust.roster import peer_of

    return {m.number: Member(m.name, peer_of(f"{m.name} {m.key}").key) for m in store.members() if m.listed}


@contextmanager
def entered(
    folder: Path, known: Mapping[str, str], past: Past, rounds: int, health: str | None, sinks: tuple[Sink, ...]
) -> Iterator[tuple[Monitor, Store, Journal]]:
    """Begin the run of a folder, or resume it, with all who may come."""
    from atoll.runtimes.network.server.monitor import Monitor
    from atoll.runtimes.network.server.store import opened

    numbers = {str(f["party"]): int(number(f, "number") or 0) for f in past.facts if f["what"] == "joined"}
    with Monitor(folder, rounds, health, past) as monitor:
        store, damaged = opened(folder, known, numbers)
        with store:
            if is_new(store, folder.name):
                store.create(folder.name)
            elif store.state(folder.name)[0] == "finished":
                raise Mismatch(
                    f"{folder} holds a run that has ended: atoll report shows it, --run names another folder"
                )
            journal = Journal(folder, rest=0.0, sinks=(*sinks, monitor))
            for why in damaged:
                journal.note(Note("damaged", {"round": past.rounds, "why": why}))
            yield monitor, store, journal


def is_new(store: Store, name: str) -> bool:
    from atoll.runtimes.network.server.tables import Illegal

    try:
        store.state(name)
    except Illegal:
        return True
    return False


def kept(folder: Path, text: str) -> Past:
    """Return what an unfinished run of the same job goes on from; refuse a folder of another job.

    A run whose checkpoints are all damaged is refused, too: parties would be asked again for what they have answered.
    """
    from atoll.job.file import dumps

    try:
        record = reopen(folder)
    except NoRun:
        try:
            write_format(folder)
            replace_file(folder / "job.toml", text.encode(), mode=0o600, sync=False)
        except OSError as error:
            raise Unwritable(f"cannot write to {folder}: {error.strerror}; choose another folder") from None
        return Past()
    if dumps(record.job) != text:
        raise Mismatch(f"{folder} holds a run of another job: give --run another folder, or serve that job")
    past = record.past()
    if past.memory is None and (done := record.done()):
        found = "; ".join(past.damaged) or f"{folder}/checkpoints is empty"
        raise Damaged(
            f"{folder}: the run has done round {done} at least, and no checkpoint is whole ({found}): put the folder "
            "back from a copy, or begin the run anew with another --run"
        )
    mend(record)
    return past


class _Renewed(AtollError):
    """The roster has changed, so parties look at the job again; so many were there before."""

    code = "roster_renewed"

    def __init__(self, there: int) -> None:
        super().__init__(there)
        self.there = there


def _work(
    hub: Hub, store: Store, journal: Journal, past: Past, assembled: Callable[[], tuple[Assembled, Federated]],
    seed: int, parties: int | None, times: Times,
) -> Run:  # fmt: skip
    """Run the program with the parties that there are; with other parties it goes on from its checkpoint."""
    from atoll.runtimes.network.server.hub import NobodyThere

    made, there = assembled()
    waiting = True
    while waiting:
        hub.wait_for(parties or len(hub.members()), times.patience)
        waiting = hub.renewed
        made, there = assembled()  # now that their sizes are known
    while True:
        try:
            return _drive(made, hub, journal, past, store.path.parent, describe(made, there, seed), times.patience)
        except _Renewed as news:
            journal.flush()
            past = reopen(store.path.parent).past()
            made, there = assembled()
            with suppress(NobodyThere):
                hub.wait_for(news.there, min(RETURN, times.patience))


def _drive(made: Assembled, hub: Hub, journal: Journal, past: Past, folder: Path, about: Tree, patience: float) -> Run:
    combine = made.job.channel.combine
    # Without the holders of a key nothing would be opened, round after round.
    named = combine.holders(hub.members())

    def online(_: int) -> Cohort:
        there = len(hub.online())
        hub.wait_for(combine.min_cohort(made.wire), patience, named)
        if hub.renewed:
            raise _Renewed(there)
        return hub.online()

    job = tomllib.loads((folder / "job.toml").read_text(encoding="utf-8"))  # as parties got it
    journal.begin({**about, "job": job}, past)
    state = drive(replace(made, program=replace(made.program, online=online)).running(past.memory), hub)
    run = Run(made.job, state, journal.facts, folder, about)
    journal.guard(lambda: save(folder / "model.safetensors", run.params))
    return run
