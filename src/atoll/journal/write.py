"""Write a run folder: facts a line each, checkpoints by atomic rename. A crash leaves the old or the new, no mix."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote

from atoll.core.disk import replace_file
from atoll.core.effects import Note, Sink
from atoll.core.errors import Unwritable
from atoll.core.tree import Tree
from atoll.journal.read import FORMAT, Past, RunRecord
from atoll.journal.sealed import save, seal, unseal


class Journal:
    """The facts and checkpoints of a run, in a folder or (without one) in memory.

    A checkpoint is written at most once in `rest` seconds and when the run ends. A run is a function of its seed, so
    what is computed again after a crash is bit-for-bit reproducible.

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
        self._began, self._begun = time.time(), False
        self._file = None
        if folder:
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                (folder / "checkpoints").mkdir(exist_ok=True, mode=0o700)
                self._file = open(folder / "facts.jsonl", "a+", encoding="utf-8", opener=_private)  # noqa: SIM115
                self._mend()
            except OSError as error:
                remedy = "choose another folder with --out"
                raise Unwritable(f"cannot write to {folder}: {error.strerror}; {remedy}") from None

    def _mend(self) -> None:
        """Cut off a line that a crash has torn, so that the next fact starts a new one."""
        assert self._file
        path = Path(self._file.name)
        torn = path.read_bytes().rpartition(b"\n")[2]
        if unseal(torn):
            self._file.write("\n")
        elif torn:
            os.truncate(path, path.stat().st_size - len(torn))

    def begin(self, about: Mapping[str, object], past: Past) -> None:
        """Note that a run starts, or goes on from its past, and what of that was found damaged.

        Args:
            about: what is known of a run before its first round.
            past: what it goes on from.
        """
        self.facts[:] = [*past.facts, *(self.facts if not self._begun else ())]  # one that begins again has noted them
        self._begun = True
        if past.memory is None:
            self.note(Note("start", {"round": 0, **about}))
        else:
            if not any(fact["what"] == "start" for fact in past.facts):
                self.note(Note("start", {"round": 0, **about, "again": True}))
            again = {"unseen": True} if "unseen" in past.memory else {}
            self.note(Note("resume", {"round": past.rounds, **again}))
        for why in past.damaged:
            self.note(Note("damaged", {"round": past.rounds, "why": why}))

    def note(self, note: Note) -> None:
        fact = {"what": note.what, **note.facts, "time": round(time.time() - self._began, 4)}
        self.facts.append(fact)
        if self._file:
            self.guard(lambda: self._write(seal(fact) + "\n"))
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
                f"then resume it: atoll run --resume {quote(str(self.folder))}"
            ) from None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def write_format(folder: Path) -> None:
    """Say in which format a new run folder is written; before its job.toml, by which it is a run folder."""
    replace_file(folder / "format", f"{FORMAT}\n".encode(), mode=0o600, sync=False)


def mend(record: RunRecord) -> None:
    """Write the job of a damaged folder anew; what stood there is kept beside it, for people."""
    from atoll.job.file import dumps

    path, text = record.folder / "job.toml", dumps(record.job)
    write_format(record.folder)
    if not path.is_file() or path.read_bytes() != text.encode():
        with suppress(FileNotFoundError):
            path.replace(path.with_name("job.toml.damaged"))
        replace_file(path, text.encode(), mode=0o600, sync=False)
