"""What parties of a simulation remember: a memory-mapped arena per leaf, and an append-only log that rebuilds it.

Every party that ever answered has a slot; an arena holds one row per slot. A checkpoint appends the changed rows to a
log and stores a token: the number of the log, the end of its record and the record's checksum. A record names the
record before it, so a token names one chain of records, and bytes after its end (a torn record, or what a run did
before it was resumed from an older checkpoint) never matter. Nothing that was written is ever changed.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from atoll.core.disk import sync_folder
from atoll.core.errors import Unwritable
from atoll.core.tree import Array, Tree
from atoll.core.wire import Mismatch
from atoll.journal.sealed import Damaged
from atoll.runtimes.local.arena import Form, Ragged, Rows, extended, pieces

_CHUNK = 1 << 22  # bytes that are copied at a time
_SMALL = 1 << 23  # bytes; a log below this is not worth a new one
_MAGIC = b"ATM1"
_HEAD = struct.Struct("<4sQ")  # magic, bytes of the header that follows
_FOOT = struct.Struct("<QI")  # bytes of the whole record, CRC-32 of all of it up to here
_NAME = re.compile(r"memory-(\d+)\.log")

_Block = tuple[str, Array, Array]  # name of the leaf, which of the parties have it (indices), their rows


class Recalled(NamedTuple):
    """What some parties remember.

    Attributes:
        known: (n,) booleans: who remembers anything.
        leaves: By name, (n, *shape) rows, zeros where a party does not have the leaf. Where those who have it differ in
            shape or dtype: an object array of n arrays, None where a party does not have it. A leaf that nobody has is
            not there.
        present: By name, (n,) booleans: who has this leaf. It differs from `known` where parties remember different
            leaves.
    """

    known: Array
    leaves: Mapping[str, Array]
    present: Mapping[str, Array]


class PartyMemory:
    """The memory of all parties of a simulation. Its size depends on how many parties answered, not on how many exist.

    Args:
        folder: Where logs are written, and where the arenas take their disk space (in files without a name, which are
            gone with the process). Default: None, arenas in anonymous memory and no log.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._table = _Table(folder)
        self._tail: _Tail | None = None  # the last record of the current state, if all of it is in a log
        self._written: list[int] = []  # logs of the last two checkpoints that are known to be on disk; 0 is none

    def __len__(self) -> int:
        """Count the parties that remember something."""
        return int(np.count_nonzero(self._table.known))

    def recall(self, me: Array) -> Recalled:
        """Return copies of what these parties remember.

        Args:
            me: (n,) party numbers.
        """
        return self._table.take(_numbers(me))

    def remember(self, me: Array, leaves: Mapping[str, Any]) -> None:
        """Replace all that these parties remember.

        Args:
            me: (n,) party numbers, each once.
            leaves: By name, (n, *shape) rows of booleans or numbers; or a list or object array of n arrays whose shapes
                may differ, None for a party that does not have the leaf. A leaf that is not named is forgotten.
        """
        me = _numbers(me)
        if len(np.unique(me)) != len(me):
            raise Mismatch("a party stands twice among those that remember: name every party once")
        blocks = [block for name, leaf in leaves.items() for block in _blocks(name, leaf, len(me))]
        with _writing(self._folder):
            self._table.put(me, blocks)

    def save(self, t: int) -> Mapping[str, int]:
        """Append what changed since the last save to the log, and wait until it is on disk.

        A log that is larger than twice what parties remember is followed by a new one. Without a folder nothing is
        written.

        Args:
            t: The round; it is written into the record.

        Returns:
            A token to store in the checkpoint: a few integers. It is empty if nobody remembers anything.
        """
        table = self._table
        if self._folder is None or not len(self):
            table.changed[:] = False
            self._tail = None
            return {}
        if self._tail is None or table.changed.any():
            before, self._tail = self._tail, None  # after a failed write the next save starts a new log
            with _writing(self._folder):
                if before is None or before.path(self._folder).stat().st_size > max(_SMALL, 2 * table.bytes()):
                    number = max(_logs(self._folder), default=0) + 1
                    before, slots = _Tail(number, 0, 0), np.flatnonzero(table.known)
                else:
                    slots = np.flatnonzero(table.changed)
                self._tail = _append(self._folder, before, table, slots, t)
            table.changed[:] = False
        return self._tail._asdict()

    def restore(self, token: Mapping[str, Any]) -> None:
        """Rebuild the state of a save, whatever was done or written after it. If that fails, nothing changes.

        Args:
            token: What the save returned, its integers perhaps as arrays.
        """
        table, tail = _Table(self._folder), None
        if token:
            if self._folder is None:
                raise Damaged("a memory without a folder has no logs: give it the folder of the run")
            if set(token) != set(_Tail._fields):
                raise Damaged(
                    "the checkpoint holds party memory of another version of atoll: resume it with that version"
                )
            tail = _Tail(*(int(token[field]) for field in _Tail._fields))
            with _writing(self._folder):
                for me, blocks in _records(self._folder, tail):
                    table.put(me, blocks)
            table.changed[:] = False
        self._table, self._tail = table, tail
        self._written = [tail.log if tail else 0]

    def fits(self, checkpoint: Tree) -> None:
        """Rebuild the state of a checkpoint, if its log is whole."""
        self.restore(checkpoint.get("parties", {}))

    def prune(self, token: Mapping[str, Any]) -> None:
        """Delete the logs that are needed neither by this checkpoint nor by the one before it.

        Call it when the checkpoint that holds the token is on disk. Saves whose tokens were not stored do no harm:
        only checkpoints named here (and the restored one) count.

        Args:
            token: The token in that checkpoint.
        """
        self._written = [*self._written, int(token["log"]) if token else 0][-2:]
        if self._folder and len(self._written) == 2:
            for number, path in _logs(self._folder).items():
                # Later logs belong to saves whose checkpoints are perhaps still to come.
                if number not in self._written and number < self._written[-1]:
                    path.unlink(missing_ok=True)

    def close(self) -> None:
        """Give the arenas back. The logs stay."""
        self._table, self._tail = _Table(self._folder), None


