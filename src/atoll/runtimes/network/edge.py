"""An edge: a server to its own parties, and a party to its parent. It contributes what its parties gave together.

Each level has the job's own channel: plain, robust or secure. An edge sees of its parties what a server sees, and its
parent sees of the edge what it would see of a party.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from atoll.core.effects import Ask, drive
from atoll.core.errors import AtollError
from atoll.core.question import Layout
from atoll.core.tree import Array, Tree
from atoll.core.wire import ClientSide, Codec, DecodeContext, EncodeContext
from atoll.core.world import World
from atoll.job.assemble import Assembled, assemble, summary_of
from atoll.job.file import parse
from atoll.journal import Journal
from atoll.programs.evaluate import LOCAL
from atoll.programs.federate import Exchange
from atoll.programs.influence import weight_limits
from atoll.programs.traffic import travels
from atoll.runtimes.local.worker import Worker
from atoll.runtimes.network.messages.calls import Limits, Times, Unreachable
from atoll.runtimes.network.messages.envelope import Hello, Welcome
from atoll.runtimes.network.party.assess import assembled, assess, data_of, schema_of
from atoll.runtimes.network.party.budget import JobBudget, carry_over
from atoll.runtimes.network.party.join import (
    STOPPED,
    Changed,
    Declined,
    Party,
    sides_of,
)
from atoll.runtimes.network.party.line import calling, in_hours, parties_of, place_of, said, until_over, welcomed
from atoll.runtimes.network.party.policy import NotAllowed, Policy
from atoll.runtimes.network.party.session import Session
from atoll.runtimes.network.party.spending import DataAccount
from atoll.runtimes.network.server.hub import Hub, NobodyThere
from atoll.runtimes.network.server.serve import RETURN, Line, is_new, listening, members_of, remote
from atoll.runtimes.network.server.store import Store
from atoll.runtimes.network.trust.tls import Insecure, PartyTLS, ServerTLS


@dataclass(frozen=True)
class Downstream:
    """The edge as a server: where it listens, and who may come."""

    address: str
    credentials: ServerTLS | Insecure
    roster: Callable[[], Mapping[str, str]]
    parties: int | None = None  # that must be there before the first question is passed on; default: all
    first: int = 0  # the number of its first party: edges that count on from each other have no two of one number


class _Left(AtollError):
    """This edge was stopped; those below wait until it is back."""

    code = "edge_left"


class _Agreed(NamedTuple):
    """What an edge has agreed to: as a party, with what that costs and reveals."""

    welcome: Welcome
    session: Session
    budget: JobBudget
    sides: Mapping[str, ClientSide]

    @property
    def job(self) -> tuple[str, bytes]:
        return self.welcome.run, self.welcome.manifest


class _Over(NamedTuple):
    """That the run is over, as the server says."""

    reason: str


@until_over
def edge(
    parent: str, credentials: PartyTLS | Insecure, name: str, policy: Policy, folder: str | Path, below: Downstream, *,
    server: str = "",
    world: Callable[[int], World] = World.real, times: Times | None = None, say: Callable[[str], None] = lambda _: None,
    ready: Callable[[str], None] = lambda _: None, stop: threading.Event | None = None, proxy: str | None = None,
) -> str:  # fmt: skip
    """Stand between a server and parties until the server says that it is over; returns why.

    Should other parties come to the server, or another job, that is looked at anew, as a party does.
    """
    folder, times, stop = Path(folder), times or Times(answer=300.0), stop or threading.Event()
    if not in_hours(policy, say, stop):
        return STOPPED
    with calling(parent, credentials, folder, times, policy, proxy) as (transport, audit):
        # An edge has no data that other folders could share: what it passes on counts for itself.
        account = DataAccount(Path(policy.accounts) if policy.accounts else folder / "accounts", policy.dataset_name)
        carry_over(audit, account)
        hello = Hello(name, 0, Layout({}), edge=True, place=place_of(folder))  # nobody below has come yet
        text = said(audit, parent, hello)

        def agree() -> _Agreed:
            welcome = welcomed(transport, text, policy)
            members = parties_of(welcome)
            session = Session(policy, welcome.job, welcome.number, members, welcome.classes, world, welcome.data)
            assessed = assess(session, server, parent)
            check_edge(assembled(session, data_of(session))[0], policy)
            budget = JobBudget(account, policy, assessed, welcome.manifest.hex())
            say(assessed.words)
            budget.agree(assessed.manifest)
            sides = sides_of(policy, welcome, assessed, credentials, name, folder, session)
            audit.append("joined", server=parent, job=welcome.manifest.hex())
            return _Agreed(welcome, session, budget, sides)

        def party(agreed: _Agreed) -> Edge:
            one = Edge(transport, text, *agreed, folder, audit, times, say)
            one.declaration = lambda samples: said(audit, parent, replace(hello, samples=samples))
            return one

        while True:
            try:
                return _serve(agree, party, folder, below, times, ready, say, stop)
            except _Left:
                return STOPPED
            except Changed as reason:
                say(str(reason))


def _serve(
    agree: Callable[[], _Agreed], party: Callable[[_Agreed], Edge], folder: Path, below: Downstream, times: Times,
    ready: Callable[[str], None], say: Callable[[str], None], stop: threading.Event,
) -> str:  # fmt: skip
    """Serve the parent's job to those below, for as long as it is the same one."""
    agreed = agree()
    with _level(agreed, folder, below, times) as level:

        def work() -> _Over:
            now = agreed
            while now.job == agreed.job:
                one = party(now)
                one.stand(level, assembled(now.session, data_of(now.session))[0])
                try:
                    why = one.take_part(stop)
                except Changed as reason:  # perhaps only others came: those below need not know
                    say(str(reason))
                    now = agree()
                    continue
                if stop.is_set():
                    raise _Left(why)
                return _Over(why)
            raise Changed

        line = Line(below.address, below.credentials, times, ready, words="")
        waits = (KeyboardInterrupt, _Left, Changed, Unreachable)
        return listening(line, level.limits, level.hub, level.store, level.journal, work, waits=waits).reason


