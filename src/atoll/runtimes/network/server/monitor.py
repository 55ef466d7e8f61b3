"""How a server is doing, as it says itself: a small file in its run folder each second, held for as long as it lives.

Whether a server is running is asked of the lock that it holds, never of a number that another process may have by now.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from atoll.core.disk import replace_file
from atoll.core.effects import Note, number
from atoll.core.errors import Unwritable
from atoll.journal import Past, rounds_done
from atoll.journal.sealed import seal, unseal
from atoll.runtimes.network.server.disk import hold_soon, is_held
from atoll.runtimes.network.server.health import FULL, Endpoint, ServerStatus, Standing

EVERY = 1.0  # seconds between two snapshots
STANDSTILL = ("rejected", "declined", "refused", "left", "waiting")  # notes that are no progress
log = logging.getLogger(__name__)


class Monitor:
    """Takes the notes of a run and looks at its hub; says both in `status.json`, and at a health endpoint if asked to.

    It is entered before the server's store and left after it: once it is gone, another server can begin.
    """

    def __init__(self, folder: Path, rounds: int, health: str | None = None, past: Past = Past()) -> None:  # noqa: B008
        self._folder, self._rounds, self._health = folder, rounds, health
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._snapshot: Callable[[], Standing] = Standing
        self._state, self._unwritten = "waiting", ""
        self._reason = next((str(fact["reason"]) for fact in past.facts if fact["what"] == "end"), "")
        self._round = past.rounds
        spent = [number(fact, "epsilon") for fact in past.facts if fact["what"] == "round"]
        self._epsilon = spent[-1] if spent else None
        self._seconds, self._count = 0.0, 0
        self._rejected: Counter[str] = Counter()
        self._began, self._moved = time.time(), time.monotonic()
        self._endpoint: Endpoint | None = None

    def __enter__(self) -> Self:
        path = self._folder / "server.pid"
        try:
            self._held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            hold_soon(self._held, path)
            os.ftruncate(self._held, 0)
            self._name()
            if self._health:
                self._endpoint = Endpoint(self._health, self.status)
        except BaseException:
            os.close(self._held)
            raise
        self._write()
        self._thread = threading.Thread(target=self._tell, name="atoll-monitor", daemon=True)
        self._thread.start()
        return self

    def _name(self) -> None:
        """Write down which process serves here."""
        try:
            os.write(self._held, str(os.getpid()).encode())
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> Unwritable:
        return Unwritable(
            f"cannot write to {self._folder}: {error.strerror}; free some space, or choose another folder"
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        with self._lock:
            if kind is None:
                self._state = "finished"
            elif issubclass(kind, KeyboardInterrupt):
                self._state, self._reason = "stopped", "stopped by hand"
            else:
                self._state, self._reason = "failed", str(error)
        self._write()
        if self._endpoint:
            self._endpoint.close()
        (self._folder / "server.pid").unlink(missing_ok=True)
        os.close(self._held)

    def follow(self, snapshot: Callable[[], Standing]) -> None:
        """Take snapshots from here from now on (`Hub.snapshot`)."""
        self._snapshot = snapshot

    def __call__(self, note: Note) -> None:
        with self._lock:
            if note.what not in STANDSTILL:
                self._moved = time.monotonic()
            if note.what == "rejected":
                self._rejected[str(note.facts["party"])] += 1
            if note.what in ("start", "resume", "round"):
                self._state, self._round = "running", rounds_done([{"what": note.what, **note.facts}])
            if note.what == "round":
                self._seconds, self._count = self._seconds + (note.number("seconds") or 0.0), self._count + 1
                spent = note.number("epsilon")
                self._epsilon = self._epsilon if spent is None else spent
            if note.what == "end":
                self._reason = str(note.facts.get("reason", ""))

    def status(self) -> ServerStatus:
        """Say all that is known now."""
        seen = self._snapshot().copy()
        over, needed, unwritten = (
            seen.pop("over", ""),
            seen.get("needed", 0),
            seen.pop("unwritten", "") or self._unwritten,
        )
        with self._lock:
            state = self._state
            if state in ("waiting", "running"):
                ended = "finished" if self._reason else "stopping"
                state = ended if over else FULL if unwritten else "waiting" if needed else state
            return {
                "state": state, "reason": unwritten if state == FULL else self._reason,
                "round": self._round, "rounds": self._rounds,
                "idle": time.monotonic() - self._moved, "epsilon": self._epsilon,
                "round_seconds": {"sum": self._seconds, "count": self._count},
                "rejected": dict(self._rejected), **seen,
                "pid": os.getpid(), "began": self._began, "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "health": self._endpoint.address if self._endpoint else None,
            }  # fmt: skip

    def _tell(self) -> None:
        while not self._ended.wait(EVERY):
            self._write()

    def _write(self) -> None:
        path = self._folder / "status.json"
        try:
            replace_file(path, seal(self.status()).encode(), mode=0o600, sync=False)
            self._unwritten = ""
        except OSError as error:
            self._unwritten = f"cannot write to {self._folder}: {error.strerror}; free some space"
            with suppress(OSError), path.open("r+b") as file:  # what it has of a full disk it keeps
                file.write(seal(self.status()).encode())
                file.truncate()


def server_of(folder: Path) -> int | None:
    """Return the process that serves in this folder now, or None."""
    path = folder / "server.pid"
    if not is_held(path):
        return None  # nobody holds it: its server was killed
    try:
        said = path.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return None
    return int(said) if said.isdigit() else None  # it is being written just now


def last_said(folder: Path) -> ServerStatus:
    """Return what the server of this folder said last; nothing if it never did, or if that is damaged."""
    try:
        return cast("ServerStatus", unseal((folder / "status.json").read_bytes()) or {})
    except OSError:
        return {}