class _Tail(NamedTuple):
    """Where a chain of records ends: the number of the log, the end of the last record, its checksum."""

    log: int
    bytes: int
    check: int

    def path(self, folder: Path) -> Path:
        return folder / f"memory-{self.log}.log"


class _Table:
    """Slots of parties, and an arena per leaf. Slot 0 belongs to nobody, and its rows are zeros."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._slots = np.zeros(0, np.int32)  # by party number; 0: it never answered
        self._used = 1
        self.party = np.zeros(1, np.int64)  # by slot, as are the next two
        self.known = np.zeros(1, bool)
        self.changed = np.zeros(1, bool)  # since the last save
        self.leaves: dict[str, Rows | Ragged] = {}

    def bytes(self) -> int:
        """Return how large a log of all that is remembered is, about."""
        return 8 * int(np.count_nonzero(self.known)) + sum(arena.bytes() for arena in self.leaves.values())

    def take(self, me: Array) -> Recalled:
        slots = self._find(me)
        known = self.known[slots]
        leaves, present = {}, {}
        for name in sorted(self.leaves) if known.any() else ():
            has = self.leaves[name].has[slots]
            if has.any():
                leaves[name], present[name] = self.leaves[name].take(slots, has), has
        return Recalled(known, leaves, present)

    def put(self, me: Array, blocks: Sequence[_Block]) -> None:
        """Replace all that these parties remember."""
        if blocks:
            self._admit(me)
        slots = self._find(me)
        me, slots = me[slots > 0], slots[slots > 0]  # without blocks, strangers stay strangers
        if not len(me):
            return
        for arena in self.leaves.values():
            arena.has[slots] = False
        self.known[slots] = False
        self.changed[slots] = True
        for name, where, rows in blocks:
            self._arena(name, (rows.dtype, rows.shape[1:])).put(slots[where], rows)
            self.known[slots[where]] = True
        named = {name for name, _, _ in blocks}
        for name in [n for n, arena in self.leaves.items() if n not in named and not arena.has.any()]:
            del self.leaves[name]

    def _arena(self, name: str, form: Form) -> Rows | Ragged:
        """Return an arena of this leaf that takes rows of this form. If it is a new one, the old rows move to it."""
        old = self.leaves.get(name)
        if old and old.takes(form):
            return old
        live = np.flatnonzero(old.has) if old else np.arange(0)
        kinds = list(old.alike(live)) if old else []
        new = Rows(self._folder, form) if all(kind == form for kind, _ in kinds) else Ragged(self._folder)
        new.extend(len(self.party))
        if old:
            for kind, where in kinds:
                for some in pieces(live[where], kind):
                    new.put(some, old.take(some))
        self.leaves[name] = new
        return new

    def _find(self, me: Array) -> Array:
        if not len(self._slots):
            return np.zeros(len(me), np.int32)
        inside = me < len(self._slots)
        return self._slots[me] if inside.all() else np.where(inside, self._slots[np.where(inside, me, 0)], 0)

    def _admit(self, me: Array) -> None:
        """Give a slot to every party that has none."""
        self._slots = extended(self._slots, int(me.max(initial=-1)) + 1)
        new = me[self._slots[me] == 0]
        slots = np.arange(self._used, self._used + len(new))
        self._used += len(new)
        self.party, self.known, self.changed = (
            extended(column, self._used) for column in (self.party, self.known, self.changed)
        )
        for arena in self.leaves.values():
            arena.extend(len(self.party))
        self._slots[new], self.party[slots] = slots, new


class _Leaf(msgspec.Struct, array_like=True):
    """What a record says of one block of rows: those of one leaf, of one form."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    rows: int


