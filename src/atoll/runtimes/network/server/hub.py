"""The server's side of every question: who is there, what is asked, what came back. It runs no training."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, NamedTuple

import numpy as np

from atoll.core.effects import Ask, Cohort, Note, Recorder, Replies
from atoll.core.errors import AtollError
from atoll.core.question import Fault, Layout, Question
from atoll.core.tree import EMPTY, Array, Tree
from atoll.crypto.keys import Refused, refuse_if
from atoll.data.errors import BadData
from atoll.data.schema import TableSchema
from atoll.journal.sealed import Damaged
from atoll.programs.quorum import Quorum
from atoll.programs.traffic import travels
from atoll.runtimes.local.worker import Chunk, Worker
from atoll.runtimes.network.messages.answers import read_answer
from atoll.runtimes.network.messages.awake import AwakeClock
from atoll.runtimes.network.messages.calls import NOT_ALLOWED, HelloFirst, Later, Limits, RunFailed, RunOver, Times
from atoll.runtimes.network.messages.envelope import (
    PROTOCOL,
    AnswerHead,
    Goodbye,
    Hello,
    QuestionHead,
    Receipt,
    Welcome,
    read_envelope,
    spoken_with,
    write_envelope,
)
from atoll.runtimes.network.messages.payload import Header, QuestionPayload, header_of
from atoll.runtimes.network.messages.trees import write_tree
from atoll.runtimes.network.server.collect import AskedQuestion, LostAnswer, collect
from atoll.runtimes.network.server.farewell import Farewell
from atoll.runtimes.network.server.health import OpenQuestion, PartySeen, Standing
from atoll.runtimes.network.server.store import Store
from atoll.runtimes.network.server.tables import Answer, Stranger
from atoll.runtimes.network.trust.roster import Unreadable, hints_of

AT_A_TIME = 8  # answers that are in memory to be looked at; others wait on disk
TRIES = 4  # to read the answers to a question from a disk that changes them


class NobodyThere(AtollError, RuntimeError):
    """Too few parties came in the time given."""

    code = "nobody_there"


class _Asked(NamedTuple):
    """How many parties were put a question, and how long all bodies are that they are sent."""

    parties: int = 0
    bytes: int = 0


class Hub:
    """Answers a program's questions by asking parties over the network, and serves those parties' calls.

    A bad answer is refused by name and reason and changes nothing; sums are added in the order of the parties'
    numbers, whoever came first.
    """

    def __init__(
        self,
        run: str,
        store: Store,
        journal: Recorder,
        local: Worker,
        questions: Mapping[str, Question],
        *,
        data: Layout,
        schema: TableSchema | None = None,
        classes: int = 0,
        job: str,
        manifest: bytes,
        roster: Callable[[], Mapping[str, str]],
        times: Times,
        live: bool = False,
        successor: bytes = b"",
        elapsed: float = 0.0,
        weights: Mapping[str, Callable[[int], float]] = EMPTY,
    ) -> None:
        self.run, self._store, self._journal, self._local = run, store, journal, local
        self._questions, self._data, self._job, self._manifest = dict(questions), data, job, manifest
        self._told = {name: travels(question) for name, question in questions.items()}
        self._used: Array | None = None  # by party: the last ask whose answer was used
        self._classes, self._weights = classes, weights  # by question: the largest weight of so many samples
        self._schema = schema
        self._members = {member.name: member.number for member in store.members() if member.listed}
        self._roster, self._times = roster, times
        self._successor = successor  # an announcement of the server's next key
        self._live = live  # whether new lines of the roster are taken over between rounds
        self._enrolled = {member.name: member.key for member in store.members() if member.listed}
        self._hints = hints_of(self._enrolled, self._members)
        self._rekeyed: set[str] = set()  # whose key has changed, which the others do not know yet
        self.renewed = False  # the roster has changed: the program has to be assembled for other parties
        self.allow: Callable[[Limits], None] = lambda _: None  # is told how long answers of other parties may be
        self._began = time.perf_counter() - elapsed
        lock = threading.RLock()
        self._turn = threading.Condition(lock)  # for the program: somebody came, went or answered
        self._news = threading.Condition(lock)  # for parties: there is a question, or will be none
        self._desk = threading.Semaphore(AT_A_TIME)
        self._clock = AwakeClock()
        self._seen: dict[int, float] = {}
        self._agreed: set[int] = set()  # who has asked for questions, so has looked at the job and agreed
        self._refusing: dict[int, str] = {}  # who does not take part now, by a policy of its own, and why
        self._quorum, self._phases = Quorum(0), frozenset[str]()
        self._numbers: dict[str, int] = {}
        self._samples: dict[int, int] = {}  # as declared; an edge declares those of its parties
        self._speaks: dict[int, int] = {}  # which version, by party
        self._places: dict[str, bytes] = {}  # which folder each came from
        self._open: dict[int, AskedQuestion] = {}
        self.farewell = Farewell()
        self._begun_asking = False
        self._needed = 0  # parties that are waited for now
        self._awaited: list[str] = []  # of those, who must be among them and is not there
        self._tally: Counter[str] = Counter()  # answers by verdict, bytes in and out
        self._unwritten = ""  # why the last answer could not be stored
        self.over = ""  # why there will be no further question
        self._ending: type[Refused] = RunOver

    # --- parties' calls, from many threads ---

    def hello(self, name: str, hello: bytes) -> bytes:
        try:
            said = read_envelope(Hello, hello)
        except Fault as fault:
            raise Refused(str(fault)) from None
        if self.over:
            raise self._ending(self.over)
        if not said.edge:
            self._check_data(name, said)
        self._check_place(name, said.place)
        try:
            number = self._store.join(name, self._admit(name), 0 if said.edge else said.samples)
        except Stranger as reason:
            raise Refused(str(reason)) from None
        with self._turn:
            new = name not in self._numbers or self._refusing.pop(number, None) is not None
            new |= self._samples.get(number) != said.samples
            self._numbers[name], self._speaks[number] = number, spoken_with(said.version)
            self._samples[number] = said.samples
            self._places[name] = said.place
            self._here(number)
            self.farewell.came(name)
            self._turn.notify_all()
        if new:
            self._journal.note(Note("joined", {"party": name, "number": number, "samples": said.samples}))
        told = (self._job, self._manifest, self._told, self._members, self._classes, self._data)
        welcome = Welcome(self.run, number, *told, self._hints, self._successor)
        return write_envelope(welcome, self._speaks[number])

    def _admit(self, name: str) -> str:
        """Return the key that a name uses now. A changed one counts at once, a new line from the next round on."""
        key = self._roster().get(name, "")
        with self._turn:
            if self._live and name not in self._enrolled:
                raise Later(f"the line of {name} is new: it takes part from the next round on")
            if key and self._enrolled.get(name, key) != key:
                self._enrolled[name] = key
                self._rekeyed.add(name)
                self._hints = hints_of(self._enrolled, self._members)
                self._store.enrol([*self._enrolled.items()])
        return key

    def _renew(self) -> None:
        """Take over what the roster says now, between rounds; with others among them all look at the job again."""
        try:
            lines = dict(self._roster())
        except Unreadable:
            return  # nobody is let in until it is mended
        with self._turn:
            added, removed = lines.keys() - self._enrolled.keys(), self._enrolled.keys() - lines.keys()
            for name in removed:
                number = self._numbers.pop(name, -1)
                self._seen.pop(number, None)
                self._agreed.discard(number)
                self.farewell.left(name)
            if not (added or removed or self._rekeyed):
                return
            changed, self._rekeyed, self._enrolled = self._rekeyed, set(), lines
            self._store.enrol([*lines.items()])
            if added or changed:
                self.renewed = True
                self._members |= {m.name: m.number for m in self._store.members() if m.listed}
                self._hints = hints_of(lines, self._members)
                self._numbers.clear()
                self._agreed.clear()
        said = {"added": added, "removed": removed, "changed": changed}
        self._journal.note(Note("roster", {what: ", ".join(sorted(names)) for what, names in said.items() if names}))

    def _check_data(self, name: str, said: Hello) -> None:
        """Refuse data that means something else than the job's; a party puts another order of columns right itself."""
        try:
            self._check_columns(name, said)
        except (Refused, BadData) as objection:
            self._refuses(name, self._members.get(name, -1), str(objection))
            raise Refused(str(objection)) from None

    def _check_columns(self, name: str, said: Hello) -> None:
        if self._schema is None:
            other = said.data != self._data
            refuse_if(other, f"{name} holds other data than the job is about: {_words(self._data)}")
        elif said.columns is None:
            raise Refused(f"{name} holds data whose columns have no names, and the job names them: bring a CSV file")
        else:
            self._schema.refuse(said.columns, f"the data of {name}")

    def _check_place(self, name: str, place: bytes) -> None:
        """Turn away a second process of a party that is here: each would answer what the other has begun."""
        with self._turn:
            before = self._places.get(name) or place  # who does not name its folder is not told apart
            other = place not in (b"", before) and self._alive(self._numbers.get(name, -1))
        if other:
            raise Refused(
                f"{name} is here already, from another folder: stop one of the two, or wait {self._times.silence:g} s "
                "after the other has ended"
            )

    def next_question(self, name: str, wait: float) -> QuestionPayload | None:
        number = self._number(name)
        until = time.monotonic() + wait
        with self._turn:
            self._here(number)  # not when a question wakes it: by then the caller may have gone
            if number not in self._agreed:
                self._agreed.add(number)
                self._turn.notify_all()
            while True:
                if self.over:
                    if self._speaks[number] < PROTOCOL:  # it does not say goodbye when it is told
                        self.farewell.left(name)
                    raise self._ending(self.over)
                for now in self._open.values():
                    if number in now.missing:
                        self._tally["bytes_out"] += now.questions[number].header.size
                        return now.questions[number]
                left = until - time.monotonic()
                if left <= 0 or not self._news.wait(left):
                    return None

    def answer(self, name: str, header: Header, body: IO[bytes]) -> bytes:
        number = self._number(name)
        with self._desk:
            question, verdict, reason = self._decide(name, number, header, body)
        with self._turn:
            self._here(number)
            self._tally.update({verdict: 1, "bytes_in": header.size})
            self._unwritten = ""
            if verdict in ("accepted", "rejected", "again") and question in self._open:
                self._open[question].done.add(number)
                if verdict == "rejected":
                    self._open[question].refused.add(number)
            self._turn.notify_all()
        return write_envelope(Receipt(verdict in ("accepted", "again"), reason), self._speaks[number])

    def here(self, name: str) -> None:
        if name in self._numbers:
            self._here(self._numbers[name])

    def goodbye(self, name: str, said: bytes = b"") -> None:
        try:
            why = read_envelope(Goodbye, said) if said else Goodbye()
        except Fault as fault:
            raise Refused(str(fault)) from None
        number = self._members.get(name, -1)
        with self._turn:
            self._seen.pop(number, None)
            self._agreed.discard(number)
            self._turn.notify_all()
        self.farewell.left(name)
        if self.over:
            return
        if why.reason:
            self._refuses(name, number, why.reason)
        else:
            self._journal.note(Note("left", {"party": name}))

    def _refuses(self, name: str, number: int, why: str, **more: object) -> None:
        """Write down that a party does not take part, by its own policy; it is not there until it says hello again."""
        with self._turn:
            self._refusing[number] = why
            self._turn.notify_all()
        self._journal.note(Note("refused", {"party": name, "why": why, **more}))

    def unwritten(self, why: str) -> None:
        """Let status and monitors know that answers cannot be stored; whoever sends one tries again."""
        with self._turn:
            self._unwritten = why

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            raise HelloFirst
        return self._numbers[name]

    def _here(self, number: int) -> None:
        self._seen[number] = self._clock()

    def _decide(self, name: str, number: int, header: Header, body: IO[bytes]) -> tuple[int, str, str]:
        """Check an answer against what the job says it looks like; only what is right is ever kept."""
        question = -1
        try:
            head = read_envelope(AnswerHead, header.envelope)
            with self._turn:
                now = self._open.get(head.number)
            if head.run != self.run or now is None or number not in now.questions:
                return question, "late", "the question was closed before this answer came"
            question = now.number
            if head.declined:
                self._store.reject(question, number, head.declined)
                if head.code == NOT_ALLOWED:
                    self._refuses(name, number, head.declined, asked=now.what)
                else:
                    said = {"why": head.declined, "code": head.code}
                    self._journal.note(Note("declined", {"party": name, "asked": now.what, **said}))
                return question, "rejected", ""
            asked = self._questions[now.what]
            if header.size > (most := travels(asked).max_bytes):
                raise Fault("size", f"{header.size} bytes: an answer to {now.what!r} has {most}")
            data = body.read()
            tree = read_answer(asked, data)
            if not np.all(tree.get("finite", True)):
                raise Fault("not finite", "the party itself says that its numbers were not finite")
            self._check_weight(now.what, number, tree)
        except Fault as fault:
            question = self._asked_of(number) if question < 0 else question
            self._store.reject(question, number, str(fault))
            self._journal.note(Note("rejected", {"party": name, "reason": fault.reason, "why": str(fault)}))
            return question, "rejected", str(fault)
        verdict = self._store.accept(question, number, header.sha256.hex(), data)
        why = "" if verdict in ("accepted", "again") else f"this answer counts no more: it is {verdict}"
        return question, verdict, why

    def _check_weight(self, what: str, number: int, tree: Tree) -> None:
        """Refuse a weight that the party's declared number of samples does not give."""
        if what not in self._weights:
            return
        said, samples = float(tree["vector"][0, -1]), self._samples[number]
        if said > (most := self._weights[what](samples)) * (1 + 1e-5):
            raise Fault("weight", f"a weight of {said:g}: with the {samples:,} samples it declared it has {most:g}")

    def _asked_of(self, number: int) -> int:
        """What a party was asked whose answer does not even say what it answers."""
        with self._turn:
            return next((now.number for now in self._open.values() if number in now.missing), -1)

    # --- the program's effects, from one thread ---

    def note(self, note: Note) -> None:
        facts = dict(note.facts)
        if note.what == "rejected":  # a program knows parties by their numbers, people know them by their names
            number = facts.pop("number")
            facts = {"party": self._name(number), **facts}
        missing = facts.get("missing")
        if isinstance(missing, list):
            facts["missing"] = ", ".join(map(self._name, missing))
        self._journal.note(Note(note.what, facts))

    def _name(self, number: object) -> str:
        return next((name for name, n in self._members.items() if n == number), str(number))

    def checkpoint(self, memory: Tree) -> None:
        self._journal.checkpoint(memory)

    def settle(self, used: Array) -> None:
        self._used = used

    def declare(self, questions: Mapping[str, Question]) -> None:
        """Let more be asked, that was not known when parties came: what a role answers depends on what all bring."""
        self._questions |= questions

    def renew(self, questions: Mapping[str, Question]) -> None:
        """Ask this of the parties that there are now."""
        with self._turn:
            self.renewed = False
            self._questions |= questions
            self._told = {name: travels(question) for name, question in questions.items()}
        self.allow(Limits.of(len(self._members), self._told.values()))

    def online(self) -> Cohort:
        """Numbers of the parties that have agreed to the job and gave a sign of life lately."""
        with self._turn:
            there = (n for n in self._seen if self._alive(n) and n in self._agreed and n not in self._refusing)
            return np.array(sorted(there), np.int64)

    def members(self) -> list[int]:
        """Numbers of all who may come."""
        return sorted(number for name, number in self._members.items() if name in self._enrolled)

    def _alive(self, number: int) -> bool:
        return self._clock() - self._seen.get(number, -np.inf) <= self._times.lull

    def require(self, quorum: Quorum, phases: Collection[str]) -> None:
        """Wait for the answers of a quorum to all questions of these phases, and begin no round without it."""
        self._quorum, self._phases = quorum, frozenset(phases)

    def wait_for(self, parties: int, within: float, named: Collection[int] = ()) -> None:
        """Wait until this many parties, and those named among them, are there; end the run if they do not come.

        It also ends when the roster has changed (`renewed`): then others may be waited for.
        """
        quorum = Quorum(max(parties, self._quorum.min_parties), self._quorum.required | {*named})
        with self._turn, self._awaiting(quorum, within) as look:
            while True:
                if self._live:
                    self._renew()
                if self.renewed or quorum.met(there := self.online().tolist()):
                    return
                look(there)
                self._turn.wait(0.2)

    @contextmanager
    def _awaiting(self, quorum: Quorum, within: float) -> Iterator[Callable[[Collection[int]], None]]:
        """Say that the run waits, and for whom; who looks at those who are there is told when patience ends."""
        began = None

        def look(there: Collection[int]) -> None:
            nonlocal began
            awaited = [self._name(number) for number in sorted(quorum.required - set(there))]
            if began is None:
                began = self._clock()
                if self._begun_asking:
                    named = {"missing": ", ".join(awaited)} if awaited else {}
                    self._journal.note(Note("waiting", {"there": len(there), "needed": quorum.min_parties, **named}))
            self._needed, self._awaited = quorum.min_parties, awaited
            if self._clock() - began > within:
                raise NobodyThere(self._given_up(quorum, there, within))

        try:
            yield look
        finally:
            self._needed, self._awaited = 0, []

    def _given_up(self, quorum: Quorum, there: Collection[int], within: float) -> str:
        short = len(there) < quorum.min_parties
        names = ", ".join(map(self._name, sorted(quorum.required)))
        who = f"{len(there)} of {quorum.min_parties} parties" if short else f"not all of {names}"
        refused = [f"{self._name(number)} refuses: {why}" for number, why in sorted(self._refusing.items())]
        return (
            f"{who} came within {within:g} s{''.join(f'; {one}' for one in refused)}: start them (atoll join) and "
            "serve again; no round that was done is lost"
        )

    def ask(self, ask: Ask) -> Replies:
        began = time.perf_counter()
        if ask.what in self._local.handlers and self._local.handlers[ask.what].split == "test":
            return self._ask_here(ask, began)
        within = self._times.answer if ask.within is None else ask.within
        return self._gathered(ask, self._put(ask, within), within, began)

    def together(self, asks: tuple[Ask, ...]) -> tuple[Replies, ...]:
        """Put all questions, each to parties of its own, then wait for the answers to each."""
        began = time.perf_counter()
        within = [self._times.answer if ask.within is None else ask.within for ask in asks]
        put = [self._put(ask, seconds) for ask, seconds in zip(asks, within, strict=True)]
        return tuple(self._gathered(*each, began) for each in zip(asks, put, within, strict=True))

    def _gathered(self, ask: Ask, asked: _Asked, within: float, began: float) -> Replies:
        """Wait for the answers to a question, close it and read them; one that the disk has changed comes again."""
        lost = 0
        while True:
            ready, over, late = self._close(ask, asked, within)
            try:
                replies = self._collect(ask, ready, asked, began, 0 if ask.max_staleness is None else late)
            except LostAnswer as answer:
                lost += 1
                if lost == TRIES:
                    raise Damaged(
                        f"{answer}, as {TRIES - 1} others of this round were: see to this disk, then serve again"
                    ) from None
                self._again(answer, ready, over)
                continue
            for now in over:
                self._store.forget(now.number)
            return replies

    def _close(self, ask: Ask, asked: _Asked, within: float) -> tuple[dict[_Key, set[int]], list[AskedQuestion], int]:
        """Wait for answers; say which are ready, which questions are over with them, and how many never came."""
        with self._turn:
            self._wait(ask, asked, within)
            ready = self._taken(ask)
            # Where nothing may come late, or all was taken, the question is over; else the rest comes with a later ask.
            over = [now for now in self._open.values() if now.what == ask.what and now.ends(ask)]
            for now in over:
                del self._open[now.number]
            late = sum(len(now.questions.keys() - now.taken) for now in over)
        for now in over:
            self._store.close_question(now.number)
        return ready, over, late

    def _again(self, lost: LostAnswer, ready: Mapping[_Key, set[int]], over: Collection[AskedQuestion]) -> None:
        """Take an answer for one that never came: its party, which is asked the same once more, still has the bytes."""
        why = f"{lost}; {self._name(lost.party)} is asked for it again"
        self._journal.note(Note("damaged", {"why": why}))
        self._store.reopen([now.number for now in over], lost.question, lost.party)
        with self._turn:
            self._open |= {now.number: now for now in over}
            for (number, _), parties in ready.items():
                self._open[number].taken -= parties
            self._open[lost.question].done.discard(lost.party)
            self._news.notify_all()

    def _put(self, ask: Ask, within: float) -> _Asked:
        """Open the question; while answers may come late, parties that are still at work are asked nothing more."""
        busy = {p for now in self._open.values() for p in now.questions if p not in now.taken}
        free = [int(p) for p in ask.to if int(p) not in busy]
        with self._turn:  # who is gone is not at work
            at_work = sum(self._alive(p) for p in busy)
        asked = free if ask.max_staleness is None else free[: max(len(ask.to) - at_work, 0)]
        if not asked:
            return _Asked()
        t = int(ask.body["t"])
        self._begun_asking = True
        number = self._store.open_question(self.run, ask.what, t, asked)  # how long it counts is decided here
        single = ask.each or self._used is not None or any(self._speaks.get(p, PROTOCOL) < PROTOCOL for p in asked)
        common = None if single else self._question(number, ask, ask.body, t, within)
        each = {p: {**ask.body, **ask.each.get(p, {})} for p in asked} if ask.each else dict.fromkeys(asked, ask.body)
        questions = {p: common or self._question(number, ask, each[p], t, within, p) for p in asked}
        with self._turn:
            self._open[number] = AskedQuestion(number, ask.what, t, questions, self._clock())
            self._news.notify_all()
        return _Asked(len(asked), sum(question.header.size for question in questions.values()))

    def _question(
        self, number: int, ask: Ask, tree: Tree, t: int, within: float, party: int | None = None
    ) -> QuestionPayload:
        body = write_tree(tree)
        used = -1 if self._used is None or party is None else int(self._used[party])
        header = header_of("question", f"{self.run}/{number}", body)
        head = QuestionHead(self.run, number, ask.what, t, within, header.size, header.sha256, used)
        sealed = write_envelope(head, None if party is None else self._speaks.get(party))
        return QuestionPayload(Header("question", header.id, header.size, header.sha256, sealed), body)

    def _wait(self, ask: Ask, asked: _Asked, within: float) -> None:
        """Wait for enough answers, for everybody who still gives a sign of life, or for the deadline.

        Without a quorum it goes on: who was away finds the same question when it is back.
        """
        sent = max((q.header.size for now in self._open.values() for q in now.questions.values()), default=0)
        # What the slowest line takes for a question and an answer is no delay of a party.
        until = self._clock() + within + self._times.moving(sent + travels(self._questions[ask.what]).max_bytes)
        goal = asked.parties if ask.goal is None else ask.goal
        quorum = self._quorum if ask.what.partition("/")[0] in self._phases else Quorum(0)
        with self._awaiting(quorum, self._times.patience) as look:
            while True:
                missing = {p for now in self._open.values() for p in now.missing if now.what == ask.what}
                ready = self._ready(ask).items()
                here = {party for (number, _), parties in ready for party in parties - self._open[number].refused}
                if len(here) >= goal and quorum.met(here):
                    return
                if not any(self._alive(p) for p in missing) or self._clock() > until:
                    # Nobody is waited for in vain, nor where those who are there can begin anew.
                    if quorum.met(here) or not quorum.met(here | missing) or quorum.met(self.online().tolist()):
                        return
                    look(here)
                self._turn.wait(0.2)

    def _ready(self, ask: Ask) -> dict[_Key, set[int]]:
        """Who has answered, by the question; what is older than may be is not among it."""
        oldest = int(ask.body["t"]) - (ask.max_staleness or 0)
        same = [now for now in self._open.values() if now.what == ask.what and now.t >= oldest]
        return {(now.number, now.t): now.done - now.taken for now in same}

    def _taken(self, ask: Ask) -> dict[_Key, set[int]]:
        """Take what is ready; where answers may come late only as many as are enough, the oldest first."""
        ready = self._ready(ask)
        left = None if ask.max_staleness is None else ask.goal
        for (number, _), parties in sorted(ready.items()):
            refused = self._open[number].refused
            good = sorted(parties - refused)[:left]
            left = None if left is None else left - len(good)
            parties.intersection_update(refused.union(good))
            self._open[number].taken |= parties
        return ready

    def _collect(self, ask: Ask, ready: Mapping[_Key, set[int]], asked: _Asked, began: float, stale: int) -> Replies:
        question, t = self._questions[ask.what], int(ask.body["t"])
        found: list[tuple[int, int, int, Answer]] = []
        refused = 0
        for (number, then), parties in ready.items():
            for answer in self._store.answers(number):
                if answer.party in parties:
                    refused += answer.verdict == "rejected"
                    found += [(answer.party, t - then, number, answer)] if answer.file else []
        found.sort(key=lambda entry: entry[:2])
        each, sums, came = collect(ask, question, [entry[1:] for entry in found])
        moved = {"bytes_up": came, "bytes_down": asked.bytes}
        seconds = time.perf_counter() - began
        facts: dict[str, float] = {"seconds": seconds, "elapsed": time.perf_counter() - self._began, **moved}
        lost = asked.parties - len(found) - refused if ask.max_staleness is None else 0
        counts = {"lost": lost, "rejected": refused, "stale": stale}
        facts |= {name: count for name, count in counts.items() if count}
        facts |= {} if ask.max_staleness is None else {"asked": asked.parties}
        return Replies(np.array([party for party, *_ in found], np.int64), each, sums, facts)

    def _ask_here(self, ask: Ask, began: float) -> Replies:
        """Evaluate on the server's own test data."""
        chunk = Chunk(ask.what, int(ask.body["t"]), np.asarray(ask.to), None, ask.fold)
        answer = self._local.answer(chunk, ask.body)
        seconds = time.perf_counter() - began
        facts = {"seconds": seconds, **answer.seconds, "elapsed": time.perf_counter() - self._began}
        return Replies(np.asarray(ask.to), answer.each, answer.sums, facts)

    def snapshot(self) -> Standing:
        """Say how it stands at this moment, for people and monitors: names and counts, nothing that was sent."""
        with self._turn:
            now, names = self._clock(), {number: name for name, number in self._numbers.items()}
            there = set(self.online().tolist())
            parties: dict[str, PartySeen] = {
                name: {"connected": n in there, "silent": now - self._seen[n] if n in self._seen else None}
                for n, name in sorted(names.items())
            }
            questions: list[OpenQuestion] = [
                {
                    "what": one.what, "round": one.t + 1, "seconds": now - one.opened, "asked": len(one.questions),
                    "late": [names.get(n, f"party {n}") for n in sorted(one.missing)],
                }
                for one in self._open.values()
            ]  # fmt: skip
            tally = dict(self._tally)
            return {"over": self.over, "untold": self.farewell.names, "needed": self._needed, "awaited": self._awaited,
                    "refused": {self._name(n): why for n, why in self._refusing.items()},
                    "unwritten": self._unwritten, "parties": parties, "questions": questions,
                    "bytes_in": tally.pop("bytes_in", 0), "bytes_out": tally.pop("bytes_out", 0),
                    "answers": tally}  # fmt: skip

    def end(self, why: str, *, failed: bool = False) -> None:
        """Tell everybody who still asks that it is over."""
        with self._turn:
            self.over, self._ending = why, RunFailed if failed else RunOver
            self._news.notify_all()


_Key = tuple[int, int]  # of a question: its number, its round


def _words(layout: Layout) -> str:
    if not layout.leaves:
        return "it is a program with roles; name a file and its id column in the policy's data, without `use`"
    return f"its samples must be {', '.join(f'{k} {leaf.dtype} {leaf.shape}' for k, leaf in layout.leaves.items())}"
