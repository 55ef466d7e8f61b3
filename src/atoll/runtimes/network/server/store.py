"""What a server must not forget: who its parties are, what it asked, which answers count.

Facts are in SQLite, bodies in files beside. Opening is starting up: what a crash has left open is closed, and only one
process has a store open.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import BinaryIO, Self

from atoll.core.errors import AtollError, Unwritable
from atoll.journal.sealed import Damaged
from atoll.runtimes.network.server.disk import hold, write_body
from atoll.runtimes.network.server.tables import (
    ATOLL,
    LAYOUT,
    MOVES,
    VERSION,
    Answer,
    BadStore,
    Found,
    Illegal,
    MemberRow,
    QuestionRow,
    RunState,
    Stranger,
    Verdict,
)

_REASON = 1000  # characters
_MOST = 2**63 - 1  # SQLite's largest integer
_FAILS = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_BUSY,
}
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Store:
    """The server's memory in a folder. All of it may be called from any thread.

    `clock` measures durations: a deadline is so many seconds of this process, and questions do not outlive it.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self.bodies = folder / "server.sqlite", folder / "answers"
        self._clock, self._lock, self._until = clock, threading.RLock(), dict[int, float]()
        self._db: sqlite3.Connection | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.bodies.mkdir(exist_ok=True, mode=0o700)
            self._held = os.open(folder / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unwritable(f"cannot write to {folder}: {error.strerror}; choose another folder") from None
        try:
            hold(self._held, self.path)
            self._open()
            self.found = self._start()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        with self._guard():
            os.close(
                os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            )  # SQLite makes the others like it
            # Transactions begin where this file says so, not where the library guesses.
            self._db = db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            (ours,) = db.execute("PRAGMA application_id").fetchone()
            (version,) = db.execute("PRAGMA user_version").fetchone()
            (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if tables and (ours, version) != (ATOLL, VERSION):
                what = f"a store of version {version}, and this is {VERSION}" if ours == ATOLL else "another program's"
                raise BadStore(f"{self.path} is {what}: use the atoll that made it, or another folder")
            if (found := db.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
                raise Damaged(f"{self.path} is damaged: {found}")
            (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise Unwritable(f"{self.path}: this disk cannot hold a store safely; use a folder on a local disk")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA foreign_keys = ON")
        if not tables:
            with self._write() as db:
                for statement in LAYOUT.split(";\n"):
                    db.execute(statement)

    def _start(self) -> Found:
        """Put right what a crash has left: runs can be resumed, nothing is open, no answer is on the disk.

        Questions do not outlive their server: whoever is asked again sends again.
        """
        with self._write() as db:
            cut = db.execute("SELECT question FROM questions WHERE state = 'open' ORDER BY question").fetchall()
            db.execute("UPDATE questions SET state = 'interrupted' WHERE state = 'open'")
            db.execute("UPDATE runs SET state = 'resumable' WHERE state = 'running'")
            runs = db.execute("SELECT run FROM runs WHERE state = 'resumable' ORDER BY run").fetchall()
            db.execute("UPDATE answers SET file = NULL WHERE file IS NOT NULL")
        left = [path for path in self.bodies.iterdir() if not path.is_dir()]
        with self._guard():
            for path in left:
                path.unlink()
        return Found(tuple(r for (r,) in runs), tuple(q for (q,) in cut), len(left))

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Say in a sentence that a disk is full or a file damaged."""
        try:
            yield
        except AtollError:
            raise
        except OSError as error:
            raise self._unwritable(error.strerror) from None
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            match error:
                case sqlite3.DatabaseError(sqlite_errorcode=code) if code & 0xFF in _FAILS:
                    raise self._unwritable(str(error)) from None
                case sqlite3.IntegrityError() | sqlite3.ProgrammingError():  # a mistake of ours
                    raise
            raise Damaged(f"{self.path} is damaged or not a store: {error}") from None

    def _unwritable(self, why: str | None) -> Unwritable:
        remedy = "free some space, then start the server again: what was committed is kept"
        return Unwritable(f"cannot write to {self.path.parent}: {why}; {remedy}")

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """All of the block or nothing of it, on disk when it ends."""
        with self._lock, self._guard():
            db = self._connection()
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    with suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                raise

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._guard():
            yield self._connection()

    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise Illegal(f"{self.path} was closed: open the store again")
        return self._db

    # ---- members

    def enrol(
        self, roster: Sequence[tuple[str, str]], first: int = 0, numbers: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Take over the roster's (name, key) lines: new names get the next numbers, from `first` on, in its order.

        Who is known keeps the number, also with a new key; whose line is gone is refused until it is back. `numbers`
        are those that parties are known to have: a store that says otherwise is damaged.
        """
        for value, times in Counter(word for line in roster for word in line).items():
            if times > 1:
                raise ValueError(f"{value} is in the roster {times} times: a name and a key stand in one line only")
        with self._write() as db:
            db.execute("UPDATE members SET listed = 0")
            known = dict(db.execute("SELECT name, party FROM members"))
            owner = {number: name for name, number in numbers.items()}
            for name, party in known.items():
                if numbers.get(name, party) != party or owner.get(party, name) != name:
                    raise Damaged(f"{self.path} is damaged: it says that {name} has number {party}, which is not so")
            last = max([first - 1, *known.values(), *numbers.values()])
            for name, key in roster:
                done = db.execute("UPDATE members SET key = ?, listed = 1 WHERE name = ?", (key, name))
                if not done.rowcount:
                    last += name not in numbers
                    db.execute("INSERT INTO members VALUES (?, ?, ?, 1, NULL)", (numbers.get(name, last), name, key))

    def join(self, name: str, key: str, samples: int) -> int:
        """Return the number of a party: the same for the same name, whenever it comes."""
        if isinstance(samples, bool) or not isinstance(samples, int) or not 0 <= samples <= _MOST:
            raise ValueError(f"samples={samples!r} of {name}: a party has a whole number of samples, from 0")
        with self._read() as db:
            row = db.execute("SELECT party, key, samples FROM members WHERE name = ? AND listed", (name,)).fetchone()
        if row is None:
            raise Stranger(f"{name} is not in the roster: its line has to be added at the server")
        if row[1] != key:
            raise Stranger(f"{name} has another key in the roster: its line has to be changed at the server")
        if row[2] != samples:  # who comes back, also with a thousand others, waits for no disk
            with self._write() as db:
                db.execute("UPDATE members SET samples = ? WHERE party = ?", (samples, row[0]))
        return int(row[0])

    def members(self) -> tuple[MemberRow, ...]:
        """All parties by their numbers, also those whose line is gone."""
        with self._read() as db:
            rows = db.execute("SELECT * FROM members ORDER BY party").fetchall()
        return tuple(MemberRow._make((*row[:3], bool(row[3]), *row[4:])) for row in rows)

    # ---- runs

    def create(self, run: str) -> None:
        """Begin to remember a run."""
        with self._write() as db:
            if db.execute("SELECT 1 FROM runs WHERE run = ?", (run,)).fetchone():
                raise Illegal(f"run {run} exists already: resume it, or take another name")
            db.execute("INSERT INTO runs VALUES (?, 'created', '')", (run,))

    def state(self, run: str) -> tuple[RunState, str]:
        """The state of a run, and why it is in it."""
        with self._read() as db:
            row = db.execute("SELECT state, reason FROM runs WHERE run = ?", (run,)).fetchone()
        if row is None:
            raise Illegal(f"there is no run {run} here: create it first")
        return row

    def move(self, run: str, to: RunState, reason: str = "") -> None:
        """Take a run to another state. With its end its questions end."""
        with self._write() as db:
            state, _ = self.state(run)
            if to not in MOVES[state]:
                can = " or ".join(MOVES[state]) or "nothing else"
                raise Illegal(f"run {run} is {state} and cannot become {to}: it can become {can}")
            db.execute("UPDATE runs SET state = ?, reason = ? WHERE run = ?", (to, reason, run))
            db.execute("UPDATE questions SET state = 'closed' WHERE run = ? AND state = 'open'", (run,))

    # ---- questions and answers

    def open_question(self, run: str, what: str, t: int, asked: Iterable[int], within: float | None = None) -> int:
        """Remember a question before it is put; answers count for `within` seconds, or until it is closed."""
        parties = sorted({int(party) for party in asked})
        if within is not None and not within > 0:
            raise ValueError(f"within={within}: a deadline is some seconds away, above 0")
        with self._write() as db:
            state, _ = self.state(run)
            if state != "running":
                raise Illegal(f"run {run} is {state}: only a run that is running asks questions")
            members = {n for (n,) in db.execute("SELECT party FROM members")}
            for party in parties:
                if party not in members:
                    raise ValueError(f"party {party} is no member: there are {len(members)}, enrol it first")
            row = (run, what, int(t), within)
            done = db.execute("INSERT INTO questions (run, what, t, within, state) VALUES (?, ?, ?, ?, 'open')", row)
            number = int(done.lastrowid or 0)
            db.executemany("INSERT INTO asked VALUES (?, ?)", ((number, party) for party in parties))
            if within is not None:
                self._until[number] = self._clock() + within
        return number

    def question(self, number: int) -> QuestionRow:
        """Recall a question."""
        with self._read() as db:
            row = db.execute("SELECT * FROM questions WHERE question = ?", (_known(number),)).fetchone()
            asked = db.execute(
                "SELECT party FROM asked WHERE question = ? ORDER BY party", (_known(number),)
            ).fetchall()
        if row is None:
            raise Illegal(f"there is no question {number} here")
        return QuestionRow._make((*row, tuple(party for (party,) in asked)))

    def accept(self, question: int, party: int, digest: str, body: bytes | BinaryIO | None = None) -> Verdict:
        """Count an answer, at most one of a party, whatever is sent twice, late or at once; the first one stands.

        The body, if it is to be kept, is on disk under its final name before the answer counts.
        """
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"sha256={digest[:70]!r} of party {party}: a digest is 64 hexadecimal digits")
        question, party = _known(question), _known(party)
        if body is None:
            return self._decide(question, party, "accepted", "", digest, None)
        with self._read() as db:  # nothing is written for an answer that cannot count
            early = self._standing(db, question, party)
        if early:
            return early
        # Everybody who tries has a file of his own, so that who loses a race deletes only that.
        file = self.bodies / f"{question:08d}-{party}-{secrets.token_hex(8)}"
        with self._guard():
            write_body(file, body, digest)
        # Should the disk fail here, nobody knows whether the row is there: the file stays, and the next start decides.
        verdict = self._decide(question, party, "accepted", "", digest, file.name)
        if verdict != "accepted":
            file.unlink()
        return verdict

    def reject(self, question: int, party: int, reason: str, digest: str = "") -> Verdict:
        """Refuse an answer for good, with a reason; one that was accepted before stands."""
        return self._decide(_known(question), _known(party), "rejected", reason, digest, None)

    def _decide(
        self, question: int, party: int, verdict: Verdict, reason: str, digest: str, file: str | None
    ) -> Verdict:
        with self._write() as db:
            standing = self._standing(db, question, party)
            if standing:
                return standing
            row = (question, party, verdict, reason[:_REASON], digest, file)
            db.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?)", row)
        return verdict

    def _standing(self, db: sqlite3.Connection, question: int, party: int) -> Verdict | None:
        """Why an answer cannot count now, or None."""
        row = db.execute(
            "SELECT state, verdict FROM asked JOIN questions USING (question) JOIN members USING (party) "
            "LEFT JOIN answers USING (question, party) WHERE question = ? AND party = ? AND listed",
            (question, party),
        ).fetchone()
        if row is None:
            return "foreign"
        state, answered = row
        if answered:
            return "again"
        if state != "open":
            return "closed"
        return "late" if self._clock() > self._until.get(question, float("inf")) else None

    def answers(self, question: int) -> tuple[Answer, ...]:
        """All answers with a verdict, by the parties' numbers: sums in this order do not depend on who came first."""
        with self._read() as db:
            query = "SELECT party, verdict, reason, sha256, file FROM answers WHERE question = ? ORDER BY party"
            rows = db.execute(query, (_known(question),)).fetchall()
        return tuple(Answer._make((*row[:-1], self.bodies / row[-1] if row[-1] else None)) for row in rows)

    def waiting(self, question: int) -> tuple[int, ...]:
        """Who was asked, is still in the roster and has not answered; nobody once the question is closed."""
        with self._read() as db:
            rows = db.execute(
                "SELECT party FROM asked JOIN questions USING (question) JOIN members USING (party) "
                "LEFT JOIN answers USING (question, party) WHERE question = ? AND state = 'open' AND listed "
                "AND verdict IS NULL ORDER BY party",
                (_known(question),),
            ).fetchall()
        return tuple(party for (party,) in rows)

    def close_question(self, question: int) -> None:
        """Let no further answer count. What is closed stays closed."""
        with self._write() as db:
            db.execute(
                "UPDATE questions SET state = 'closed' WHERE question = ? AND state = 'open'", (_known(question),)
            )
        self._until.pop(question, None)

    def reopen(self, questions: Iterable[int], lost: int, party: int) -> None:
        """Let answers to these questions count again; one, whose body was lost, is as if it never came."""
        files = [answer.file for answer in self.answers(lost) if answer.file and answer.party == party]
        with self._write() as db:
            db.executemany("UPDATE questions SET state = 'open' WHERE question = ?", [(q,) for q in questions])
            db.execute("DELETE FROM answers WHERE question = ? AND party = ?", (lost, party))
        with self._guard():
            for file in files:
                file.unlink(missing_ok=True)

    def forget(self, question: int) -> None:
        """Delete the bodies of a question, whose sum is kept elsewhere by now; who answered is remembered."""
        files = [answer.file for answer in self.answers(question) if answer.file]
        with self._write() as db:
            db.execute("UPDATE answers SET file = NULL WHERE question = ?", (_known(question),))
        with self._guard():
            for file in files:
                file.unlink(missing_ok=True)

    # ----

    def close(self) -> None:
        """Let go of the folder."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None
            if self._held >= 0:
                os.close(self._held)
                self._held = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def opened(folder: Path, roster: Mapping[str, str], numbers: Mapping[str, int]) -> tuple[Store, tuple[str, ...]]:
    """Open the store of a run with all who may come, and say whether it was damaged.

    A damaged one is moved aside: questions do not outlive their server, and `numbers` are what parties are known by.
    """
    try:
        return _with(folder, roster, numbers), ()
    except Damaged as reason:
        for path in folder.glob("server.sqlite*"):
            if path.suffix != ".damaged":
                path.replace(path.with_name(f"{path.name}.damaged"))
        said = f"{reason}; it was moved aside, and who has which number is taken from the facts"
        return _with(folder, roster, numbers), (said,)


def _with(folder: Path, roster: Mapping[str, str], numbers: Mapping[str, int]) -> Store:
    store = Store(folder)
    try:
        store.enrol([*roster.items()], numbers=numbers)
    except BaseException:
        store.close()
        raise
    return store


def _known(number: int) -> int:
    """A number as SQLite takes it; one from a peer may be of any size, and then it is nobody's."""
    return int(number) if 0 <= number <= _MOST else -1
