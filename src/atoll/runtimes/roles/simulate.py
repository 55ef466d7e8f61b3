"""Run a program with all its roles on this machine: each with its own data, memory and keys, sealed as elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from atoll.core.effects import Ask, Note, Replies, Sink
from atoll.core.program import Agreed, Role
from atoll.core.question import Question
from atoll.core.tree import Array, Tree
from atoll.core.wire import Mismatch, Train
from atoll.core.world import World
from atoll.crypto.keys import Identity
from atoll.data.errors import BadData
from atoll.data.federated import Federated
from atoll.data.recipe import build
from atoll.data.roles import ManyData, RoleData, many, nothing, read_role
from atoll.job.assemble import Dropouts, agreement_of
from atoll.job.roles import RoleJob, to_table
from atoll.journal import Journal, Past, reopen
from atoll.journal.sealed import save
from atoll.journal.write import mend
from atoll.programs.phases import all_done
from atoll.programs.roles import declared
from atoll.runtimes.given import check_given
from atoll.runtimes.local.memory import PartyMemory
from atoll.runtimes.local.simulator import Simulator
from atoll.runtimes.local.worker import Worker
from atoll.runtimes.roles.conversation import UNSAID, Lost, Many, Reasons, RoleSetup, Unanswered, converse
from atoll.runtimes.roles.crowd import Crowd, InProcess
from atoll.runtimes.roles.memory import RoleMemory
from atoll.runtimes.roles.side import Prepared, RoleContext, RoleSide, Work
from atoll.runtimes.run import environment, new_folder, write_job

HeldData = RoleData | ManyData


@dataclass(frozen=True, eq=False)
class RoleRun:
    """A finished run of a program with roles.

    Args:
        job: what was run.
        found: what the hub found out.
        models: by role, what it is left with; of a role that many play, one row a party. Of a served run it is empty:
            each party has its own.
        facts: what was noted.
        folder: the run folder, if there is one.
        about: what is known of the run before it starts.
    """

    job: RoleJob
    found: Tree
    models: Mapping[str, Mapping[str, Array]]
    facts: list[dict[str, Any]]
    folder: Path | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Why the run ended."""
        return next((f["reason"] for f in reversed(self.facts) if f["what"] == "end"), "interrupted")

    def report(self, path: str | Path = "report.html") -> Path:
        """Write the run as one self-contained HTML page."""
        from atoll.report.page import write

        return write(path, self.about, self.facts)


def simulate_roles(
    job: RoleJob,
    data: Mapping[str, RoleData | Federated] | None = None,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    sinks: tuple[Sink, ...] = (),
) -> RoleRun:
    """Run a program with roles on this machine.

    Args:
        job: the program, its roles, rounds and seed.
        data: for each role, what it holds (a role of many parties: a federation). Default: what the job's recipes say.
            A role that holds nothing can be left out.
        out: folder below which a run folder is written. Default: nothing is written.
        resume: the folder of an interrupted run of the same job. Default: a new run.
        sinks: functions that receive every fact. Default: none.

    Example:
        >>> import atoll
        >>> import numpy as np
        >>> from atoll.data.roles import columns
        >>> x, ids = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20)
        >>> job = atoll.RoleJob(atoll.JointMoments(), {"A": "bank", "B": "shop", "C": "notary"})
        >>> run = atoll.simulate_roles(job, {"A": columns(x[:, :2], ids=ids), "B": columns(x[:, 2:], ids=ids)})
        >>> bool(np.allclose(run.models["A"]["covariance"], np.cov(x.T)))
        True
    """
    from atoll.job.catalogue import BadJob
    from atoll.job.file import dumps

    check_given(out=out, resume=resume, sinks=sinks)
    held = data_of(job, data)
    text = dumps(to_table(job))
    record = reopen(resume) if resume else None
    folder = record.folder if record else new_folder(Path(out), job.name) if out else None
    past = record.past(PartyMemory(folder).fits) if record else Past()
    memory = past.memory
    if record and dumps(record.job) != text:
        raise BadJob(f"{folder} holds a run of another job or seed: resume with that one (its job.toml), or start anew")
    about = describe(job, {role: one.summary(agreement_of(text)) for role, one in held.items()})
    journal = Journal(folder, sinks=sinks)
    elapsed = float(memory["elapsed"]) if memory else 0.0
    roles = SimulatedRoles(job, held, agreement_of(text), journal, folder, elapsed=elapsed)
    try:
        if memory:
            roles.restore(memory)
        if record:
            journal.guard(lambda: mend(record))
        elif folder:
            journal.guard(lambda: write_job(folder, about))
        for sink in sinks if folder else ():
            sink(Note("folder", {"path": str(folder)}))
        journal.begin(about, past)
        ended = converse(roles.setup, roles, memory)
        journal.note(end_note(ended.rounds, job.rounds))
        run = RoleRun(job, ended.found, roles.models, journal.facts, folder, about)
        if folder:
            journal.guard(lambda: save_models(folder, run))
    finally:
        roles.close()
        with suppress(OSError):
            journal.flush()
        journal.close()
    return run


