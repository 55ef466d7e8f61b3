"""One list of survivors for each sum: what a party has signed, and the vector that it gave.

The difference of two sums of one round over different parties is the vectors of a few. So a party signs one list for a
job, phase and round, and one for a job, phase and model, whichever session asks. The list is on disk before the
signature exists, and the vector before it leaves under a mask. Asked again, the party puts the same vector under new
masks: the same noise, and nothing new for anybody.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from atoll.core.disk import replace_file, sync_folder
from atoll.core.errors import Unwritable
from atoll.core.tree import Array
from atoll.crypto.keys import Abort, refuse_if

KEPT = 2  # vectors of a phase: a server starts again from its last checkpoint, or from the one before
_SEAL = 16  # digits of a line's hash


class SumKey(NamedTuple):
    """Which sum: of a job's phase, at a round, about a model, that is the hash of the question but for its round."""

    job: bytes
    phase: str
    t: int
    model: bytes


class _Line(msgspec.Struct, frozen=True):
    phase: str
    t: int
    model: bytes
    vector: str = ""  # its hash
    among: tuple[int, ...] = ()


@dataclass
class _Book:
    """What is known of one job."""

    rounds: dict[tuple[str, int], _Line] = field(default_factory=dict)
    models: dict[tuple[str, bytes], tuple[int, ...]] = field(default_factory=dict)
    vectors: dict[str, tuple[int, Array]] = field(default_factory=dict)  # without a folder: the last of each phase

    def add(self, line: _Line) -> None:
        self.rounds[line.phase, line.t] = line
        if line.among:
            self.models[line.phase, line.model] = line.among


class SignedLists:
    """A party's record of the lists that it has signed and of the vectors that it gave last.

    Args:
        folder: where it is written, one file a job; None for parties that do not outlive their process.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder, self._books = folder, dict[bytes, _Book]()

    def among(self, key: SumKey, cohort: Collection[int]) -> tuple[int, ...]:
        """Return the only list that may be signed in a sum of this cohort, empty where none was yet."""
        before = self._signed(key)
        away = sorted(set(before) - set(cohort))
        refuse_if(bool(away), f"round {key.t + 1}: this party has signed other survivors of a sum of this model: with "
                  f"{away[:5]}, who are not asked now", Abort)  # fmt: skip
        return before

    def sign(self, key: SumKey, among: tuple[int, ...]) -> None:
        """Note the list that is about to be signed; refuse a second one."""
        before, line = self._signed(key), self._line(key)
        refuse_if(before not in ((), among), f"round {key.t + 1}: this party has signed other survivors of a sum of "
                  "this model, and the difference of both sums would show single vectors", Abort)  # fmt: skip
        if line.among != among:
            self._write(key.job, msgspec.structs.replace(line, among=among))

    def vector(self, key: SumKey) -> Array | None:
        """Return the vector that was given to a sum of this round; None where none was."""
        line = self._line(key)
        if not line.vector:
            return None
        found = self._read(key)
        lost = found is None or _hash(found) != line.vector
        refuse_if(lost, f"round {key.t + 1}: this party gave its vector before and no longer has it: serve the run "
                  "from its newest checkpoint, or the job under another name", Abort)  # fmt: skip
        return found

    def keep(self, key: SumKey, x: Array) -> None:
        """Note the vector that is about to leave under a mask; those of earlier rounds are forgotten."""
        line = self._line(key)
        if line.vector:
            return
        self._store(key, x)
        self._write(key.job, msgspec.structs.replace(line, vector=_hash(x)))

    def _signed(self, key: SumKey) -> tuple[int, ...]:
        """Return the list of this round or model; refuse another question of the round."""
        book = self._book(key.job)
        line = book.rounds.get((key.phase, key.t))
        other = line is not None and line.model != key.model
        refuse_if(other, f"round {key.t + 1}: this party has answered another question of this round: "
                  "ask in the next", Abort)  # fmt: skip
        return (line.among if line else ()) or book.models.get((key.phase, key.model), ())

    def _line(self, key: SumKey) -> _Line:
        return self._book(key.job).rounds.get((key.phase, key.t)) or _Line(key.phase, key.t, key.model)

    def _book(self, job: bytes) -> _Book:
        if job not in self._books:
            book = _Book()
            for line in [] if self._folder is None else _lines(self._path(self._folder, job)):
                book.add(line)
            self._books[job] = book
        return self._books[job]

    def _write(self, job: bytes, line: _Line) -> None:
        if self._folder is not None:
            body = msgspec.json.encode(line)
            _append(self._path(self._folder, job), _seal(body) + b" " + body + b"\n")
        self._book(job).add(line)

    def _store(self, key: SumKey, x: Array) -> None:
        book = self._book(key.job)
        if self._folder is None:
            book.vectors[key.phase] = key.t, x
            return
        text = BytesIO()
        np.save(text, x, allow_pickle=False)
        replace_file(self._vector(self._folder, key), text.getvalue(), mode=0o600)
        before = sorted(t for phase, t in book.rounds if phase == key.phase and t != key.t)
        for t in before[-KEPT - 1 : 1 - KEPT]:  # earlier ones are gone
            self._vector(self._folder, key._replace(t=t)).unlink(missing_ok=True)

    def _read(self, key: SumKey) -> Array | None:
        if self._folder is None:
            t, x = self._book(key.job).vectors.get(key.phase, (-1, None))
            return x if t == key.t else None
        try:
            found: Array = np.load(self._vector(self._folder, key), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        return found

    @staticmethod
    def _path(folder: Path, job: bytes) -> Path:
        return folder / f"{job.hex()}.lists"

    @staticmethod
    def _vector(folder: Path, key: SumKey) -> Path:
        phase = sha256(key.phase.encode()).hexdigest()[:_SEAL]
        return folder / f"{key.job.hex()}.{phase}-{key.t}.vector"


def _hash(x: Array) -> str:
    return sha256(np.ascontiguousarray(x).data).hexdigest()


def _seal(body: bytes) -> bytes:
    return sha256(body).hexdigest()[:_SEAL].encode()


def _append(path: Path, text: bytes) -> None:
    """Write a line; when this returns it is on disk."""
    new = not path.exists()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    size = os.fstat(file).st_size
    try:
        while text:
            text = text[os.write(file, text) :]
        os.fsync(file)
    except OSError as error:
        os.ftruncate(file, size)
        raise Unwritable(f"cannot write {path}: {error.strerror}; nothing is signed without a line in it: free some "
                         "space, then join again") from None  # fmt: skip
    finally:
        os.close(file)
    if new:
        sync_folder(path.parent)


def _lines(path: Path) -> list[_Line]:
    """Read what was written. A last line without an end was cut off by a crash, before anything was signed for it."""
    raw = path.read_bytes() if path.exists() else b""
    whole = raw[: raw.rfind(b"\n") + 1]
    if len(whole) < len(raw):
        os.truncate(path, len(whole))
    found = []
    for n, line in enumerate(whole.splitlines(), 1):
        body = line[_SEAL + 1 :]
        damaged = line[:_SEAL] != _seal(body)
        refuse_if(damaged, f"{path.name}, line {n} is damaged: what this party has signed is not known, so it signs "
                  "nothing for this job; ask for the job under another name", Abort)  # fmt: skip
        found.append(msgspec.json.decode(body, type=_Line))
    return found