class _Header(msgspec.Struct, array_like=True):
    """What a record starts with. Then come party numbers, and for each leaf indices of its parties, and its rows."""

    t: int
    before: tuple[int, int]  # where the record before it ends, and its checksum; 0, 0 is the first
    parties: int
    leaves: list[_Leaf]


def _append(folder: Path, before: _Tail, table: _Table, slots: Array, t: int) -> _Tail:
    """Write what the parties of these slots remember as one record; return where it ends."""
    path, check = before.path(folder), 0
    with path.open("r+b" if before.bytes else "xb") as file:
        os.fchmod(file.fileno(), 0o600)
        start = file.seek(0, os.SEEK_END)  # a torn record may stand between
        for piece in _record(before, table, slots, t):
            check = zlib.crc32(piece, check)
            file.write(piece)
        check = zlib.crc32(foot := struct.pack("<Q", file.tell() - start + _FOOT.size), check)
        file.write(foot + struct.pack("<I", check))
        file.flush()
        os.fsync(file.fileno())
        end = file.tell()
    if not before.bytes:  # the name of a new file, too, must survive a power cut
        sync_folder(folder)
    return _Tail(before.log, end, check)


def _record(before: _Tail, table: _Table, slots: Array, t: int) -> Iterator[Any]:
    """Yield the pieces of a record, but for its foot."""
    blocks = []
    for name, arena in sorted(table.leaves.items()):
        here = np.flatnonzero(arena.has[slots])
        blocks += [(name, arena, form, here[where]) for form, where in arena.alike(slots[here])]
    leaves = [_Leaf(name, form[0].str, form[1], len(where)) for name, _, form, where in blocks]
    header = msgspec.msgpack.encode(_Header(t, (before.bytes, before.check), len(slots), leaves))
    yield _HEAD.pack(_MAGIC, len(header)) + header
    yield table.party[slots].astype("<i8").data
    for _, arena, form, where in blocks:
        if len(where) < len(slots):
            yield where.astype("<u4").data
        for some in pieces(slots[where], form):
            yield arena.take(some).reshape(-1).data