def data_of(job: RoleJob, data: Mapping[str, RoleData | Federated] | None = None) -> dict[str, HeldData]:
    """Return what each role of a simulation holds."""
    if not isinstance(job, RoleJob):
        raise Mismatch(f"job is a {type(job).__name__}, and an atoll.RoleJob is needed: make one of a program")
    if data is not None and not isinstance(data, Mapping):
        raise Mismatch(f'data is a {type(data).__name__}: say what each role holds, as in {{"A": columns(x, ids=ids)}}')
    roles = job.program.roles
    for role in data or ():
        if role not in roles:
            raise Mismatch(f"there is data for role {role!r}, and the program has {', '.join(roles)}")
    if data is None:
        found = recipes_of(job)
        return {name: found[name] if name in found else _held(name, role, None) for name, role in roles.items()}
    return {name: _held(name, role, data.get(name)) for name, role in roles.items()}


def recipes_of(job: RoleJob) -> dict[str, HeldData]:
    """Read what the roles hold whose data the job describes."""
    found = dict[str, HeldData]()
    for name, recipe in job.data.items():
        role = job.program.roles[name]
        try:
            found[name] = _held(name, role, build(recipe, job.seed) if role.many else read_role(recipe))
        except BadData as reason:
            raise BadData(f"data.{name}: {reason}") from None
    return found


def _held(name: str, role: Role, data: RoleData | Federated | None) -> HeldData:
    if not role.many:
        if not isinstance(data, RoleData | None):
            what = type(data).__name__
            raise Mismatch(f"role {name} is played by one party: give it columns (atoll.data.roles.columns), no {what}")
        return nothing() if data is None else data
    if data is None:
        raise Mismatch(
            f"role {name} is played by many parties, and has no data: give it a federation, as in [data.{name}] with "
            'use = "digits" and clients = 10'
        )
    if not isinstance(data, Federated):
        raise Mismatch(f"role {name} is played by many parties: give it a federation, as load(…).split(…) makes one")
    return many(data, labels=role.holds != "features")


def end_note(done: int, rounds: int) -> Note:
    """Say why a run ended."""
    reason = all_done(rounds) if done >= rounds else f"the program ended after round {done}"
    return Note("end", {"round": max(done, 0), "reason": reason, "complete": done >= rounds})


def save_models(folder: Path, run: RoleRun) -> None:
    """Write what each role, and the hub, is left with."""
    for role, model in run.models.items():
        if model:
            save(folder / f"model-{role}.safetensors", model)
    if run.found:
        save(folder / "found.safetensors", run.found)


def describe(job: RoleJob, summaries: Mapping[str, Any], world: World | None = None) -> dict[str, Any]:
    """Say what a report needs to know of a run before it starts."""
    roles = {
        role: {
            "party": job.roles[role], "about": about.about, "rows": summaries[role].samples,
            "columns": list(summaries[role].names), "parties": summaries[role].parties,
        }
        for role, about in job.program.roles.items()
    }  # fmt: skip
    parties = sum(summary.parties for summary in summaries.values())
    return {
        "job": to_table(job, data=world is None),
        "parties": parties,
        "cohort": parties,
        "roles": roles,
        "seen": dict(job.program.seen()),
        "simulated": world is None or not world.secret,
        "environment": environment(),
    }


@dataclass(frozen=True)
class _Answering:
    """A role's side as the simulator asks for it: bound to one question."""

    side: RoleSide
    what: str

    def answer(self, step: str, body: Tree, train: Train) -> Tree:
        return self.side.answer(self.what, body)


