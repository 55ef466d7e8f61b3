"""A party's record of what left its machine: lines that hold each other's hashes, on disk before anything is sent.

Whoever may write the file may also rewrite its end; `Audit.head` is the hash to keep elsewhere against that.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict

from atoll.core.disk import sync_folder
from atoll.core.errors import AtollError, Unwritable
from atoll.runtimes.network.server.disk import hold_soon

START = "0" * 64  # what stands for the line before the first
_OWN = frozenset({"n", "time", "before", "what", "self"})
_LEFT = "left"
# In lines of release 0.1, the questions whose answers hold the party's vector.
_CONTRIBUTES_0_1 = frozenset({"contribute", "secure.masked", "light.upload", "encrypted.seal"})


class Broken(AtollError, ValueError):
    """An audit log that is not what was written; `line` counts from 1."""

    code = "audit_broken"

    def __init__(self, line: int, why: str, path: Path | str) -> None:
        super().__init__(f"{path}, line {line}: {why}; keep the file as evidence and start a new one")
        self.line, self.why = line, why


class AuditLine(TypedDict, total=False):
    """What lines say that are read again; the first four are in every line."""

    n: int
    time: str
    before: str
    what: str
    job: str
    server: str
    why: str
    asked: str
    sha256: str
    bytes: int
    brought: int
    contributes: bool
    epsilon: float
    dataset: str


class AuditLog:
    """An append-only log, each line with the hash of the line before and one of itself. One process at a time.

    Opening checks all of it. A last line that a crash has torn was never acknowledged: it is cut off, and a line says
    so. `clock` tells the time of day, with its zone.
    """

    def __init__(self, path: Path, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.path, self._clock, self._lock = path, clock, threading.Lock()
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unwritable(f"cannot write {path}: {error.strerror}; choose another file for the audit") from None
        try:
            hold_soon(self._file, path.parent, "since a party joins a server only once")
            sync_folder(path.parent)
            self._n, self.head, self._size = 0, START, 0
            for raw, _ in _whole_lines(path):
                self._n, self.head, self._size = self._n + 1, sha256(raw).hexdigest(), self._size + len(raw) + 1
            self._mend()
        except BaseException:
            self.close()
            raise

    def _mend(self) -> None:
        """Cut off what follows the last whole line."""
        torn = os.fstat(self._file).st_size - self._size
        if torn:
            rest = os.pread(self._file, torn, self._size)
            os.ftruncate(self._file, self._size)
            self.append("cut", bytes=torn, sha256=sha256(rest).hexdigest())

    def append(self, what: str, /, **facts: object) -> str:
        """Write a line; when this returns it is on disk. Return its hash."""
        _check(facts)
        with self._lock:
            head = {"n": self._n + 1, "time": self._clock().isoformat(), "before": self.head, "what": what}
            text = json.dumps({**head, **facts}, allow_nan=False, separators=(",", ":"))
            body = text[:-1].encode()
            raw = body + _seal(body)
            self._write(raw + b"\n")
            self._n, self.head, self._size = self._n + 1, sha256(raw).hexdigest(), self._size + len(raw) + 1
            return self.head

    def left(
        self, *, job: str, question: int, asked: str, size: int, digest: str, epsilon: float | None = None,
        brought: int | None = None, contributes: bool = False, dataset: str | None = None,
    ) -> str:  # fmt: skip
        """Say what is about to leave: the answer to which question, how large, its hash, the job's ε with it; how
        many bytes the question brought, and in which data set's account it is booked.
        """
        more: dict[str, object] = {} if brought is None else {"brought": int(brought)}
        more |= {} if dataset is None else {"dataset": dataset}
        more |= {} if epsilon is None else {"epsilon": float(epsilon)}
        return self.append(_LEFT, job=job, question=int(question), asked=asked, bytes=int(size), sha256=digest,
                           contributes=bool(contributes), **more)  # fmt: skip

    def unbooked(self) -> list[tuple[str, str, Counter[str], int]]:
        """Return what left before data sets had accounts, whose lines name none, and was not carried over since: by job
        and calendar month, answers by phase, and bytes both ways.

        By their bytes: what was sent twice shows nothing more, and the numbers of questions are the server's.
        """
        found: dict[tuple[str, str], tuple[set[tuple[str, str]], int]] = {}
        for _, line in _whole_lines(self.path):
            if line["what"] == "booked":
                found = {}
            elif "job" in line and "dataset" not in line and line["what"] in (_LEFT, "declined"):
                key = line["job"], f"{datetime.fromisoformat(line['time']).astimezone():%Y-%m}"
                answers, moved = found.get(key, (set(), 0))
                mine = {(line["asked"], line["sha256"])} if line["what"] == _LEFT and contributed(line) else set()
                found[key] = answers | mine, moved + line.get("bytes", 0) + line.get("brought", 0)
        return [(*key, Counter(phase_of(asked) for asked, _ in mine), moved) for key, (mine, moved) in found.items()]

    def _write(self, line: bytes) -> None:
        try:
            while line:  # a disk that gets full may take a part
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):  # then the next start cuts it off
                os.ftruncate(self._file, self._size)
            raise Unwritable(f"cannot write {self.path}: {error.strerror}; nothing leaves without a line in it: "
                             "free some space, then join again") from None  # fmt: skip

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def verify(path: Path) -> int:
    """Return how many lines there are, or raise Broken with the first that is not as it was written."""
    n = size = 0
    for raw, _ in _whole_lines(path):
        n, size = n + 1, size + len(raw) + 1
    if path.stat().st_size > size:
        raise Broken(n + 1, "the last line has no end, as after a crash or a cut", path)
    return n


def phase_of(what: str) -> str:
    """Return the phase of a question."""
    return what.rpartition("/")[0]


def contributed(line: AuditLine) -> bool:
    """Tell whether a line is about an answer that holds the party's vector; lines of release 0.1 are understood."""
    if "contributes" in line:
        return line["contributes"] is True
    return line.get("asked") in _CONTRIBUTES_0_1


