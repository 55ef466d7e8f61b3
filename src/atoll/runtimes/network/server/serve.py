"""Serve a job to real parties: the same program as a simulation's, asked over the network."""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import prod
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
    from atoll.runtimes.network.server.farewell import Farewell
    from atoll.runtimes.network.server.hub import Hub
    from atoll.runtimes.network.server.monitor import Monitor
    from atoll.runtimes.network.server.store import Store
    from atoll.runtimes.network.server.tables import RunState
    from atoll.runtimes.network.trust.tls import Insecure, ServerTLS


log = logging.getLogger(__name__)
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
    ended: Callable[[Served], None] = lambda _: None,
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
            for their answers, `times.linger` for those who do not know yet that the run has finished, in seconds.
        sinks: functions that are told every fact.
        health: an address of this machine, for monitors.
        ready: is told the address when the server listens.
        ended: is told how the run has finished, before parties that are away are waited for.
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
    line = Line(address, credentials, times, ready)
    with entered(line, folder, known, past, job.rounds, health, sinks) as (monitor, store, journal):
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
            rows = prod(data.train.y.shape[1:]) if data.kind == "classes" else 1  # positions of a sequence
            declared = rows * np.array([member.samples or 0 for member in store.members()])
            return replace(made, program=replace(made.program, quorum=quorum, declared=declared)), there

        work = partial(_work, hub, store, journal, past, assembled, seed, parties, times)
        limits = Limits.of(len(known), map(travels, questions.values()))

        def served() -> Served:
            run = work()
            return Served(run, "finished", run.reason)

        return listening(line, limits, hub, store, journal, served, ended)


class Line(NamedTuple):
    """Where a server listens, as whom, within which times; `ready` is told the address when it does."""

    address: str
    credentials: ServerTLS | Insecure
    times: Times
    ready: Callable[[str], None]
    words: str = "the run is over: "  # before the reason that parties are told; an edge passes on a whole sentence


class _Ended(Protocol):
    """What came of a run; `reason` says why it ended."""

    @property
    def reason(self) -> str: ...


R = TypeVar("R", bound=_Ended)


def listening(
    line: Line, limits: Limits, hub: Hub, store: Store, journal: Journal, work: Callable[[], R],
    ended: Callable[[R], None] = lambda _: None, waits: tuple[type[BaseException], ...] = (KeyboardInterrupt,),
) -> R:  # fmt: skip
    """Serve parties' calls while the work of a run goes on, write down how it ended, and tell the parties.

    Args:
        line: where to listen.
        limits: the sizes of what parties send.
        hub: what serves the calls.
        store: the run's, in its folder.
        journal: the run's; it is closed.
        work: runs the program.
        ended: is told what came of it, before parties that are away are waited for.
        waits: what ends the work and not the run: parties are told nothing, and wait until it is served again.
    """
    from atoll.runtimes.network.transport import ServerTransport

    folder, times = store.path.parent, line.times
    transport = ServerTransport(line.address, line.credentials, hub, limits=limits, times=times, folder=folder)
    hub.allow = transport.allow

    def over(state: RunState, reason: str) -> None:
        hub.end(f"{line.words}{reason}", failed=state == "failed")
        store.move(hub.run, state, reason[:500])
        journal.flush()

    try:
        store.move(hub.run, "running")
        line.ready(transport.start())
        try:
            run = work()
        except waits:
            raise
        except Exception as error:
            over("failed", str(error))
            hub.farewell.wait(times.grace)
            raise
        over("finished", run.reason)
        ended(run)
        with suppress(KeyboardInterrupt):  # who ends the wait does not stop the run, which has finished
            hub.farewell.wait(times.linger)
        return run
    finally:
        transport.stop()
        journal.flush()
        journal.close()


def _hub(
    store: Store, journal: Journal, first: Assembled, questions: Mapping[str, Question], data: Federated, text: str,
    roster: Callable[[], Mapping[str, str]], times: Times, past: Past, successor: bytes,
) -> Hub:  # fmt: skip
    from atoll.runtimes.local.worker import Worker
    from atoll.runtimes.network.server.hub import Hub

    return Hub(
        run_name(store.path.parent), store, journal, Worker(first.handlers, first.splits, first.program.world),
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
    line: Line, folder: Path, known: Mapping[str, str], past: Past, rounds: int, health: str | None,
    sinks: tuple[Sink, ...],
) -> Iterator[tuple[Monitor, Store, Journal]]:  # fmt: skip
    """Begin the run of a folder, or resume it, with all who may come.

    One that has finished is refused, after those were told who did not know it.
    """
    from atoll.runtimes.network.server.farewell import Farewell
    from atoll.runtimes.network.server.monitor import Monitor, last_said
    from atoll.runtimes.network.server.store import opened

    untold = last_said(folder).get("untold", [])
    numbers = {str(f["party"]): int(number(f, "number") or 0) for f in past.facts if f["what"] == "joined"}
    with Monitor(folder, rounds, health, past) as monitor:
        store, damaged = opened(folder, known, numbers)
        with store:
            name = run_name(folder)
            if is_new(store, name):
                store.create(name)
            elif (found := store.state(name))[0] == "finished":
                late = Farewell(untold)
                monitor.follow(lambda: {"over": found[1], "untold": late.names})
                tell_late(line, found[1], late)
                raise Mismatch(
                    f"{folder} holds a run that has ended: atoll report shows it, --run names another folder"
                )
            journal = Journal(folder, rest=0.0, sinks=(*sinks, monitor))
            for why in damaged:
                journal.note(Note("damaged", {"round": past.rounds, "why": why}))
            yield monitor, store, journal


def tell_late(line: Line, reason: str, farewell: Farewell) -> None:
    """Tell those who were away when a run ended, as long as a server would have stayed for them."""
    from atoll.runtimes.network.server.farewell import OverService
    from atoll.runtimes.network.transport import ServerTransport

    if not farewell.names:
        return
    service = OverService(line.words + reason, farewell)
    transport = ServerTransport(line.address, line.credentials, service, times=line.times)
    try:
        names, at, seconds = ", ".join(farewell.names), transport.start(), line.times.linger
        log.warning("the run has ended: %s, which may not know that, is told at %s for %g s", names, at, seconds)
        farewell.wait(line.times.linger)
    finally:
        transport.stop()


def run_name(folder: Path) -> str:
    """Name a run by its folder, in the letters that a name in messages may have."""
    return re.sub(r"[^\w.:@+-]", "-", folder.resolve().name)[:64] or "run"


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