class Level:
    """Those below an edge, in the job that is passed on to them: who is there, what they are asked."""

    def __init__(
        self, hub: Hub, store: Store, journal: Journal, assemble: Callable[[], Assembled], parties: int | None
    ) -> None:
        self.hub, self.store, self.journal, self._assemble = hub, store, journal, assemble
        self._parties, self._begun = parties, False
        self.made = self._renewed()

    def _renewed(self) -> Assembled:
        made = self._assemble()
        self.hub.renew(made.questions(len(self.store.members())))
        return made

    @property
    def limits(self) -> Limits:
        members = len(self.store.members())
        return Limits.of(members, map(travels, self.made.questions(members).values()))

    def gather(self, within: float) -> None:
        """Wait for enough of them, as the roster says now; NobodyThere after so many seconds."""
        until = time.monotonic() + within
        while True:
            there, left = len(self.hub.online()), max(until - time.monotonic(), 0.0)
            enough = self.made.job.channel.combine.min_cohort(self.made.wire)
            self.hub.wait_for(enough if self._begun else self._parties or len(self.hub.members()), left)
            if not self.hub.renewed:
                self._begun = True
                return
            self.made = self._renewed()
            with suppress(NobodyThere):
                self.hub.wait_for(there, min(RETURN, left))


@contextmanager
def _level(agreed: _Agreed, folder: Path, below: Downstream, times: Times) -> Iterator[Level]:
    """Make ready to serve the same job to those below."""
    session, (run, manifest) = agreed.session, agreed.job
    job = parse(session.job, "the server's job", local=False, parts=session.policy.parts)
    data, world = data_of(session), session.world(job.seed)

    def made() -> Assembled:
        everybody = remote(data, [1] * (1 + max((member.number for member in store.members()), default=0)))
        members = partial(members_of, store)
        return assemble(job.job, everybody, job.seed, world=world, agreement=manifest, members=members)

    with ExitStack() as stack:
        store = stack.enter_context(Store(folder))
        store.enrol([*below.roster().items()], below.first)
        first = made()
        if is_new(store, run):
            store.create(run)
        journal = stack.enter_context(closing(Journal(folder, rest=0.0)))
        hub = Hub(
            run, store, journal, Worker({}, {}, world), first.questions(len(store.members())),
            data=summary_of(data).sample, schema=schema_of(job.data), classes=session.classes,
            job=session.job, manifest=manifest,
            roster=below.roster, times=times, live=True, successor=below.credentials.successor,
            weights=weight_limits(first.program.exchanges),
        )  # fmt: skip
        yield Level(hub, store, journal, made, below.parties)


