"""Play a role in a served program: read the job, hold it against the policy, meet the other roles, answer.

Keys and sessions live in this process; data is read and answers are worked out in child processes.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.program import Agreed
from atoll.core.question import Layout, Question
from atoll.core.tree import Tree, leaves, nest
from atoll.core.world import World
from atoll.crypto.keys import Refused
from atoll.programs.roles import END, HELLO, on_wire, runtime_questions
from atoll.runtimes.local.pool import ProcessPool
from atoll.runtimes.local.process import Subprocess
from atoll.runtimes.local.worker import Chunk, ChunkResult
from atoll.runtimes.network.messages.calls import Times, Unreachable
from atoll.runtimes.network.messages.envelope import Hello, Welcome
from atoll.runtimes.network.party.budget import JobBudget, account_of, carry_over
from atoll.runtimes.network.party.join import (
    PATIENCE,
    Changed,
    Declined,
    Party,
    own_roster,
)
from atoll.runtimes.network.party.line import alive, calling, place_of, said, until_over, welcomed
from atoll.runtimes.network.party.policy import Manifest, NotAllowed, Policy
from atoll.runtimes.network.party.session import Assessment
from atoll.runtimes.network.party.spending import UNLIMITED
from atoll.runtimes.network.server.disk import write_arrays
from atoll.runtimes.roles.memory import RoleMemory
from atoll.runtimes.roles.side import NO_SESSION, NoSession, Prepared, RoleContext, RoleSide

if TYPE_CHECKING:
    from atoll.runtimes.network.party.roles import Considered, RoleSession
    from atoll.runtimes.network.trust.tls import Insecure, PartyTLS


@until_over
def join_roles(
    address: str,
    credentials: PartyTLS | Insecure,
    name: str,
    policy: Policy,
    folder: str | Path,
    *,
    server: str = "",
    world: Callable[[int], World] = World.real,
    times: Times | None = None,
    say: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
    proxy: str | None = None,
) -> str:
    """Play a role until the server says that it is over; returns why. What the policy forbids raises NotAllowed.

    Nothing of the data leaves before the policy has agreed. What the role is left with at the end is written to
    model-<role>.safetensors in the folder and never sent.
    """
    from atoll.runtimes.network.party.roles import RoleSession

    folder, times = Path(folder), times or Times()
    with calling(address, credentials, folder, times, policy, proxy) as (transport, audit):
        account = account_of(policy, folder)
        carry_over(audit, account)
        while True:
            hello = said(audit, address, Hello(name, 0, Layout({}), place=place_of(folder)))
            welcome = welcomed(transport, hello, policy)
            session = RoleSession(policy, welcome.job, name, welcome.number, server, address, world)
            with Subprocess(policy.max_assess_memory) as child:
                work = partial(child.do, _consider, session, within=PATIENCE)
                considered = alive(work, partial(transport.hello, hello), times.silence / 3)
            budget = JobBudget(account, policy, _assessed(considered), welcome.manifest.hex())
            say(considered.words)
            budget.agree(considered.manifest)
            context = _context(policy, welcome, considered, credentials)
            audit.append("joined", server=address, job=welcome.manifest.hex(), role=considered.role)
            memory = RoleMemory(folder / "memory" / _run_name(welcome), policy.max_memory)
            with closing(
                RoleDesk(session, context, memory, budget.agree, folder, partial(transport.hurry, 30.0))
            ) as desk:
                party = Party(transport, hello, welcome, session, budget, {}, folder, audit, times, say, desk)
                try:
                    return party.take_part(stop or threading.Event())
                except Changed as reason:
                    say(str(reason))
                except Unreachable:
                    if not desk.over:
                        raise
                    return "the run is over, and its server has ended"


def _consider(session: RoleSession) -> Considered:
    from atoll.runtimes.network.party.roles import consider

    return consider(session)


def _assessed(considered: Considered) -> Assessment:
    """What a role gives has no noise; a round may take several answers of it."""
    plan = Counter({UNLIMITED: considered.answers})
    return Assessment(
        considered.manifest, considered.words, {}, {}, considered.answers, plan=plan, a_round=considered.a_round
    )


def _run_name(welcome: Welcome) -> str:
    """Name a run by what the server cannot choose freely: a path of its own choice is nothing to write to."""
    return hashlib.sha256(welcome.manifest + welcome.run.encode()).hexdigest()[:32]


def _context(policy: Policy, welcome: Welcome, considered: Considered, credentials: PartyTLS | Insecure) -> RoleContext:
    """Play a role with those whose keys this party knows from its own file, not from the server."""
    identity, known = own_roster(
        policy, credentials, considered.roles[considered.role], welcome,
        "roles seal what they say with keys of their own",
        "what roles say to each other is sealed for keys that this party knows itself",
    )  # fmt: skip
    for role, who in considered.roles.items():
        if who not in known:
            raise NotAllowed(f"roster: {who} plays role {role}, and {policy.roster} has no key of it: add its line")
    keys = {who: known[who] for who in considered.roles.values()}
    return RoleContext(
        considered.role, welcome.number, identity, welcome.manifest, considered.roles, keys, considered.summary,
        considered.rounds,
    )  # fmt: skip


class RoleDesk:
    """Answers for a role of this party: its side of the program, with a child process that does the work."""

    def __init__(
        self,
        session: RoleSession,
        context: RoleContext,
        memory: RoleMemory,
        check: Callable[[Manifest], None],
        folder: Path,
        ending: Callable[[], None],
    ) -> None:
        self._session, self._check, self._folder, self._ending = session, check, folder, ending
        self._role, self._until = context.role, 0.0
        self._fixed = {name: on_wire(q, axis=True) for name, q in runtime_questions(context.roles).items()}
        self._questions: dict[str, Question] = {}
        self._side = RoleSide(context, memory, self._prepare)
        self._pool: ProcessPool | None = None
        self.over = False  # whether the program has ended

    def question(self, what: str) -> Question:
        """Return what a question looks like on the wire."""
        if what in self._fixed:
            return self._fixed[what]
        if not self._questions:
            raise Declined(NO_SESSION, NoSession.code)
        if what not in self._questions:
            raise Declined(f"{what!r} is no question to role {self._role} in this job")
        return self._questions[what]

    def answer(self, what: str, question: Tree, until: float) -> Tree:
        """Answer a question before `until`, a moment of time.monotonic."""
        self._until = until
        if what == HELLO:
            self._questions = {}
        try:
            reply = self._side.answer(what, question)
        except Refused as reason:
            raise Declined(str(reason), reason.code) from None
        self.over = what == END
        if self.over:
            self._save()
            self._ending()
        layout = self.question(what).answers.leaves
        return nest({path: leaf if layout[path].upto else np.asarray(leaf)[None] for path, leaf in leaves(reply)})

    def _prepare(self, agreed: Agreed) -> Prepared:
        """Look at the job again, now that all is known, and make ready to answer."""
        self.close()
        self._session = replace(self._session, agreed=agreed)
        with Subprocess(self._session.policy.max_assess_memory) as child:
            considered = child.do(_consider, self._session, within=PATIENCE)
        self._check(considered.manifest)
        self._questions = {name: on_wire(q, axis=True) for name, q in considered.questions.items()}
        return Prepared(considered.questions, self._work)

    def _work(self, chunk: Chunk, body: Tree) -> ChunkResult:
        """Answer in the child process, which is started when it is first needed and stays warm."""
        if self._pool is None:
            self._pool = ProcessPool(self._session, 1)
        ((answer, _),) = self._pool.answers([chunk], body, self._until)
        return answer

    def _save(self) -> None:
        """Write what this role is left with."""
        model = self._side.model
        if model:
            write_arrays(self._folder / f"model-{self._role}.safetensors", model)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
