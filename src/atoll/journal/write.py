"""Write a run folder: facts a line each, checkpoints by atomic rename. A crash leaves the old or the new, no mix."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from atoll.core.disk import replace_file
from atoll.core.effects import Note, Sink
from atoll.core.errors import Unwritable
from atoll.core.tree import Tree, leaves
from atoll.journal.read import FORMAT


class Journal:
    """The facts and checkpoints of a run, in a folder or (without one) in memory.

    A checkpoint is written at most once in `rest` seconds and when the run ends. A run is a function of its seed, so
    what is computed again after a crash has the same bits.

    Args:
        folder: the run folder. Default: memory only.
        rest: seconds between two checkpoints, 0 or more. Default 1.0.
        sinks: functions that receive every fact. Default: none.

    Example:
        >>> from atoll.core.effects import Note
        >>> from atoll.journal import Journal
        >>> journal = Journal()
        >>> journal.note(Note("round", {"round": 1}))
        >>> journal.facts[0]["what"]
        'round'
    """

    def __init__(self, folder: Path | None = None, *, rest: float = 1.0, sinks: tuple[Sink, ...] = ()) -> None:
        self.folder, self.facts = folder, list[dict[str, object]]()
        self._rest, self._sinks = rest, sinks
        self._last = float("-inf")
        self._pending: Tree | None = None
        self._began = time.time()
        self._file = None
        if folder:
            try:
                (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
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

    def checkpoint(self, memory: Tree) -> None:
        self._pending = memory
        if time.monotonic() - self._last >= self._rest:
            self.flush()

    def flush(self) -> None:
        """Write what was last given to keep."""
        memory, self._pending = self._pending, None
        if memory is None or not self.folder:
            return
        name = self.folder / "checkpoints" / f"{int(memory['t']):08d}.safetensors"
        self.guard(lambda: save(name, memory))
        for old in sorted((self.folder / "checkpoints").glob("*.safetensors"))[:-2]:
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
                f"then resume it: atoll run --resume {self.folder}"
            ) from None


def write_format(folder: Path) -> None:
    """Say in which format a new run folder is written; before its job.toml, by which it is a run folder."""
    (folder / "format").write_text(f"{FORMAT}\n", encoding="utf-8")


def save(path: Path, tree: Tree) -> None:
    """Write a tree of arrays so that the file is the old or the new one, whatever happens."""
    from safetensors.numpy import save as serialise

    flat = {name: np.asarray(leaf, order="C") for name, leaf in leaves(tree)}
    replace_file(path, serialise(flat))


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)
