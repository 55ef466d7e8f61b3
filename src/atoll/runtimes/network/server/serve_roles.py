"""Serve a program with roles to the parties that play them: a simulation's conversation, over the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.core.effects import Ask, Note, Replies, Sink
from atoll.core.errors import AtollError
from atoll.core.program import Agreed
from atoll.core.question import Layout, Question
from atoll.core.tree import Array, Tree
from atoll.core.wire import Mismatch
from atoll.core.world import World
from atoll.job.assemble import agreement_of
from atoll.job.roles import RoleJob, to_table
from atoll.journal import Journal, Past
from atoll.programs.roles import check_played_by_one, on_wire, runtime_questions
from atoll.runtimes.network.server.hub import Hub
from atoll.runtimes.network.server.serve import Line, entered, kept, listening, run_name
from atoll.runtimes.roles.conversation import UNSAID, Lost, Reasons, RoleSetup, Unanswered, converse
from atoll.runtimes.roles.side import NoSession
from atoll.runtimes.roles.simulate import RoleRun, describe, end_note, save_models

if TYPE_CHECKING:
    from atoll.runtimes.network.messages.calls import Times
    from atoll.runtimes.network.trust.tls import Insecure, ServerTLS

TRIES = 3  # sessions that may end with the same role declining before a checkpoint is made


class RoleFailed(AtollError, RuntimeError):
    """A role declines again and again; the sentence has its reason."""

    code = "role_failed"


@dataclass(frozen=True)
class RolesServed:
    """How a program over the network ended."""

    run: RoleRun
    state: str
    reason: str


def serve_roles(
    job: RoleJob,
    *,
    address: str,
    credentials: ServerTLS | Insecure,
    roster: Callable[[], Mapping[str, str]],
    folder: str | Path,
    world: Callable[[int], World] = World.real,
    times: Times | None = None,
    sinks: tuple[Sink, ...] = (),
    health: str | None = None,
    ready: Callable[[str], None] = lambda _: None,
    ended: Callable[[RolesServed], None] = lambda _: None,
) -> RolesServed:
    """Run a program with the parties that its job names; a folder that holds an unfinished run is resumed.

    Args:
        job: the program and who plays its roles; recipes of data in it stay here, each party has its own.
        address: where to listen, as host:port.
        credentials: the server's keys.
        roster: names and keys of all who may come; read again whenever somebody comes.
        folder: the run folder.
        world: where private draws come from; anything but the default is for tests on one machine.
        times: `times.patience` is how long to wait for parties before the run fails (default: for ever), `times.answer`
            for their answers, `times.linger` for those who do not know yet that the run has finished, in seconds.
        sinks: functions that are told every fact.
        health: an address of this machine, for monitors.
        ready: is told the address when the server listens.
        ended: is told how the run has finished, before parties that are away are waited for.
    """
    from atoll.job.file import dumps, third_party
    from atoll.runtimes.local.worker import Worker
    from atoll.runtimes.network.messages.calls import Limits, Times

    check_played_by_one(job.program)
    third_party(job)  # refuses parts that no party could have
    folder, times = Path(folder), times or Times()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    known, text, place = roster(), dumps(to_table(job, data=False)), world(job.seed)
    for role, name in job.roles.items():
        if name not in known:
            raise Mismatch(f"{name} plays role {role}, and is not in the roster: add its line")
    past = kept(folder, text)
    line = Line(address, credentials, times, ready)
    with entered(line, folder, known, past, job.rounds, health, sinks) as (monitor, store, journal):
        reasons = Reasons(journal)
        numbers = {member.name: member.number for member in store.members()}
        setup = RoleSetup(job.program, job.roles, {r: numbers[n] for r, n in job.roles.items()}, job.rounds, place)
        fixed = {name: on_wire(question, axis=True) for name, question in runtime_questions(job.roles).items()}
        hub = Hub(
            run_name(folder), store, reasons, Worker({}, {}, place), fixed, data=Layout({}), job=text,
            manifest=agreement_of(text), roster=roster, times=times, successor=credentials.successor,
            elapsed=float(past.memory["elapsed"]) if past.memory else 0.0,
        )  # fmt: skip
        monitor.follow(hub.snapshot)
        # How long answers are is known once all roles have said what they bring.
        limits = Limits(threads=Limits.of(len(known), [Layout({})]).threads)
        roles = ServedRoles(setup, hub, reasons, times.patience)
        work = partial(_converse, job, setup, roles, journal, past, folder)

        def served() -> RolesServed:
            run = work()
            return RolesServed(run, "finished", run.reason)

        return listening(line, limits, hub, store, journal, served, ended)


def _converse(
    job: RoleJob, setup: RoleSetup, roles: ServedRoles, journal: Journal, past: Past, folder: Path
) -> RoleRun:
    about: dict[str, object] = {}

    def begun(agreed: Agreed) -> None:
        about.update(describe(job, agreed.data, setup.world))
        journal.begin(about, past)

    ended = converse(setup, roles, past.memory, begun)
    journal.note(end_note(ended.rounds, job.rounds))
    run = RoleRun(job, ended.found, {}, journal.facts, folder, about)
    journal.guard(lambda: save_models(folder, run))
    return run


class ServedRoles:
    """Roles that parties play over the network, asked through a hub."""

    def __init__(self, setup: RoleSetup, hub: Hub, reasons: Reasons, patience: float) -> None:
        self._setup, self._hub, self._reasons, self._patience = setup, hub, reasons, patience
        self._declined = 0

    def ask(self, ask: Ask) -> Replies:
        return self.together((ask,))[0]

    def together(self, asks: tuple[Ask, ...]) -> tuple[Replies, ...]:
        self._reasons.why.clear()
        return self._hub.together(asks)

    def checkpoint(self, memory: Tree) -> None:
        self._hub.checkpoint(memory)
        self._declined = 0

    def note(self, note: Note) -> None:
        self._hub.note(note)

    def settle(self, used: Array) -> None:
        self._hub.settle(used)

    def ready(self) -> None:
        numbers = list(self._setup.numbers.values())
        self._hub.wait_for(len(numbers), self._patience, numbers)

    def declare(self, questions: Mapping[str, Question]) -> None:
        self._hub.declare(questions)

    def begin(self, agreed: Agreed) -> None:
        return

    def why(self, number: int) -> Unanswered:
        return self._reasons.why.get(self._setup.roles[self._setup.role_of[number]], UNSAID)

    def lost(self, lost: Lost) -> None:
        """Try again with a role that is away or was started again; give up on one that does not want to."""
        if lost.why.sentence and lost.why.code != NoSession.code:
            self._declined += 1
        if self._declined >= TRIES:
            raise RoleFailed(f"{lost}; it declined {self._declined} times: its own log says more")
