"""Write a run folder: facts a line each, checkpoints by atomic rename. A crash leaves the old or the new, no mix."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from atoll.core.effects import Note
from atoll.core.tree import Tree, leaves


class Unwritable(OSError):
    """The run folder cannot be written; what was kept before is untouched."""


class Journal:
    """Takes notes and keeps memory, in a folder or (without one) in this process only.

    A checkpoint is written at most once in `rest` seconds and when the run ends: a run is a function of its seed, so
    what is redone after a crash is redone to the same bits.
    """

    def __init__(
        self, folder: Path | None = None, *, rest: float = 1.0, sinks: tuple[Callable[[Note], None], ...] = ()
    ) -> None:
        self.folder, self.facts = folder, list[dict[str, Any]]()
        self._rest, self._sinks = rest, sinks
        self._last = float("-inf")
        self._pending: Tree | None = None
        self._began = time.time()
        self._file = None
        if folder:
            try:
                (folder / "keep").mkdir(parents=True, exist_ok=True)
                self._file = (folder / "facts.jsonl").open("a+", encoding="utf-8")
                self._mend()
            except OSError as error:
                remedy = "choose another folder with --out"
                raise Unwritable(f"cannot write to {folder}: {error.strerror}; {remedy}") from None

    def _mend(self) -> None:
        """End a line that a crash has torn, so that the next fact starts a new one."""
        assert self._file
        text = Path(self._file.name).read_bytes()[-1:]
        if text not in (b"", b"\n"):
            self._file.write("\n")

    def note(self, note: Note) -> None:
        fact = {"what": note.what, **note.facts, "time": round(time.time() - self._began, 4)}
        self.facts.append(fact)
        if self._file:
            self.guard(lambda: self._write(json.dumps(fact, default=_plain) + "\n"))
        for sink in self._sinks:
            sink(note)

    def _write(self, line: str) -> None:
        assert self._file
        self._file.write(line)
        self._file.flush()

    def keep(self, memory: Tree) -> None:
        self._pending = memory
        if time.monotonic() - self._last >= self._rest:
            self.flush()

    def flush(self) -> None:
        """Write what was last given to keep."""
        memory, self._pending = self._pending, None
        if memory is None or not self.folder:
            return
        name = self.folder / "keep" / f"{int(memory['t']):08d}.safetensors"
        self.guard(lambda: save(name, memory))
        for old in sorted((self.folder / "keep").glob("*.safetensors"))[:-2]:
            old.unlink()
        self._last = time.monotonic()

    def close(self) -> None:
        if self._file:
            with suppress(OSError):  # what a full disk has not taken is lost, and was reported
                self._file.close()
            self._file = None

    def guard(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            raise Unwritable(
                f"cannot write to {self.folder}: {error.strerror}; free some space, "
                f"then go on with: atoll run --resume {self.folder}"
            ) from None


def save(path: Path, tree: Tree) -> None:
    """Write a tree of arrays so that the file is the old or the new one, whatever happens."""
    from safetensors.numpy import save as serialise

    flat = {name: np.asarray(leaf, order="C") for name, leaf in leaves(tree)}
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            file.write(serialise(flat))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Make a rename last through a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)
