"""The server's side of every question: who is there, what is asked, what came back. It runs no training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

import numpy as np

from atoll.core.effects import Ask, Cohort, Note, Replies
from atoll.core.tree import Array, Tree
from atoll.crypto.keys import Refused
from atoll.runtimes.network.calls import Times
from atoll.runtimes.network.message import (
    AnswerHead,
    Fault,
    Hello,
    Layout,
    QuestionHead,
    Receipt,
    Welcome,
    read_envelope,
    read_tree,
    write_envelope,
    write_tree,
)  # fmt: skip
from atoll.runtimes.network.parcel import Header, Question, header_of
from atoll.runtimes.network.store import Store
from atoll.runtimes.network.tables import Stranger
from atoll.runtimes.workers import Chunk, Worker


class NobodyThere(RuntimeError):
    """Too few parties came in the time given."""


class Journal(Protocol):
    """Where notes and kept memory go; see `atoll.journal`."""

    def note(self, note: Note) -> None: ...
    def keep(self, memory: Tree) -> None: ...


@dataclass
class _Open:
    """A question that parties may answer now."""

    number: int
    what: str
    asked: set[int]
    question: Question
    done: set[int] = field(default_factory=set)


class Hall:
    """Answers a program's questions by asking parties over the network, and serves those parties' calls.

    A bad answer is refused by name and reason and changes nothing; sums are added in the order of the parties'
    numbers, whoever came first.
    """

    def __init__(
        self,
        run: str,
        store: Store,
        journal: Journal,
        local: Worker,
        layouts: Mapping[str, Layout],
        *,
        data: Layout,
        job: str,
        manifest: bytes,
        key_of: Callable[[str], str],
        times: Times,
        deadline: float = 600.0,
        elapsed: float = 0.0,
    ) -> None:
        self._run, self._store, self._journal, self._local = run, store, journal, local
        self._layouts, self._data, self._job, self._manifest = layouts, data, job, manifest
        self._key_of, self._times, self._deadline = key_of, times, deadline
        self._began = time.perf_counter() - elapsed
        self._turn = threading.Condition()
        self._seen: dict[int, float] = {}
        self._numbers: dict[str, int] = {}
        self._open: _Open | None = None
        self.over = ""  # why there will be no further question

    # --- parties' calls, from many threads ---

    def hello(self, name: str, hello: bytes) -> bytes:
        try:
            said = read_envelope(Hello, hello)
        except Fault as fault:
            raise Refused(str(fault)) from None
        if said.data != self._data:
            raise Refused(f"{name} holds other data than the job is about: its samples must be {_words(self._data)}")
        try:
            number = self._store.join(name, self._key_of(name), said.samples)
        except Stranger as reason:
            raise Refused(str(reason)) from None
        with self._turn:
            new = name not in self._numbers
            self._numbers[name] = number
            self._here(number)
            self._turn.notify_all()
        if new:
            self._journal.note(Note("joined", {"party": name, "number": number, "samples": said.samples}))
        return write_envelope(Welcome(self._run, number, self._job, self._manifest, dict(self._layouts)))

    def next_question(self, name: str, wait: float) -> Question | None:
        number = self._number(name)
        until = time.monotonic() + wait
        with self._turn:
            while True:
                self._here(number)
                if self.over:
                    raise Refused(self.over)
                now = self._open
                if now and number in now.asked and number not in now.done:
                    return now.question
                left = until - time.monotonic()
                if left <= 0 or not self._turn.wait(left):
                    return None

    def answer(self, name: str, header: Header, body: IO[bytes]) -> bytes:
        number = self._number(name)
        verdict, reason = self._judge(name, number, header, body)
        with self._turn:
            self._here(number)
            if verdict in ("accepted", "rejected", "again") and self._open:
                self._open.done.add(number)
            self._turn.notify_all()
        return write_envelope(Receipt(verdict in ("accepted", "again"), reason))

    def goodbye(self, name: str) -> None:
        with self._turn:
            self._seen.pop(self._numbers.get(name, -1), None)
            self._turn.notify_all()
        self._journal.note(Note("left", {"party": name}))

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            raise Refused("say hello first: the server was started again")
        return self._numbers[name]

    def _here(self, number: int) -> None:
        self._seen[number] = time.monotonic()

    def _judge(self, name: str, number: int, header: Header, body: IO[bytes]) -> tuple[str, str]:
        """Check an answer against what the job says it looks like; only what is right is ever kept."""
        try:
            head = read_envelope(AnswerHead, header.envelope)
            now = self._open
            if head.run != self._run or now is None or head.number != now.number:
                return "late", "the question was closed before this answer came"
            layout = self._layouts[now.what]
            if header.size > layout.most_bytes:
                raise Fault("size", f"{header.size} bytes: an answer to {now.what!r} has {layout.most_bytes}")
            data = body.read()
            if not read_tree(data, layout.most_bytes, schema=layout)["finite"].all():
                raise Fault("not finite", "the party itself says that its numbers were not finite")
        except Fault as fault:
            if self._open:
                self._store.reject(self._open.number, number, str(fault))
            self._journal.note(Note("rejected", {"party": name, "reason": fault.reason, "why": str(fault)}))
            return "rejected", str(fault)
        verdict = self._store.accept(head.number, number, header.sha256.hex(), data)
        return verdict, "" if verdict in ("accepted", "again") else f"this answer counts no more: it is {verdict}"

    # --- the program's effects, from one thread ---

    def note(self, note: Note) -> None:
        self._journal.note(note)

    def keep(self, memory: Tree) -> None:
        self._journal.keep(memory)

    def online(self) -> Cohort:
        """Numbers of the parties that gave a sign of life lately."""
        with self._turn:
            return np.array(sorted(n for n in self._seen if self._alive(n)), np.int64)

    def _alive(self, number: int) -> bool:
        return time.monotonic() - self._seen.get(number, -np.inf) <= self._times.silence

    def wait_for(self, parties: int, within: float) -> None:
        """Wait until this many parties are there; end the run if they do not come."""
        until = time.monotonic() + within
        while (there := len(self.online())) < parties:
            if time.monotonic() > until:
                raise NobodyThere(
                    f"{there} of {parties} parties came within {within:g} s: start them (atoll join) and serve again; "
                    "no round that was done is lost"
                )
            with self._turn:
                self._turn.wait(0.2)

    def ask(self, ask: Ask) -> Replies:
        began = time.perf_counter()
        if self._local.handlers[ask.what].room == "test":
            return self._ask_here(ask, began)
        within = self._deadline if ask.within is None else ask.within
        who = {int(p) for p in ask.to}
        t = int(ask.body["t"])
        number = self._store.open_question(self._run, ask.what, t, who, within)
        body = write_tree(ask.body)
        header = header_of("question", f"{self._run}/{number}", body)
        head = QuestionHead(self._run, number, ask.what, t, within, header.size, header.sha256)
        question = Question(Header("question", header.id, header.size, header.sha256, write_envelope(head)), body)
        with self._turn:
            self._open = _Open(number, ask.what, who, question)
            self._turn.notify_all()
            self._wait(who, len(who) if ask.enough is None else ask.enough, within)
            self._open = None
        self._store.close_question(number)
        replies = self._collect(number, ask, who, began)
        self._store.forget(number)
        return replies

    def _wait(self, who: set[int], enough: int, within: float) -> None:
        """Wait for enough answers, for everybody who still gives a sign of life, or for the deadline."""
        until = time.monotonic() + within
        while True:
            assert self._open
            left = who - self._open.done
            if len(self._open.done) >= enough or not any(self._alive(p) for p in left) or time.monotonic() > until:
                return
            self._turn.wait(0.2)

    def _collect(self, number: int, ask: Ask, who: set[int], began: float) -> Replies:
        layout = self._layouts[ask.what]
        parties: list[int] = []
        sums: dict[str, Array] = {}
        each: dict[str, list[Array]] = {}
        refused = {a.party: a.reason for a in self._store.answers(number) if a.verdict == "rejected"}
        for answer in self._store.answers(number):
            if answer.verdict != "accepted" or answer.file is None:
                continue
            tree = read_tree(answer.file.read_bytes(), layout.most_bytes, schema=layout)
            parties.append(answer.party)
            for name, leaf in tree.items():
                row = np.asarray(leaf)
                if name not in ask.fold:
                    each.setdefault(name, []).append(row)
                elif name in sums:
                    sums[name] += row[0]
                else:
                    sums[name] = row[0].copy()
        seconds = time.perf_counter() - began
        facts: dict[str, Any] = {"seconds": seconds, "elapsed": time.perf_counter() - self._began}
        lost = len(who) - len(parties) - len(refused)
        facts |= ({"lost": lost} if lost else {}) | ({"rejected": len(refused)} if refused else {})
        return Replies(np.array(parties, np.int64), {n: np.concatenate(v) for n, v in each.items()}, sums, facts)

    def _ask_here(self, ask: Ask, began: float) -> Replies:
        """Judge on the server's own test data."""
        chunk = Chunk(ask.what, int(ask.body["t"]), np.asarray(ask.to), {}, ask.fold)
        answer = self._local.answer(chunk, ask.body)
        seconds = time.perf_counter() - began
        facts = {"seconds": seconds, **answer.seconds, "elapsed": time.perf_counter() - self._began}
        return Replies(np.asarray(ask.to), answer.each, answer.sums, facts)

    def end(self, why: str) -> None:
        """Tell everybody who still asks that it is over."""
        with self._turn:
            self.over = why
            self._turn.notify_all()


def _words(layout: Layout) -> str:
    return ", ".join(f"{path} {leaf.dtype} {leaf.shape}" for path, leaf in layout.leaves.items())