def _records(folder: Path, tail: _Tail) -> Iterator[tuple[Array, list[_Block]]]:
    """Yield the records of a chain, oldest first, after all of them were checked. Rows are views of the file."""
    path = tail.path(folder)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            log = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except OSError as error:
        remedy = "resume from a checkpoint whose log exists, or start the run again"
        raise Damaged(f"{path} cannot be read ({error.strerror}): {remedy}") from None
    chain = []
    end, check = tail.bytes, tail.check
    while end:
        header, at = _checked(log, end, check, path)
        chain.append((header, at))
        end, check = header.before
    for header, at in reversed(chain):
        yield _contents(log, header, at)


def _contents(log: Any, header: _Header, at: int) -> tuple[Array, list[_Block]]:
    """Return the parties of a record and their rows, which start at this byte."""
    me: Array = np.ndarray(header.parties, "<i8", log, at)
    at += me.nbytes
    blocks = []
    for leaf in header.leaves:
        where = np.arange(header.parties)
        if leaf.rows < header.parties:
            where = np.ndarray(leaf.rows, "<u4", log, at)
            at += where.nbytes
        rows: Array = np.ndarray((leaf.rows, *leaf.shape), np.dtype(leaf.dtype), log, at)
        at += rows.nbytes
        blocks.append((leaf.name, where, rows))
    return me, blocks


def _checked(log: Any, end: int, check: int, path: Path) -> tuple[_Header, int]:
    """Check the record that ends here; return its header, and where its party numbers start."""
    least = _HEAD.size + _FOOT.size
    if least <= end <= len(log):
        length, found = _FOOT.unpack_from(log, end - _FOOT.size)
        if found == check and least <= length <= end and _sum(log, end - length, end - 4) == check:
            magic, size = _HEAD.unpack_from(log, end - length)
            if magic != _MAGIC:
                raise Damaged(f"{path} was written by another version of atoll: resume the run with that version")
            at = end - length + _HEAD.size
            return msgspec.msgpack.decode(log[at : at + size], type=_Header), at + size
    why = (
        f"byte {end} is past its end" if end > len(log) else f"the record that ends at byte {end} has another checksum"
    )
    raise Damaged(f"{path} is damaged, {why}: resume from the checkpoint before it, or start the run again")


def _sum(log: Any, start: int, end: int) -> int:
    check, view = 0, memoryview(log)
    for at in range(start, end, _CHUNK):
        check = zlib.crc32(view[at : min(at + _CHUNK, end)], check)
    return check


def _logs(folder: Path) -> dict[int, Path]:
    found = [(path, _NAME.fullmatch(path.name)) for path in folder.glob("memory-*.log")]
    return {int(name[1]): path for path, name in found if name}


@contextmanager
def _writing(folder: Path | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = folder or tempfile.gettempdir()
        raise Unwritable(
            f"cannot write party memory to {where}: {error.strerror}; free some space, then resume the run"
        ) from None


def _numbers(me: Array) -> Array:
    me = np.asarray(me)
    if me.ndim != 1 or (me.size and (me.dtype.kind not in "iu" or me.min() < 0)):
        raise Mismatch(f"party numbers are one row of integers from 0, got {me.dtype} of shape {me.shape}")
    return me.astype(np.int64, copy=False)


def _blocks(name: str, leaf: Any, n: int) -> list[_Block]:
    """Cut a leaf into blocks of one form each."""
    if not isinstance(leaf, list | tuple):
        leaf = np.atleast_1d(leaf)
    if len(leaf) != n:
        raise Mismatch(f"memory {name!r} has {len(leaf)} rows for {n} parties: return a row per party")
    if isinstance(leaf, np.ndarray) and leaf.dtype != object:
        blocks = [(name, np.arange(n), leaf)] if n else []
    else:
        alike: dict[Form, list[tuple[int, Array]]] = {}
        for k, row in enumerate(None if row is None else np.asarray(row) for row in leaf):
            if row is not None:
                alike.setdefault((row.dtype, row.shape), []).append((k, row))
        blocks = [(name, np.array([k for k, _ in some]), np.stack([r for _, r in some])) for some in alike.values()]
    for _, _, rows in blocks:
        if rows.dtype.kind not in "biufc":
            raise Mismatch(f"memory {name!r} holds {rows.dtype}: remember booleans or numbers")
    return blocks