def check_edge(made: Assembled, policy: Policy) -> None:
    """Refuse what would mean something else through an edge, and limits of data that it does not have."""
    method = type(made.job.method).__name__
    told = ", ".join(name for name, _ in made.job.method.reports.leaves)
    found = {
        "noise through an edge is added at both levels, which nobody has accounted for: serve without": made.wire.noise,
        "a stage of this job keeps memory at the server, and an edge has none: serve it directly": made.codec.start,
        "an edge has no memory and no phases to pass on: serve such a method directly":
            len(made.program.exchanges) > 1 or made.program.remembers,
        "an edge waits for all of its parties: serve a buffered job directly":
            made.job.channel.combine.staleness is not None,
        f"{method} reports {told} of each party, and an edge is many: serve it directly": told,
        f"max_norm: an edge passes on what its parties clip; set it in their policies, not in {policy.name}":
            policy.max_norm is not None,
        f"round_metrics: an edge has no test data; set it in the policies of its parties, not in {policy.name}":
            policy.round_metrics is not None,
    }  # fmt: skip
    for sentence, holds in found.items():
        if holds:
            raise NotAllowed(sentence)


class Edge(Party):
    """A party that, instead of training, asks its own parties and adds them up."""

    declaration: Callable[[int], bytes]  # a hello that says how many samples those below have

    def stand(self, level: Level, up: Assembled) -> None:
        self._level, self._up = level, up
        self._declared, self._greeting = 0, threading.Lock()

    def _declare(self) -> None:
        """Say how many samples those below have declared: the server takes no more weight of this edge."""
        samples = sum(member.samples or 0 for member in self._level.store.members() if member.listed)
        if samples != self._declared:
            with self._greeting:
                self._hello, self._declared = self.declaration(samples), samples
            self._greet()

    def _greet(self) -> None:
        with self._greeting:  # an older number of samples comes after no newer one
            super()._greet()

    def _train(self, what: str, question: Tree) -> dict[str, Array]:
        try:
            self._level.gather(min(self._times.patience, max(self._until - time.monotonic(), 0.0)))
        except NobodyThere as reason:
            raise Declined(str(reason)) from None
        self._declare()
        if what == LOCAL:
            return self._evaluated(question)
        phase = what.partition("/")[0]
        below, up = self._level.made.program, self._up.program
        return self._gathered(below.conversations[phase], up.conversations[phase].codec, question)

    def _evaluated(self, question: Tree) -> dict[str, Array]:
        """All of a party's figures are sums over samples: an edge's are the sums of its parties'."""
        hub = self._level.hub
        replies = hub.ask(Ask(hub.online(), LOCAL, question))
        if not len(replies):
            raise Declined("no party of this edge has evaluated")
        return {name: leaf.sum(axis=0, keepdims=True).astype(leaf.dtype) for name, leaf in replies.each.items()}

    def _gathered(self, exchange: Exchange, up: Codec, question: Tree) -> dict[str, Array]:
        """Combine what its parties give, and encode it as one party's."""
        world, t, hub = self._level.made.program.world, int(question["t"]), self._level.hub
        vector, replies = drive(exchange.gather(hub.online(), question, None), hub)
        if len(replies) < max(exchange.wire.total.min_cohort, 1):
            why = replies.facts.get("aborted", f"{len(replies)} parties of this edge answered")
            raise Declined(str(why))
        mean, _, facts = exchange.codec.decode(vector, exchange.codec.start, DecodeContext(len(replies), world, t))
        samples = {member.number: member.samples or 0 for member in self._level.store.members()}
        weight = np.array([sum(samples[party] for party in replies)], mean.dtype)
        me = np.array([self._welcome.number])
        loss = np.array([facts["train_loss"]]) if "train_loss" in facts else None
        context = EncodeContext(weight, world, t, me, question.get("stage_state", {}), loss)
        rows = up.encode(mean[None], {}, context).x
        return {"vector": rows, "finite": np.isfinite(mean.sum(keepdims=True))}
