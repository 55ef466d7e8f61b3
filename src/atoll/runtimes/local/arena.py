"""Arenas: rows of a leaf by slot, in mapped memory that grows. No arena knows a party.

Slot 0 belongs to nobody: nothing is put there, so its row is zeros, and whoever does not have the leaf reads it.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from atoll.core.tree import Array

_ALIGN = 64
_CHUNK = 1 << 22  # bytes that are copied at a time

Form = tuple[np.dtype[Any], tuple[int, ...]]  # of one row


class Rows:
    """Rows of one form, a slot each."""

    def __init__(self, folder: Path | None, form: Form) -> None:
        self.form = form
        self.has = np.zeros(1, bool)
        self._map = _Map(folder)
        self._rows = np.zeros((0, *form[1]), form[0])

    def bytes(self) -> int:
        return int(np.count_nonzero(self.has)) * row_bytes(self.form)

    def extend(self, slots: int) -> None:
        self.has = extended(self.has, slots)

    def takes(self, form: Form) -> bool:
        return form == self.form

    def put(self, slots: Array, rows: Array) -> None:
        need = int(slots.max()) + 1
        if need > len(self._rows):
            dtype, shape = self.form
            buffer = self._map.reach(need * row_bytes(self.form))
            count = len(buffer) // row_bytes(self.form) if row_bytes(self.form) else len(self.has)
            self._rows = np.ndarray((count, *shape), dtype, buffer)
        self._rows[slots] = rows
        self.has[slots] = True

    def take(self, slots: Array, has: Array | None = None) -> Array:
        return self._rows.take(slots if has is None or has.all() else np.where(has, slots, 0), axis=0)

    def alike(self, slots: Array) -> Iterator[tuple[Form, Array]]:
        """Yield each form among these slots, and which of them have it."""
        if len(slots):
            yield self.form, np.arange(len(slots))


class Ragged:
    """Rows of many forms, end to end. A row that outgrows its space moves to the end."""

    def __init__(self, folder: Path | None) -> None:
        self.has = np.zeros(1, bool)
        self._start, self._space, self._kind = (np.zeros(1, np.int64) for _ in range(3))  # bytes, bytes, index of form
        self._forms: list[Form] = []
        self._number: dict[Form, int] = {}
        self._map = _Map(folder)
        self._end = 0  # of the last row, in bytes
        self._waste = 0  # bytes before it that belong to no slot

    def bytes(self) -> int:
        return int(self._space[self.has].sum())

    def extend(self, slots: int) -> None:
        self.has, self._start, self._space, self._kind = (
            extended(column, slots) for column in (self.has, self._start, self._space, self._kind)
        )

    def takes(self, form: Form) -> bool:
        return 2 * self._waste <= self._end

    def put(self, slots: Array, rows: Array) -> None:
        form = (rows.dtype, rows.shape[1:])
        space = -(-row_bytes(form) // _ALIGN) * _ALIGN
        short = slots[self._space[slots] < space]
        self._waste += int(self._space[short].sum())
        self._start[short] = self._end + space * np.arange(len(short))
        self._space[short] = space
        self._end += space * len(short)
        self._map.reach(self._end)
        if form not in self._number:
            self._number[form] = len(self._forms)
            self._forms.append(form)
        self._kind[slots] = self._number[form]
        for slot, row in zip(slots.tolist(), rows, strict=True):
            self._row(slot)[...] = row
        self.has[slots] = True

    def take(self, slots: Array, has: Array | None = None) -> Array:
        here = np.arange(len(slots)) if has is None else np.flatnonzero(has)
        kinds = self._kind[slots[here]]
        if (kinds == kinds[0]).all():
            dtype, shape = self._forms[kinds[0]]
            out = np.zeros((len(slots), *shape), dtype)
            for k in here.tolist():
                out[k] = self._row(slots[k])
        else:
            out = np.full(len(slots), None, object)
            for k in here.tolist():
                out[k] = self._row(slots[k]).copy()[()]  # of shape (): a NumPy scalar, or NumPy stores a Python number
        return out

    def alike(self, slots: Array) -> Iterator[tuple[Form, Array]]:
        """Yield each form among these slots, and which of them have it."""
        kinds = self._kind[slots]
        order = np.argsort(kinds, kind="stable")
        for where in np.split(order, np.flatnonzero(np.diff(kinds[order])) + 1) if len(slots) else ():
            yield self._forms[kinds[where[0]]], where

    def _row(self, slot: int) -> Array:
        dtype, shape = self._forms[self._kind[slot]]
        return np.ndarray(shape, dtype, self._map.view, int(self._start[slot]))


class _Map:
    """Mapped memory that grows, in a file without a name."""

    def __init__(self, folder: Path | None) -> None:
        self.view: mmap.mmap | None = None
        self._on_disk = folder is not None or not hasattr(os, "memfd_create")
        if self._on_disk:
            if folder:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryFile(dir=folder, prefix="memory-") as file:
                self._fd = os.dup(file.fileno())
        else:
            self._fd = os.memfd_create("atoll-memory")
        weakref.finalize(self, os.close, self._fd)

    def __len__(self) -> int:
        return len(self.view) if self.view is not None else 0

    def reach(self, size: int) -> mmap.mmap:
        """Return the memory, at least this many bytes; views of what it was before hold no longer than it."""
        if self.view is None or size > len(self):
            size = -(-max(size, len(self) * 3 // 2, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
            if self._on_disk and hasattr(os, "posix_fallocate"):
                try:  # a full disk is an error here; in a sparse file it would end the process at some later write
                    os.posix_fallocate(self._fd, 0, size)
                except OSError as error:
                    if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                        raise
            os.ftruncate(self._fd, size)
            self.view = mmap.mmap(self._fd, size)
        return self.view


def pieces(slots: Array, form: Form) -> Iterator[Array]:
    """Cut slots into pieces whose rows are copied at a time."""
    step = max(_CHUNK // max(row_bytes(form), 1), 1)
    for at in range(0, len(slots), step):
        yield slots[at : at + step]


def row_bytes(form: Form) -> int:
    return form[0].itemsize * prod(form[1])


def extended(column: Array, size: int) -> Array:
    """Return the column, at least this long; what is new is zero."""
    if size <= len(column):
        return column
    longer = np.zeros(max(size, len(column) * 3 // 2), column.dtype)
    longer[: len(column)] = column
    return longer
