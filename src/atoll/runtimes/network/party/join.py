"""Take part in a served job: read it, hold it against the party's own policy, train in a child process, answer.

Nothing here imports what trains: a party that waits is small.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from atoll.core.disk import replace_file
from atoll.core.errors import AtollError
from atoll.core.question import Fault, Question
from atoll.core.tree import Array, Tree, nest
from atoll.core.wire import ClientSide, Member, Setting
from atoll.core.world import World
from atoll.crypto.keys import Identity, Refused
from atoll.programs.evaluate import HIDDEN_LOCAL, LOCAL
from atoll.runtimes.local.pool import ProcessPool
from atoll.runtimes.local.process import Subprocess, TooLong
from atoll.runtimes.local.worker import Chunk, PartyFailed
from atoll.runtimes.network.messages.answers import write_answer
from atoll.runtimes.network.messages.calls import HelloFirst, RunOver, Times
from atoll.runtimes.network.messages.envelope import (
    AnswerHead,
    Hello,
    QuestionHead,
    Receipt,
    Welcome,
    read_envelope,
    write_envelope,
)
from atoll.runtimes.network.messages.payload import Header, Payload, header_of
from atoll.runtimes.network.messages.trees import read_tree
from atoll.runtimes.network.party.answers import LastAnswers
from atoll.runtimes.network.party.audit import AuditLog, phase_of
from atoll.runtimes.network.party.budget import JobBudget, account_of, carry_over
from atoll.runtimes.network.party.line import (
    alive,
    calling,
    in_hours,
    leave,
    parties_of,
    place_of,
    said,
    until_over,
    welcomed,
)
from atoll.runtimes.network.party.memory import OwnMemory
from atoll.runtimes.network.party.policy import NotAllowed, Policy
from atoll.runtimes.network.party.session import Assessment, OwnSummary, Session
from atoll.runtimes.network.transport import PartyTransport
from atoll.runtimes.network.trust.tls import Unknown

if TYPE_CHECKING:
    from atoll.runtimes.network.party.roles import RoleSession
    from atoll.runtimes.network.trust.tls import Credentials, Insecure, PartyTLS

T = TypeVar("T")
PATIENCE = 300.0  # seconds to read the data, and to work out what a job would do
STOPPED = "stopped by hand"
IN_TIME = 0.95  # of the server's wait: who gives up then can still say so


class Declined(AtollError):
    """A question that this party does not answer; the sentence and its code go to the server."""

    code = "declined"

    def __init__(self, sentence: str, code: str = code) -> None:
        super().__init__(sentence)
        self.code = code


class Revoked(Refused):
    """This party took part, and the server's roster has its key no more."""

    code = "revoked"


class Changed(Refused):
    """A server that was started again with something else than this party has looked at and agreed to."""

    code = "server_changed"

    def __init__(self) -> None:
        super().__init__("the server came back with another run, job or parties: join again to look at it")


