"""An edge: a server to its own parties, and a party to its parent. It contributes what its parties gave together.

Each level has the job's own channel: plain, robust or secure. An edge sees of its parties what a server sees, and its
parent sees of the edge what it would see of a party.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from atoll.combine import Buffered
from atoll.core.effects import Ask, drive
from atoll.core.method import codec_of
from atoll.core.tree import Array, Tree
from atoll.core.wire import About, Heard, Mismatch
from atoll.crypto.keys import Refused
from atoll.job import Assembled, assemble
from atoll.jobfile import parse
from atoll.join import Declined, Party, dialogue_of
from atoll.journal import Journal
from atoll.party import assembled, assess, data_of
from atoll.runtimes.network.audit import Audit, spent_this_month
from atoll.runtimes.network.calls import Limits, Times
from atoll.runtimes.network.hall import Hall, NobodyThere
from atoll.runtimes.network.message import Hello, Welcome, read_envelope, write_envelope
from atoll.runtimes.network.policy import Policy
from atoll.runtimes.network.store import Store
from atoll.runtimes.network.transport import PartyTransport, ServerTransport
from atoll.runtimes.network.trees import Layout
from atoll.runtimes.workers import Worker
from atoll.seat import Seat
from atoll.serve import answer_layouts, as_served, is_new, remote, sample_layout, talking


@dataclass(frozen=True)
class Below:
    """The edge as a server: where it listens, and who may come."""

    address: str
    credentials: Any
    roster: Callable[[], Mapping[str, str]]
    parties: int | None = None  # that must be there before the first question is passed on; default: all
    first: int = 0  # the number of its first party: edges that count on from each other have no two of one number


def edge(
    parent: str, credentials: Any, name: str, policy: Policy, folder: str | Path, below: Below, *, server: str = "",
    seeded: bool = False, times: Times | None = None, say: Callable[[str], None] = lambda _: None,
    ready: Callable[[str], None] = lambda _: None, stop: threading.Event | None = None,
) -> str:  # fmt: skip
    """Stand between a server and parties until the server says that it is over; returns why."""
    folder, times = Path(folder), times or Times(answer=300.0)
    folder.mkdir(parents=True, exist_ok=True)
    hello = write_envelope(Hello(name, 0, Layout({}), edge=True))
    transport = PartyTransport(parent, credentials, times=times, folder=folder)
    with Audit(folder / "audit.jsonl") as audit, closing(transport):
        welcome = read_envelope(Welcome, transport.hello(hello))
        if hashlib.sha256(welcome.job.encode()).digest() != welcome.manifest:
            raise Refused("the job is not the one that its hash names: the server is broken or lies")
        seat = Seat({}, welcome.job, welcome.number, len(welcome.members), welcome.classes, seeded=seeded,
                    sample=welcome.data)  # fmt: skip
        assessed = assess(seat, server, parent)
        now, job = datetime.now().astimezone(), welcome.manifest.hex()
        policy.check(assessed.manifest, now=now, spent=spent_this_month(audit.path, now, but=job))
        say(assessed.words)
        dialogue = dialogue_of(policy, welcome, assessed, credentials, name, folder)
        audit.append("joined", server=parent, job=job)
        with _hall(welcome, seat, folder, below, times, ready) as (hall, made, store):
            up = assembled(seat, data_of(seat))[0]
            party = Edge(transport, hello, welcome, seat, assessed, dialogue, policy, audit, times, say)
            party.stand(hall, made, up, store, below)
            why = party.take_part(stop or threading.Event())
            hall.end(why)
            return why


@contextmanager
def _hall(
    welcome: Welcome, seat: Seat, folder: Path, below: Below, times: Times, ready: Callable[[str], None]
) -> Iterator[tuple[Hall, Assembled, Store]]:
    """Serve the same job to those below."""
    said, data, known = parse(seat.job, "the server's job"), data_of(seat), below.roster()
    job = as_served(said.job)
    made = assemble(job, remote(data, [1] * (below.first + len(known))), said.seed)
    check_below(made)
    with ExitStack() as stack:
        store = stack.enter_context(Store(folder))
        store.enrol([*known.items()], below.first)
        run = welcome.run
        if is_new(store, run):
            store.create(run)
        journal = stack.enter_context(closing(Journal(folder, rest=0.0)))
        layouts = answer_layouts(made, len(known))
        hall = Hall(
            run, store, journal, Worker({}, {}, said.seed), layouts,
            data=sample_layout(data), classes=seat.classes, job=seat.job, manifest=welcome.manifest,
            key_of=lambda who: below.roster()[who], times=times,
        )  # fmt: skip
        limits = Limits.of(len(known), layouts.values())
        transport = ServerTransport(below.address, below.credentials, hall, limits=limits, times=times, folder=folder)
        store.move(run, "running")
        ready(transport.start())
        stack.callback(transport.stop)
        try:
            yield hall, talking(made, store), store
        finally:
            hall.end("the edge has left")


def check_below(made: Assembled) -> None:
    """Refuse what would mean something else through an edge."""
    if made.wire.noise:
        raise Mismatch("noise through an edge is added at both levels, which nobody has accounted for: serve without")
    if made.codec.start:
        raise Mismatch("a stage of this job keeps memory at the server, which an edge has none of: serve it directly")
    if isinstance(made.job.channel.combine, Buffered):
        raise Mismatch("an edge waits for all of its parties: serve a buffered job directly")


class Edge(Party):
    """A party that, instead of training, asks its own parties and adds them up."""

    def stand(self, hall: Hall, made: Assembled, up: Assembled, store: Store, below: Below) -> None:
        self._hall, self._made, self._up, self._store, self._below = hall, made, up, store, below
        self._need = below.parties or len(below.roster())

    def _train(self, what: str, t: int, question: Tree) -> dict[str, Array]:
        try:
            self._hall.wait_for(self._need, self._times.patience)
            self._need = max(self._made.wire.floor, getattr(self._made.job.channel.combine, "least", 1))
        except NobodyThere as reason:
            raise Declined(str(reason)) from None
        return self._judged(question) if what == "judge.own" else self._gathered(t, question)

    def _judged(self, question: Tree) -> dict[str, Array]:
        """All of a party's figures are sums over samples: an edge's are the sums of its parties'."""
        replies = self._hall.ask(Ask(self._hall.online(), "judge.own", question))
        if not len(replies):
            raise Declined("no party of this edge has evaluated")
        return {name: leaf.sum(axis=0, keepdims=True).astype(leaf.dtype) for name, leaf in replies.each.items()}

    def _gathered(self, t: int, question: Tree) -> dict[str, Array]:
        plan, wire = self._made.plan, self._made.wire
        vector, replies = drive(plan.gather(self._hall.online(), question, None), self._hall)
        if len(replies) < max(wire.floor, 1):
            why = replies.facts.get("unopened", f"{len(replies)} parties of this edge answered")
            raise Declined(str(why))
        seed = plan.seed if self._seat.seeded else None
        mean, _ = plan.codec.decode(vector, plan.codec.start, Heard(len(replies), seed, t))
        samples = {member.number: member.samples or 0 for member in self._store.members()}
        weight = np.array([sum(samples[party] for party in replies)], mean.dtype)
        contribute: Any = self._up.handlers["contribute"]
        about = About(weight, seed, t, np.array([self._welcome.number]), question.get("told", {}))
        codec = codec_of(contribute.stages, contribute.wire)[1]
        rows, memory = codec.encode(mean[None], self._memory, about)
        self._memory = {name: leaf for name, leaf in memory.items() if "fact." not in name}
        return {"vector": rows, "finite": np.isfinite(mean.sum(keepdims=True))}
