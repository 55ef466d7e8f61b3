"""An edge: a server to its own parties, and a party to its parent. It contributes what its parties gave together.

Each level has the job's own channel: plain, robust or secure. An edge sees of its parties what a server sees, and its
parent sees of the edge what it would see of a party.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from atoll.core.effects import Ask, drive
from atoll.core.question import Layout
from atoll.core.tree import Array, Tree
from atoll.core.wire import Codec, DecodeContext, EncodeContext, Mismatch
from atoll.core.world import World
from atoll.job.assemble import Assembled, assemble, summary_of
from atoll.job.file import parse
from atoll.journal import Journal
from atoll.programs.evaluate import LOCAL
from atoll.programs.federate import Exchange
from atoll.programs.influence import weight_limits
from atoll.programs.traffic import travels
from atoll.runtimes.local.worker import Worker
from atoll.runtimes.network.messages.calls import Limits, RunFailed, Times
from atoll.runtimes.network.messages.envelope import Hello, Welcome, write_envelope
from atoll.runtimes.network.party.assess import assembled, assess, data_of, schema_of
from atoll.runtimes.network.party.budget import JobBudget, carry_over
from atoll.runtimes.network.party.join import (
    Declined,
    Party,
    calling,
    check_now,
    parties_of,
    place_of,
    sides_of,
    welcomed,
)
from atoll.runtimes.network.party.policy import Policy
from atoll.runtimes.network.party.session import Session
from atoll.runtimes.network.party.spending import DataAccount
from atoll.runtimes.network.server.hub import Hub, NobodyThere
from atoll.runtimes.network.server.serve import is_new, members_of, remote
from atoll.runtimes.network.server.store import Store
from atoll.runtimes.network.transport import ServerTransport
from atoll.runtimes.network.trust.tls import Insecure, PartyTLS, ServerTLS


@dataclass(frozen=True)
class Downstream:
    """The edge as a server: where it listens, and who may come."""

    address: str
    credentials: ServerTLS | Insecure
    roster: Callable[[], Mapping[str, str]]
    parties: int | None = None  # that must be there before the first question is passed on; default: all
    first: int = 0  # the number of its first party: edges that count on from each other have no two of one number


def edge(
    parent: str, credentials: PartyTLS | Insecure, name: str, policy: Policy, folder: str | Path, below: Downstream, *,
    server: str = "",
    world: Callable[[int], World] = World.real, times: Times | None = None, say: Callable[[str], None] = lambda _: None,
    ready: Callable[[str], None] = lambda _: None, stop: threading.Event | None = None, proxy: str | None = None,
) -> str:  # fmt: skip
    """Stand between a server and parties until the server says that it is over; returns why."""
    folder, times = Path(folder), times or Times(answer=300.0)
    with calling(parent, credentials, folder, times, policy, proxy) as (transport, audit):
        hello = write_envelope(Hello(name, 0, Layout({}), edge=True, place=place_of(folder)))
        welcome = welcomed(transport, hello, policy)
        members = parties_of(welcome)
        session = Session(policy, welcome.job, welcome.number, members, welcome.classes, world, welcome.data)
        assessed = assess(session, server, parent)
        # An edge has no data that other folders could share: what it passes on counts for itself.
        account = DataAccount(Path(policy.accounts) if policy.accounts else folder / "accounts", policy.dataset_name)
        carry_over(audit, account)
        budget = JobBudget(account, policy, assessed, welcome.manifest.hex())
        say(assessed.words)
        check_now(budget, assessed.manifest)
        sides = sides_of(policy, welcome, assessed, credentials, name, folder, session)
        audit.append("joined", server=parent, job=welcome.manifest.hex())
        with _hub(welcome, session, folder, below, times, ready) as (hub, made, store):
            up = assembled(session, data_of(session))[0]
            party = Edge(transport, hello, welcome, session, budget, sides, folder, audit, times, say)
            party.stand(hub, made, up, store, below)
            try:
                why = party.take_part(stop or threading.Event())
            except RunFailed as reason:
                hub.end(str(reason), failed=True)
                raise
            hub.end(why)
            return why


@contextmanager
def _hub(
    welcome: Welcome, session: Session, folder: Path, below: Downstream, times: Times, ready: Callable[[str], None]
) -> Iterator[tuple[Hub, Assembled, Store]]:
    """Serve the same job to those below."""
    said, data, known = (
        parse(session.job, "the server's job", local=False, parts=session.policy.parts),
        data_of(session),
        below.roster(),
    )
    store = Store(folder)
    made = assemble(
        said.job, remote(data, [1] * (below.first + len(known))), said.seed, world=session.world(said.seed),
        agreement=welcome.manifest, members=partial(members_of, store),
    )  # fmt: skip
    check_below(made)
    with ExitStack() as stack:
        stack.enter_context(store)
        store.enrol([*known.items()], below.first)
        run = welcome.run
        if is_new(store, run):
            store.create(run)
        journal = stack.enter_context(closing(Journal(folder, rest=0.0)))
        questions = made.questions(len(known))
        hub = Hub(
            run, store, journal, Worker({}, {}, made.program.world), questions,
            data=summary_of(data).sample, schema=schema_of(said.data), classes=session.classes,
            job=session.job, manifest=welcome.manifest,
            roster=below.roster, times=times, successor=below.credentials.successor,
            weights=weight_limits(made.program.exchanges),
        )  # fmt: skip
        limits = Limits.of(len(known), map(travels, questions.values()))
        transport = ServerTransport(below.address, below.credentials, hub, limits=limits, times=times, folder=folder)
        store.move(run, "running")
        ready(transport.start())
        stack.callback(transport.stop)
        try:
            yield hub, made, store
        finally:
            hub.end("the edge has left")


def check_below(made: Assembled) -> None:
    """Refuse what would mean something else through an edge."""
    if made.wire.noise:
        raise Mismatch("noise through an edge is added at both levels, which nobody has accounted for: serve without")
    if made.codec.start:
        raise Mismatch("a stage of this job keeps memory at the server, which an edge has none of: serve it directly")
    if len(made.program.exchanges) > 1 or made.program.remembers:
        raise Mismatch("an edge has no memory and no phases to pass on: serve such a method directly")
    if made.job.channel.combine.staleness is not None:
        raise Mismatch("an edge waits for all of its parties: serve a buffered job directly")


class Edge(Party):
    """A party that, instead of training, asks its own parties and adds them up."""

    def stand(self, hub: Hub, made: Assembled, up: Assembled, store: Store, below: Downstream) -> None:
        self._hub, self._made, self._up, self._store, self._below = hub, made, up, store, below
        self._need = below.parties or len(below.roster())

    def _train(self, what: str, question: Tree) -> dict[str, Array]:
        try:
            self._hub.wait_for(self._need, min(self._times.patience, max(self._until - time.monotonic(), 0.0)))
            self._need = self._made.job.channel.combine.min_cohort(self._made.wire)
        except NobodyThere as reason:
            raise Declined(str(reason)) from None
        below, up, phase = self._made.program, self._up.program, what.partition("/")[0]
        if what == LOCAL:
            return self._evaluated(question)
        return self._gathered(below.conversations[phase], up.conversations[phase].codec, question)

    def _evaluated(self, question: Tree) -> dict[str, Array]:
        """All of a party's figures are sums over samples: an edge's are the sums of its parties'."""
        replies = self._hub.ask(Ask(self._hub.online(), LOCAL, question))
        if not len(replies):
            raise Declined("no party of this edge has evaluated")
        return {name: leaf.sum(axis=0, keepdims=True).astype(leaf.dtype) for name, leaf in replies.each.items()}

    def _gathered(self, exchange: Exchange, up: Codec, question: Tree) -> dict[str, Array]:
        """Combine what its parties give, and encode it as one party's."""
        world, t = self._made.program.world, int(question["t"])
        vector, replies = drive(exchange.gather(self._hub.online(), question, None), self._hub)
        if len(replies) < max(exchange.wire.total.min_cohort, 1):
            why = replies.facts.get("aborted", f"{len(replies)} parties of this edge answered")
            raise Declined(str(why))
        mean, _, facts = exchange.codec.decode(vector, exchange.codec.start, DecodeContext(len(replies), world, t))
        samples = {member.number: member.samples or 0 for member in self._store.members()}
        weight = np.array([sum(samples[party] for party in replies)], mean.dtype)
        me = np.array([self._welcome.number])
        loss = np.array([facts["train_loss"]]) if "train_loss" in facts else None
        context = EncodeContext(weight, world, t, me, question.get("stage_state", {}), loss)
        rows = up.encode(mean[None], {}, context).x
        return {"vector": rows, "finite": np.isfinite(mean.sum(keepdims=True))}