@until_over
def join(
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
    """Take part until the server says that it is over; returns why. What the policy forbids raises NotAllowed.

    `server` is the server's key, as rosters write it. Should another job come back under it, that is looked at anew.
    `proxy` is that of HTTPS_PROXY where nothing is said, and "none" is none.
    """
    stop = stop or threading.Event()
    if not in_hours(policy, say, stop):
        return STOPPED
    if "use" not in policy.data:
        from atoll.runtimes.network.party.join_roles import join_roles

        who = (address, credentials, name, policy, folder)
        return join_roles(*who, server=server, world=world, times=times, say=say, stop=stop, proxy=proxy)
    folder, times = Path(folder), times or Times()
    with calling(address, credentials, folder, times, policy, proxy) as (transport, audit):
        account = account_of(policy, folder)
        carry_over(audit, account)
        while True:
            with Subprocess(policy.max_assess_memory) as child:
                held = child.do(_summary, policy.data, within=PATIENCE)
                hello = said(
                    audit, address, Hello(name, held.samples, held.sample, columns=held.columns, place=place_of(folder))
                )
                welcome = welcomed(transport, hello, policy)
                session = Session(policy, welcome.job, welcome.number, parties_of(welcome), welcome.classes, world)
                work = partial(child.do, _assess, session, server, address, within=PATIENCE)
                assessed = alive(work, partial(transport.hello, hello), times.silence / 3)
            budget = JobBudget(account, policy, assessed, welcome.manifest.hex())
            say(assessed.words)
            budget.agree(assessed.manifest)
            sides = sides_of(policy, welcome, assessed, credentials, name, folder, session)
            audit.append("joined", server=address, job=welcome.manifest.hex())
            party = Party(transport, hello, welcome, session, budget, sides, folder, audit, times, say)
            try:
                return party.take_part(stop)
            except Changed as reason:
                say(str(reason))


def _summary(recipe: Mapping[str, object]) -> OwnSummary:
    from atoll.runtimes.network.party.assess import summary

    return summary(recipe)


def _assess(session: Session, server: str, address: str) -> Assessment:
    from atoll.runtimes.network.party.assess import assess

    return assess(session, server, address)


def sides_of(
    policy: Policy, welcome: Welcome, assessed: Assessment, credentials: Credentials, name: str, folder: Path,
    session: Session,
) -> dict[str, ClientSide]:  # fmt: skip
    """Take part in hidden sums with those whose keys this party knows from its own file, not from the server."""
    if not assessed.conversations:
        return {}
    from atoll.combine.protocol import PartySession
    from atoll.crypto.lists import SignedLists
    from atoll.crypto.secagg.policy import Spent

    identity, known = own_roster(
        policy, credentials, name, welcome, "secure sums need the parties' keys",
        "a hidden sum is worth something among parties whose keys this one knows itself",
    )  # fmt: skip
    members = {number: Member(who, known[who]) for who, number in welcome.members.items() if who in known}
    if members.get(welcome.number) != Member(name, identity.public):
        raise NotAllowed(f"the server calls {name} number {welcome.number} and says that this is somebody else's")
    spent, sums = folder / "spent", folder / "sums"
    for one in (spent, sums):
        one.mkdir(exist_ok=True, mode=0o700)
    batches = () if policy.whole_batches is None else assessed.batches
    if batches:
        freeze(sums / f"{welcome.manifest.hex()}.members", members, policy)
    mine = PartySession(welcome.number, identity, policy.min_cohort, 2**31, Spent(spent), SignedLists(sums), batches)
    found = {}
    for phase, (combine, wire) in assessed.conversations.items():
        setting = Setting(phase, session.world(assessed.seed), welcome.manifest, lambda: members)
        side = combine.client(wire, setting, mine)
        assert side is not None
        found[phase] = side
    return found


def freeze(path: Path, members: Mapping[int, Member], policy: Policy) -> None:
    """Note who may be in a job's sums when this party first agrees to it; refuse others later.

    Batches are cut from them: two different cuts together would separate those whom each keeps together. A party with a
    new key is the same party.
    """
    text = "".join(f"{number} {one.name}\n" for number, one in sorted(members.items())).encode()
    if not path.exists():
        replace_file(path, text, mode=0o600)
    elif path.read_bytes() != text:
        raise NotAllowed(
            "whole_batches: the parties of this job, or their numbers, are others than when this party agreed to it, "
            f"and batches must not change; ask for the job under another name (see {policy.name})"
        )


def own_roster(
    policy: Policy, credentials: Credentials, name: str, welcome: Welcome, need: str, why: str
) -> tuple[Identity, Mapping[str, bytes]]:
    """Return a party's identity and the keys in its own file of them.

    Args:
        policy: names the file.
        credentials: hold the identity.
        name: the party's own, whose line must be in the file.
        welcome: says which key each member uses; of two in the file that one is taken.
        need: what the identity is for, said to a party without one.
        why: what the file is for, said to a party without one.
    """
    from atoll.runtimes.network.trust.roster import Roster, hinted

    identity = credentials.identity
    if identity is None:
        raise NotAllowed(f"{need}: join with --key instead of --insecure")
    if policy.roster is None:
        raise NotAllowed(f'roster: {why}; name the file of their lines, roster = "roster" (see {policy.name})')
    try:
        roster = Roster.load(policy.roster)
    except OSError as error:
        raise NotAllowed(f"roster: cannot read {policy.roster}: {error.strerror} (see {policy.name})") from None
    known = roster.using({**hinted(welcome.members, welcome.keys), name: identity.public})
    if known.get(name) != identity.public:
        raise NotAllowed(f"roster: {policy.roster} has another key for {name} than its own, or none: mend its line")
    return identity, known


class RoleAnswers(Protocol):
    """Who answers where this party plays a role (`join_roles`). A question that it does not answer raises Declined."""

    def question(self, what: str) -> Question: ...
    def answer(self, what: str, question: Tree, until: float) -> Tree: ...


class Party:
    """One party in one run: pulls questions, answers them, and writes down what leaves before it does."""

    def __init__(
        self, transport: PartyTransport, hello: bytes, welcome: Welcome, session: Session | RoleSession,
        budget: JobBudget, sides: Mapping[str, ClientSide], folder: Path, audit: AuditLog, times: Times,
        say: Callable[[str], None],
        role: RoleAnswers | None = None,
    ) -> None:  # fmt: skip
        self._role = role
        self._transport, self._hello, self._welcome, self._session = transport, hello, welcome, session
        self._budget, self._sides, self._policy, self._audit = budget, sides, session.policy, audit
        self._times, self._say = times, say
        self._job = welcome.manifest.hex()
        self._last = LastAnswers(folder / "answers" / self._job)
        self._pool: ProcessPool | None = None
        self._until = 0.0  # when the answer is due
        self._used = -1  # the last ask whose answer was used, as the question says
        self._memory = OwnMemory(folder / "memory" / self._job, session.policy.max_memory)
        self._answered: tuple[QuestionHead, AnswerHead, bytes] | None = None  # should its receipt be lost
        self._changed = False
        self._resting = False  # outside of the policy's hours, as the server was told

    def take_part(self, stop: threading.Event) -> str:
        greet = True  # the server may have been started again while this party looked at the job
        try:
            while not stop.is_set():
                try:
                    if greet:
                        self._greet()
                    greet = False
                    self._turn()
                except Changed:
                    raise
                except HelloFirst:
                    greet = True
                except RunOver as reason:
                    self._last.forget()
                    leave(self._transport)
                    return str(reason)
                except Unknown as reason:
                    raise Revoked(str(reason)) from None
            leave(self._transport)
            return STOPPED
        except (Changed, NotAllowed, Refused):
            raise
        except BaseException:
            leave(self._transport)
            raise
        finally:
            if self._pool:
                self._pool.close()

    def _greet(self) -> None:
        """Say hello again, and see whether the server is still what this party has agreed to."""
        self._changed |= read_envelope(Welcome, self._transport.hello(self._hello)) != self._welcome

    def _turn(self) -> None:
        """Wait for a question, answer it."""
        if self._changed:
            raise Changed
        if self._resting and self._policy.open_at(datetime.now().astimezone()):
            self._resting = False
            self._greet()
        payload = self._transport.pull()
        if payload is None:
            return
        with payload:
            head = read_envelope(QuestionHead, payload.header.envelope)
            self._move(payload.header.size)
            if self._answered is None or self._answered[0] != head:
                self._answered = (head, *self._answer(head, payload))
            else:
                self._move(len(self._answered[2]))
        _, answer, text = self._answered
        header = header_of("answer", f"{head.run}/{head.number}", text)
        sealed = Header(
            header.kind, header.id, header.size, header.sha256, write_envelope(answer, self._welcome.version)
        )
        receipt = read_envelope(Receipt, self._transport.push(sealed, text))
        what = f"declined {head.what}: {answer.declined}" if answer.declined else f"{head.what}: {header.size:,} bytes"
        self._say(f"round {head.t + 1}, {what}" + (f", refused: {receipt.reason}" if receipt.reason else ""))

    def _move(self, size: int) -> None:
        """Count bytes of questions and answers, also of those that come or go again; refuse one too many."""
        moved, most = self._budget.moved(size), self._policy.max_bytes
        if most is not None and moved > most:
            raise NotAllowed(
                f"{self._policy.name}: max_bytes = {most:,}, and with this all jobs on {self._policy.dataset_name} "
                f"have moved {moved:,}: raise it to continue"
            )

    def _answer(self, head: QuestionHead, payload: Payload) -> tuple[AnswerHead, bytes]:
        """Work an answer out; its line in the audit is on disk before it leaves."""
        began, self._until = time.perf_counter(), time.monotonic() + IN_TIME * head.seconds
        code, doing = "", f"the answer to {head.what!r}" if self._role else "training"
        try:
            text, why = self._work(head, payload), ""
        except (Declined, Fault) as reason:
            text, why, code = b"", str(reason)[:500], reason.code
        except TooLong:
            text, why = b"", f"{doing} was given up: it took longer than the {head.seconds:g} s that the server waits"
        except PartyFailed as reason:
            # What went wrong may tell of the data, so only this party reads it.
            self._say(f"round {head.t + 1}: {reason}")
            text, why = b"", f"{doing} failed at the party; its own log says why"
        if self._changed:
            raise Changed
        header = header_of("answer", f"{head.run}/{head.number}", text)
        self._move(header.size)
        question, brought = head.number, payload.header.size
        if why:
            self._audit.append(
                "declined", job=self._job, question=question, asked=head.what, brought=brought, why=why,
                dataset=self._budget.account.name,
            )  # fmt: skip
        else:
            contributes = self._asked(head.what).contributes
            spent = self._budget.epsilon() if contributes else inf
            self._audit.left(
                job=self._job, question=question, asked=head.what, brought=brought, size=header.size,
                digest=header.sha256.hex(), epsilon=spent if spent < inf else None, contributes=contributes,
                dataset=self._budget.account.name,
            )  # fmt: skip
        seconds = time.perf_counter() - began
        return AnswerHead(head.run, head.number, header.size, header.sha256, seconds, why, code), text

    def _work(self, head: QuestionHead, payload: Payload) -> bytes:
        asked, now = self._asked(head.what), datetime.now().astimezone()
        layout = asked.asks
        if not self._policy.open_at(now):
            self._resting = True
            raise Declined(f"this party takes part at {self._policy.hours} only", NotAllowed.code)
        size, most = payload.header.size, layout.max_bytes
        if size > most:  # too long to be read into memory
            raise Declined(f"a question of {size:,} bytes: {head.what!r} has at most {most:,} in this job")
        with payload:
            body = payload.body.read()
        question = read_tree(body, most, schema=layout)
        self._used = head.used
        work = partial(self._reply, head, question)
        if self._role is not None or phase_of(head.what) in self._sides:
            return write_answer(asked, alive(work, self._greet, self._times.silence / 3))
        key = b"%d %s" % (head.used, body)
        kept = self._last.recall(head.what, key)
        if kept is None:
            kept = write_answer(asked, alive(work, self._greet, self._times.silence / 3))
            self._last.remember(head.what, key, kept)
        return kept

    def _asked(self, what: str) -> Question:
        """Look up what may be asked."""
        if self._role is not None:
            return self._role.question(what)
        if what not in self._budget.assessed.questions:
            raise Declined(f"{what!r} is no question of this job")
        return self._budget.assessed.questions[what]

    def _reply(self, head: QuestionHead, question: Tree) -> Tree:
        if (role := self._role) is not None:
            if not role.question(head.what).contributes:
                return role.answer(head.what, question, self._until)
            return self._booked(head.what, lambda: role.answer(head.what, question, self._until))
        phase, _, step = head.what.partition("/")
        if phase not in self._sides:
            return nest(self._booked(head.what, lambda: self._train(head.what, question)))
        from atoll.crypto.keys import Abort

        def vector(asked: Tree) -> Array:
            what = f"{phase}/contribute"
            found = self._booked(what, lambda: self._train(what, asked))
            if not found["finite"].all():
                raise Declined("the numbers of this party are not finite")
            return found["vector"][0]

        try:
            return self._sides[phase].answer(step, question, vector)
        except Abort as reason:
            raise Declined(str(reason)) from None

    def _booked(self, what: str, work: Callable[[], T]) -> T:
        """Work out something new of this party's data, within its budget; it is booked before any of it leaves."""
        phase, evaluates = phase_of(what), what == LOCAL or what.startswith(HIDDEN_LOCAL)
        self._budget.allow(phase, evaluates)
        found = work()
        self._budget.book(phase, evaluates)
        return found

    def _train(self, what: str, question: Tree) -> dict[str, Array]:
        """Answer in the child process, which is started when it is first needed and stays warm.

        The round is the question's, which the protocols of hidden sums are bound to, and not that of the head, which a
        server may choose for each party.
        """
        t = int(question["t"])
        if self._pool is None:
            self._pool = ProcessPool(self._session, 1)
        # Later steps of a sum and evaluations belong to an ask that is not over.
        if what.endswith("/contribute") and not what.startswith(HIDDEN_LOCAL):
            self._memory.settle(self._used)
        chunk = Chunk(what, t, np.array([self._welcome.number]), self._memory.recall(self._used), ())
        ((answer, _),) = self._pool.answers([chunk], question, self._until)
        # What it gives is copied, since the next answer takes its place.
        if answer.memory:
            self._memory.remember(t, answer.memory)
        return {name: np.array(leaf) for name, leaf in answer.each.items()}