class SimulatedRoles:
    """All roles of a job, each a party of a simulator with its own number, data, memory and key.

    The parties of a role that many play come after them; they have a number each and no keys.
    """

    def __init__(
        self,
        job: RoleJob,
        data: Mapping[str, HeldData],
        agreement: bytes,
        journal: Journal,
        folder: Path | None = None,
        *,
        watch: Callable[[str, Work], Work] = lambda _, work: work,
        elapsed: float = 0.0,
    ) -> None:
        program, world, memory = job.program, World.simulated(job.seed), PartyMemory(folder)
        ones = {role: one for role, one in data.items() if isinstance(one, RoleData)}
        numbers = {role: k for k, role in enumerate(ones)}
        self.crowds: dict[str, Crowd] = {}
        first = len(numbers)
        for role, held in data.items():
            if isinstance(held, ManyData):
                self.crowds[role] = Crowd(program, role, first, held, world, memory, watch)
                first += len(held)
        summaries = {role: held.summary(agreement) for role, held in data.items()}
        players = {role: job.roles[role] for role in ones}
        crowds = {role: Many(crowd.numbers, summaries[role]) for role, crowd in self.crowds.items()}
        self.setup = RoleSetup(program, players, numbers, job.rounds, world, crowds)
        identities = {role: Identity.new() for role in ones}
        keys = {job.roles[role]: identity.public for role, identity in identities.items()}
        self.sides: dict[int, RoleSide] = {}
        for role, number in numbers.items():
            context = RoleContext(
                role, number, identities[role], agreement, players, keys, summaries[role], job.rounds,
                {other: crowd.summary for other, crowd in crowds.items()},
            )  # fmt: skip
            prepare = _Preparing(job, role, number, ones[role], world, watch)
            self.sides[number] = RoleSide(context, RoleMemory(), prepare)
        self._reasons = Reasons(journal)
        self._simulator = Simulator(
            {}, {}, world, availability=Dropouts(0.0, job.seed), journal=self._reasons, memory=memory,
            client=lambda what, number: _Answering(self.sides[number], what), elapsed=elapsed,
        )  # fmt: skip

    @property
    def models(self) -> dict[str, dict[str, Array]]:
        ones = {role: self.sides[number].model for role, number in self.setup.numbers.items()}
        found = ones | {role: crowd.model for role, crowd in self.crowds.items()}
        return {role: found[role] for role in self.setup.program.roles}

    def restore(self, memory: Tree) -> None:
        """Give roles back what they remembered at this checkpoint."""
        self._simulator.restore(memory)
        for number, side in self.sides.items():
            recalled = self._simulator.memory.recall(np.array([number]))
            side.memory.restore(int(memory["t"]), {name: leaf[0] for name, leaf in recalled.leaves.items()})

    def ask(self, ask: Ask) -> Replies:
        crowd = next((crowd for crowd in self.crowds.values() if crowd.answers(ask.what)), None)
        return self._simulator.ask(ask) if crowd is None else self._timed(crowd.ask(ask))

    def _timed(self, replies: Replies) -> Replies:
        return replace(replies, facts={**replies.facts, "elapsed": self._simulator.elapsed})

    def together(self, asks: tuple[Ask, ...]) -> tuple[Replies, ...]:
        return tuple(self.ask(ask) for ask in asks)

    def checkpoint(self, memory: Tree) -> None:
        """Store what all roles remember and what the program remembers, as one."""
        for number, side in self.sides.items():
            rows = {name: leaf[None] for name, leaf in side.memory.leaves.items()}
            self._simulator.memory.remember(np.array([number]), rows)
        for crowd in self.crowds.values():
            crowd.commit()
        self._simulator.checkpoint(memory)

    def note(self, note: Note) -> None:
        self._reasons.note(note)

    def settle(self, used: Array) -> None:
        self._simulator.settle(used)

    def ready(self) -> None:
        return

    def declare(self, questions: Mapping[str, Question]) -> None:
        return

    def begin(self, agreed: Agreed) -> None:
        for crowd in self.crowds.values():
            crowd.begin(agreed)

    def why(self, number: int) -> Unanswered:
        return self._reasons.why.pop(str(number), UNSAID)

    def lost(self, lost: Lost) -> None:
        raise Mismatch(str(lost))

    def close(self) -> None:
        self._simulator.close()


@dataclass(frozen=True)
class _Preparing:
    """Makes the worker of a role when it knows what everybody brings."""

    job: RoleJob
    role: str
    number: int
    data: RoleData
    world: World
    watch: Callable[[str, Work], Work]

    def __call__(self, agreed: Agreed) -> Prepared:
        program = self.job.program
        worker = Worker(program.handlers(self.role, agreed), {self.role: self.data}, self.world, self.number)
        return Prepared(declared(program, agreed), self.watch(self.role, InProcess(worker)))
