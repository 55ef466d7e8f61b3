"""Arrays that several processes of this machine see without copying. Nothing here outlives the process that made it."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from atoll.core.tree import Array, Tree, leaves, nest

_ALIGN = 64
_SMALL = 4096  # bytes; smaller arrays travel in the message itself


class Place(NamedTuple):
    """Where an array stands in a block."""

    start: int
    shape: tuple[int, ...]
    dtype: str


class Block:
    """Memory of one writer and some readers. It grows; it is gone when its maker is."""

    def __init__(self, path: str | None = None) -> None:
        if path is None:
            if hasattr(os, "memfd_create"):
                self._fd = os.memfd_create("atoll")
                self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
            else:  # not Linux: a file that is removed with its maker
                self._file = tempfile.NamedTemporaryFile(prefix="atoll-")  # noqa: SIM115 - lives as long as the block
                self._fd, self.path = self._file.fileno(), self._file.name
        else:
            self._fd, self.path = os.open(path, os.O_RDWR), path
        self._map: mmap.mmap | None = None

    def view(self, size: int) -> memoryview:
        """Return at least this many bytes of the block."""
        if self._map is None or len(self._map) < size:
            if os.fstat(self._fd).st_size < size:
                os.ftruncate(self._fd, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
            self._map = mmap.mmap(self._fd, os.fstat(self._fd).st_size)
        return memoryview(self._map)

    def write(self, tree: Tree) -> dict[str, Any]:
        """Put the arrays of a tree into the block; return what a reader needs to find them."""
        spec: dict[str, Any] = {}
        arrays: list[tuple[Array, Place]] = []
        at = 0
        for path, leaf in leaves(tree):
            array = np.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf
            if not isinstance(array, np.ndarray) or array.nbytes < _SMALL or array.dtype.hasobject:
                spec[path] = array
                continue
            spec[path] = Place(at, array.shape, array.dtype.str)
            arrays.append((array, spec[path]))
            at += -(-array.nbytes // _ALIGN) * _ALIGN
        if arrays:
            view = self.view(at)
            for array, place in arrays:
                np.copyto(_array(view, place), array)
        return spec

    def read(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tree; its large arrays are views that hold until the writer writes again."""
        places = [p for p in spec.values() if isinstance(p, Place)]
        view = self.view(max(p.start + _bytes(p) for p in places)) if places else memoryview(b"")
        return nest({path: _array(view, p) if isinstance(p, Place) else p for path, p in spec.items()})


def _bytes(place: Place) -> int:
    return prod(place.shape) * np.dtype(place.dtype).itemsize


def _array(view: memoryview, place: Place) -> Array:
    return np.frombuffer(view, place.dtype, prod(place.shape), place.start).reshape(place.shape)
