"""Take part in a served job: read it, hold it against the party's own policy, train in a child process, answer.

Nothing here imports what trains: a party that waits is small.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from atoll.core.tree import Array, Tree
from atoll.crypto.keys import Refused
from atoll.runtimes.child import Aside, TooLong
from atoll.runtimes.network.audit import Audit, spent_this_month
from atoll.runtimes.network.calls import Times
from atoll.runtimes.network.message import (
    AnswerHead,
    Hello,
    QuestionHead,
    Receipt,
    Welcome,
    read_envelope,
    write_envelope,
)
from atoll.runtimes.network.parcel import Header, Parcel, header_of
from atoll.runtimes.network.policy import NotAllowed, Policy
from atoll.runtimes.network.transport import PartyTransport
from atoll.runtimes.network.trees import Fault, read_tree, write_tree
from atoll.runtimes.pool import Pool
from atoll.runtimes.workers import Chunk, PartyFailed
from atoll.seat import Assessment, Holding, Seat

if TYPE_CHECKING:
    from atoll.combine.talk import Dialogue

T = TypeVar("T")
HELLO_FIRST = "say hello first"  # what a server says that was started again
# Questions whose answers hold this party's vector.
GIVING = ("contribute", "secure.masked", "light.upload", "encrypted.seal")
PATIENCE = 300.0  # seconds to read the data, and to work out what a job would do
IN_TIME = 0.95  # of the server's wait: who gives up then can still say so


class Declined(Exception):
    """A question that this party does not answer; the sentence goes to the server."""


class Changed(Refused):
    """A server that was started again with something else than this party has looked at and agreed to."""

    def __init__(self) -> None:
        super().__init__("the server came back with another run, job or parties: join again to look at it")


def join(
    address: str,
    credentials: Any,
    name: str,
    policy: Policy,
    folder: str | Path,
    *,
    server: str = "",
    seeded: bool = False,
    times: Times | None = None,
    say: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> str:
    """Take part until the server says that it is over; returns why. What the policy forbids raises NotAllowed.

    `server` is the server's key, as rosters write it. Should another job come back under it, that is looked at anew.
    """
    folder, times = Path(folder), times or Times()
    folder.mkdir(parents=True, exist_ok=True)
    transport = PartyTransport(address, credentials, times=times, folder=folder)
    with Audit(folder / "audit.jsonl") as audit, closing(transport):
        while True:
            with Aside() as aside:
                held = aside.do(_holding, policy.data, within=PATIENCE)
                hello = write_envelope(Hello(name, held.samples, held.sample))
                audit.append("hello", server=address, samples=held.samples, bytes=len(hello),
                             sha256=hashlib.sha256(hello).hexdigest())  # fmt: skip
                welcome = read_envelope(Welcome, transport.hello(hello))
                if hashlib.sha256(welcome.job.encode()).digest() != welcome.manifest:
                    raise Refused("the job is not the one that its hash names: the server is broken or lies")
                seat = _seat(policy, welcome, seeded)
                work = partial(aside.do, _assess, seat, server, address, within=PATIENCE)
                assessed = _alive(work, partial(transport.hello, hello), times.silence / 3)
            now, job = datetime.now().astimezone(), welcome.manifest.hex()
            policy.check(assessed.manifest, now=now, spent=spent_this_month(audit.path, now, but=job))
            say(assessed.words)
            dialogue = dialogue_of(policy, welcome, assessed, credentials, name, folder)
            audit.append("joined", server=address, job=job)
            party = Party(transport, hello, welcome, seat, assessed, dialogue, policy, audit, times, say)
            try:
                return party.take_part(stop or threading.Event())
            except Changed as reason:
                say(str(reason))


def _holding(recipe: Mapping[str, Any]) -> Holding:
    from atoll.party import holding

    return holding(recipe)


def _assess(seat: Seat, server: str, address: str) -> Assessment:
    from atoll.party import assess

    return assess(seat, server, address)


def _seat(policy: Policy, welcome: Welcome, seeded: bool) -> Seat:
    return Seat(
        policy.data, welcome.job, welcome.number, len(welcome.members), welcome.classes, policy.most_length, seeded
    )


def dialogue_of(
    policy: Policy, welcome: Welcome, assessed: Assessment, credentials: Any, name: str, folder: Path
) -> Dialogue | None:
    """Sit down to secure sums with those whose keys this party knows from its own file, not from the server."""
    hidden = assessed.hidden
    if hidden is None:
        return None
    from atoll.combine.talk import Sitting
    from atoll.runtimes.network.roster import Roster

    identity = getattr(getattr(credentials, "member", None), "identity", None)
    if identity is None:
        raise NotAllowed("secure sums need the parties' keys: join with --key instead of --insecure")
    if policy.roster is None:
        raise NotAllowed(
            "roster: a hidden sum is worth something among parties whose keys this one knows itself; name the file of "
            f'their lines, roster = "roster" (see {policy.name})'
        )
    try:
        known = Roster.load(policy.roster).keys
    except OSError as error:
        raise NotAllowed(f"roster: cannot read {policy.roster}: {error.strerror} (see {policy.name})") from None
    if known.get(name) != identity.public:
        raise NotAllowed(f"roster: {policy.roster} has another key for {name} than its own, or none: mend its line")
    keys = {number: known[who] for who, number in welcome.members.items() if who in known}
    if keys.get(welcome.number) != identity.public:
        raise NotAllowed(f"the server calls {name} number {welcome.number} and says that this is somebody else's")
    (folder / "spent").mkdir(exist_ok=True)
    sitting = Sitting(
        welcome.number, identity, keys, policy.least_cohort, hidden.floor, hidden.size, hidden.width, hidden.value,
        hidden.schema, assessed.manifest.rounds, folder / "spent",
    )  # fmt: skip
    return hidden.combine.party(sitting)


class Party:
    """One party in one run: pulls questions, answers them, and writes down what leaves before it does."""

    def __init__(
        self, transport: PartyTransport, hello: bytes, welcome: Welcome, seat: Seat, assessed: Assessment,
        dialogue: Dialogue | None, policy: Policy, audit: Audit, times: Times, say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._transport, self._hello, self._welcome, self._seat = transport, hello, welcome, seat
        self._assessed, self._dialogue, self._policy, self._audit = assessed, dialogue, policy, audit
        self._times, self._say = times, say
        self._job = welcome.manifest.hex()
        self._given, self._moved = answers_given(audit.path, self._job), bytes_moved(audit.path, self._job)
        self._pool: Pool | None = None
        self._until = 0.0  # when the answer is due
        self._memory: Mapping[str, Array] = {}
        self._answered: tuple[QuestionHead, AnswerHead, bytes] | None = None  # should its receipt be lost
        self._changed = False

    def take_part(self, stop: threading.Event) -> str:
        try:
            self._greet()  # it may have been started again while this party looked at the job
            while not stop.is_set():
                try:
                    self._turn()
                except Changed:
                    raise
                except Refused as reason:
                    if HELLO_FIRST not in str(reason):
                        return str(reason)
                    self._greet()
            self._leave()
            return "stopped by hand"
        except Changed:
            raise
        except BaseException:
            self._leave()
            raise
        finally:
            if self._pool:
                self._pool.close()

    def _greet(self) -> None:
        """Say hello again, and see whether the server is still what this party has agreed to."""
        self._changed |= read_envelope(Welcome, self._transport.hello(self._hello)) != self._welcome

    def _leave(self) -> None:
        with suppress(Refused, OSError):  # a server that is away finds out by itself
            self._transport.leave()

    def _turn(self) -> None:
        """Wait for a question, answer it."""
        if self._changed:
            raise Changed
        parcel = self._transport.pull()
        if parcel is None:
            return
        with parcel:
            head = read_envelope(QuestionHead, parcel.header.envelope)
            self._move(parcel.header.size)
            if self._answered is None or self._answered[0] != head:
                self._answered = (head, *self._answer(head, parcel))
            else:
                self._move(len(self._answered[2]))
        _, answer, text = self._answered
        header = header_of("answer", f"{head.run}/{head.number}", text)
        sealed = Header(header.kind, header.id, header.size, header.sha256, write_envelope(answer))
        receipt = read_envelope(Receipt, self._transport.push(sealed, text))
        what = f"declined {head.what}: {answer.declined}" if answer.declined else f"{head.what}: {header.size:,} bytes"
        self._say(f"round {head.t + 1}, {what}" + (f", refused: {receipt.reason}" if receipt.reason else ""))

    def _move(self, size: int) -> None:
        """Count bytes of questions and answers, also of those that come or go again; refuse one too many."""
        self._moved += size
        most = self._policy.most_bytes
        if most is not None and self._moved > most:
            raise NotAllowed(
                f"{self._policy.name}: most_bytes = {most:,}, and with this the job moves {self._moved:,}: "
                "raise it to go on"
            )

    def _answer(self, head: QuestionHead, parcel: Parcel) -> tuple[AnswerHead, bytes]:
        """Work an answer out; its line in the audit is on disk before it leaves."""
        began, self._until = time.perf_counter(), time.monotonic() + IN_TIME * head.seconds
        try:
            text, why = write_tree(self._work(head, parcel)), ""
        except (Declined, Fault) as reason:
            text, why = b"", str(reason)[:500]
        except TooLong:
            text, why = b"", f"training was given up: it took longer than the {head.seconds:g} s that the server waits"
        except PartyFailed as reason:
            # What went wrong may tell of the data, so only this party reads it.
            self._say(f"round {head.t + 1}: {reason}")
            text, why = b"", "training failed at the party; its own log says why"
        if self._changed:
            raise Changed
        header = header_of("answer", f"{head.run}/{head.number}", text)
        self._move(header.size)
        about: Any = {"job": self._job, "question": head.number, "asked": head.what, "brought": parcel.header.size}
        if why:
            self._audit.append("declined", **about, why=why)
        else:
            giving = head.what in GIVING
            self._given += giving
            spent = self._assessed.spent[self._given - 1] if giving and self._assessed.spent else None
            self._audit.left(**about, size=header.size, digest=header.sha256.hex(), epsilon=spent)
        seconds = time.perf_counter() - began
        return AnswerHead(head.run, head.number, header.size, header.sha256, seconds, why), text

    def _work(self, head: QuestionHead, parcel: Parcel) -> Tree:
        layout, now = self._assessed.questions.get(head.what), datetime.now().astimezone()
        if layout is None:
            raise Declined(f"{head.what!r} is no question of this job")
        if not self._policy.open_at(now):
            raise Declined(f"this party takes part at {self._policy.hours} only")
        size, most = parcel.header.size, layout.most_bytes
        if size > most:  # too long to be read into memory
            raise Declined(f"a question of {size:,} bytes: {head.what!r} has at most {most:,} in this job")
        with parcel:
            question = read_tree(parcel.body.read(), most, schema=layout)
        if head.what in GIVING:
            monthly = self._policy.most_epsilon_month is not None
            others = spent_this_month(self._audit.path, now, but=self._job) if monthly else 0.0
            within_policy(self._policy, self._assessed, self._given + 1, others)
        return _alive(partial(self._reply, head, question), self._greet, self._times.silence / 3)

    def _reply(self, head: QuestionHead, question: Tree) -> Tree:
        if self._dialogue is None or head.what == "judge.own":
            return self._train(head.what, head.t, question)
        from atoll.crypto import secagg

        def vector(asked: Tree) -> Array:
            found = self._train("contribute", head.t, asked)
            if not found["finite"].all():
                raise Declined("the numbers of this party are not finite")
            return found["vector"][0]

        try:
            message = self._dialogue.answer(head.what.partition(".")[2], question, vector)
        except secagg.Abort as reason:
            raise Declined(str(reason)) from None
        return {"message": np.frombuffer(message, np.uint8)}

    def _train(self, what: str, t: int, question: Tree) -> dict[str, Array]:
        """Answer in the child process, which is started when it is first needed and stays warm."""
        if self._pool is None:
            self._pool = Pool(self._seat, 1)
        chunk = Chunk(what, t, np.array([self._welcome.number]), self._memory if what == "contribute" else {}, ())
        ((answer, _),) = self._pool.answers([chunk], question, self._until)
        # What it gives is copied, since the next answer takes its place.
        if what == "contribute":
            self._memory = {name: np.array(leaf) for name, leaf in answer.memory.items()}
        return {name: np.array(leaf) for name, leaf in answer.each.items()}


def answers_given(path: Path, job: str) -> int:
    """Count the answers with this party's vector that it has given to a job, also before it was started again.

    By their bytes: what was sent twice shows nothing more, and the numbers of questions are the server's.
    """
    return len({line["sha256"] for line in _lines(path, job) if line["what"] == "left" and line["asked"] in GIVING})


def bytes_moved(path: Path, job: str) -> int:
    """Add up the answers of a job and the questions that they were given to."""
    return sum(line.get("bytes", 0) + line.get("brought", 0) for line in _lines(path, job))


def _lines(path: Path, job: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("job") == job]


def within_policy(policy: Policy, assessed: Assessment, answers: int, others: float) -> None:
    """Refuse one answer too many. The party counts them itself: what round it is, only the server says.

    `others` is the ε that other jobs have spent this month.
    """
    most = policy.most_rounds
    if most is not None and answers > most:
        raise NotAllowed(f"{policy.name}: most_rounds = {most}, and the server asks again: raise it to go on")
    if answers > assessed.answers:
        raise NotAllowed(
            f"the server asked {answers} times, and the job has {assessed.manifest.rounds} rounds: ask its owner why"
        )
    limit, spent = policy.most_epsilon_job, assessed.spent
    if limit is not None and (not spent or spent[answers - 1] > limit):
        raise NotAllowed(
            f"{policy.name}: most_epsilon_job = {limit:g}, and answer {answers} would spend more: raise it to go on"
        )
    month = policy.most_epsilon_month
    if month is not None and (not spent or others + spent[answers - 1] > month):
        raise NotAllowed(
            f"{policy.name}: most_epsilon_month = {month:g}, other jobs have spent {others:g}, and with answer "
            f"{answers} it would be more: wait for the next month, or raise it"
        )


def _alive(work: Callable[[], T], sign: Callable[[], Any], every: float) -> T:
    """Do work, giving a sign of life while it lasts.

    The work stays in this thread: a process that it starts ends with the thread that started it.
    """
    done = threading.Event()

    def live() -> None:
        while not done.wait(every):
            with suppress(Exception):  # a server that is away now may be back when the work is done
                sign()

    threading.Thread(target=live, daemon=True).start()
    try:
        return work()
    finally:
        done.set()
