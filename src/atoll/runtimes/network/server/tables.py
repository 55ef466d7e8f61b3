"""What a server's store holds: its records, the states of a run, the tables behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from atoll.core.errors import AtollError

VERSION = 2
ATOLL = 0x41544F4C  # marks the file as ours

Verdict = Literal["accepted", "rejected", "again", "late", "closed", "foreign"]
RunState = Literal["created", "running", "resumable", "finished", "stopped", "failed"]
MOVES: dict[RunState, tuple[RunState, ...]] = {
    "created": ("running", "stopped", "failed"),
    "running": ("finished", "stopped", "failed"),
    "resumable": ("running", "stopped", "failed"),  # what a crash makes of running
    "finished": (),
    "stopped": (),
    "failed": ("running",),  # by serving it again
}

LAYOUT = f"""
CREATE TABLE members (
    party INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, key TEXT NOT NULL, listed INTEGER NOT NULL,
    samples INTEGER
) STRICT;
CREATE UNIQUE INDEX keys ON members (key) WHERE listed;
CREATE TABLE runs (
    run TEXT PRIMARY KEY, state TEXT NOT NULL CHECK (state IN ({", ".join(map(repr, MOVES))})), reason TEXT NOT NULL
) STRICT;
CREATE TABLE questions (
    question INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL REFERENCES runs, what TEXT NOT NULL,
    t INTEGER NOT NULL, within REAL, state TEXT NOT NULL CHECK (state IN ('open', 'closed', 'interrupted'))
) STRICT;
CREATE INDEX still_open ON questions (run) WHERE state = 'open';
CREATE TABLE asked (
    question INTEGER NOT NULL REFERENCES questions, party INTEGER NOT NULL REFERENCES members,
    PRIMARY KEY (question, party)
) STRICT, WITHOUT ROWID;
CREATE TABLE answers (
    question INTEGER NOT NULL, party INTEGER NOT NULL,
    verdict TEXT NOT NULL CHECK (verdict IN ('accepted', 'rejected')),
    reason TEXT NOT NULL, sha256 TEXT NOT NULL, file TEXT UNIQUE,
    PRIMARY KEY (question, party), FOREIGN KEY (question, party) REFERENCES asked
) STRICT, WITHOUT ROWID;
PRAGMA application_id = {ATOLL};
PRAGMA user_version = {VERSION};
"""


class BadStore(AtollError, ValueError):
    """A file that is not a store of this version; the sentence says what it is."""

    code = "bad_store"


class Stranger(AtollError, ValueError):
    """Somebody who is not in the roster, or has another key."""

    code = "stranger"


class Illegal(AtollError, ValueError):
    """A step that a run or a question in its state cannot take."""

    code = "illegal_step"


class MemberRow(NamedTuple):
    """A party as the server knows it."""

    number: int
    name: str
    key: str
    listed: bool
    samples: int | None


class QuestionRow(NamedTuple):
    """One question, and whom it was put to. Its number is never used again."""

    number: int
    run: str
    what: str
    t: int
    within: float | None
    state: Literal["open", "closed", "interrupted"]
    asked: tuple[int, ...]


class Answer(NamedTuple):
    """The one answer of a party that was decided on, and where its body is, if it was kept."""

    party: int
    verdict: Literal["accepted", "rejected"]
    reason: str
    sha256: str
    file: Path | None


class Found(NamedTuple):
    """What starting up has put right: runs to resume, questions cut short, files of answers that were deleted."""

    resumable: tuple[str, ...]
    interrupted: tuple[int, ...]
    swept: int