def lines(path: Path) -> Iterator[AuditLine]:
    """Yield what every line says, as long as they are as they were written."""
    return (line for _, line in _whole_lines(path))


def _check(facts: Mapping[str, object]) -> None:
    taken = sorted(_OWN & facts.keys())
    if taken:
        raise ValueError(f"{taken[0]}: every line of an audit has this already, so call the fact something else")
    if "epsilon" in facts:
        value = facts["epsilon"]
        if not isinstance(value, float | int) or isinstance(value, bool) or not 0 <= value < math.inf:
            raise ValueError(f"epsilon={value!r}: what was spent is a finite number from 0; leave it out without noise")
        if not isinstance(facts.get("job"), str):
            raise ValueError(f"job={facts.get('job')!r}: an epsilon is spent by a job, so name it")


def _seal(body: bytes) -> bytes:
    """The end of a line: a hash of all before it, so that a change names its line even in the last one."""
    return b',"self":"' + sha256(body).hexdigest().encode() + b'"}'


_END = len(_seal(b""))


def _whole_lines(path: Path) -> Iterator[tuple[bytes, AuditLine]]:
    """Yield every line that has an end, and what it says, once it is known to be as it was written."""
    before = START
    with path.open("rb") as file:
        for n, ended in enumerate(file, 1):
            if not ended.endswith(b"\n"):
                return
            raw = ended[:-1]
            if _seal(raw[:-_END]) != raw[-_END:]:
                raise Broken(n, "it was changed after it was written", path)
            try:
                line: AuditLine = json.loads(raw)
                follows = line["before"] == before and line["n"] == n
            except (ValueError, KeyError, TypeError):
                raise Broken(n, "no audit writes such a line", path) from None
            if not follows:
                raise Broken(n, "it does not follow the line before: lines were taken out, put in or moved", path)
            before = sha256(raw).hexdigest()
            yield raw, line
