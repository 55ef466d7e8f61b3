"""What a party works out for its role in a child process: what it holds, what the job would ask of it, the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, get_args

from atoll.core.method import DataSummary
from atoll.core.program import Agreed
from atoll.core.question import Exposure, Question
from atoll.core.world import World
from atoll.crypto.keys import Refused
from atoll.data.roles import read_role
from atoll.job.assemble import agreement_of
from atoll.job.catalogue import name_of
from atoll.job.file import parse_any, substance_of
from atoll.job.roles import RoleJob
from atoll.programs.roles import check_holdings, check_played_by_one, declared, on_wire
from atoll.report.roles import explain_roles, guessed
from atoll.runtimes.local.worker import Worker
from atoll.runtimes.network.party.policy import Manifest, NotAllowed, Policy

OFTEN, SPARE = 2, 10  # answers of a role: at most those of so many times the rounds, and some; lost sessions repeat


@dataclass(frozen=True)
class RoleSession:
    """What a party is told on joining, and its own policy: enough to work out everything else anywhere.

    `agreed` says what all roles bring, once they have met.
    """

    policy: Policy
    job: str
    name: str
    number: int
    server: str = ""
    address: str = ""
    world: Callable[[int], World] = World.real
    agreed: Agreed | None = None

    @property
    def first(self) -> int:
        return self.number

    def create(self) -> Worker:
        """Make the worker that answers, in the process that will."""
        job, role = role_of(self)
        assert self.agreed is not None
        data = read_role(self.policy.data)
        handlers = job.program.handlers(role, self.agreed)
        return Worker(handlers, {role: data}, self.world(job.seed), self.number)


class Considered(NamedTuple):
    """What a job would do to this party in its role."""

    role: str
    roles: dict[str, str]
    rounds: int
    summary: DataSummary
    manifest: Manifest
    words: str
    questions: dict[str, Question]  # to this role, as declared
    answers: int  # with something of its data, at most
    a_round: int  # such answers of one round


def role_of(session: RoleSession) -> tuple[RoleJob, str]:
    """Read the job; return it and the role that it gives to this party."""
    job = parse_any(session.job, "the server's job", local=False, parts=session.policy.parts)
    if not isinstance(job, RoleJob):
        raise Refused('this job trains a method: say in the policy\'s data which data set to use, as in use = "csv"')
    check_played_by_one(job.program)
    mine = [role for role, name in job.roles.items() if name == session.name]
    if not mine:
        raise NotAllowed(f"the job gives no role to {session.name}: its owner names it in [roles]")
    return job, mine[0]


def consider(session: RoleSession) -> Considered:
    """Work out what a job would do to this party: before it met the others with sizes of theirs that are guessed."""
    job, role = role_of(session)
    summary = read_role(session.policy.data).summary(agreement_of(session.job))
    known = {role: summary} if session.agreed is None else dict(session.agreed.data)
    agreed = guessed(job, known) if session.agreed is None else session.agreed
    if session.agreed is not None:
        check_holdings(job.program, agreed)
    questions = {name: q for name, q in declared(job.program, agreed).items() if role in q.roles}
    travels = [on_wire(question, axis=True) for question in questions.values()]
    contributing = [question for question in questions.values() if question.contributes]
    exposures: list[Exposure] = ["nothing", *(question.exposure for question in contributing)]
    manifest = Manifest(
        server=session.server, method=name_of(job.program), model="", parameters=0, rounds=job.rounds,
        cohort=len(job.roles), combine=name_of(job.program), exposure=max(exposures, key=get_args(Exposure).index),
        up=sum(q.answers.max_bytes * q.times for q in travels), address=session.address, role=role,
        job=agreement_of(session.job).hex(), substance=substance_of(job).hex(),
        partners=tuple(name for other, name in job.roles.items() if other != role),
    )  # fmt: skip
    each = sum(question.times for question in contributing)
    return Considered(
        role, dict(job.roles), job.rounds, summary, manifest,
        explain_roles(job, known, role, world=session.world(job.seed)), questions,
        OFTEN * (job.rounds + SPARE) * each, max(each, 1),
    )  # fmt: skip
