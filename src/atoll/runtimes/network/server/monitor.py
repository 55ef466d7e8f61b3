"""How a server is doing, as it says itself: a small file in its run folder each second, held for as long as it lives.

Whether a server is running is asked of the lock that it holds, never of a number that another process may have by now.
"""

from __future__ import annotations

import fcntl
import json
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
from typing import Self

from atoll.core.disk import replace_file
from atoll.core.effects import Note
from atoll.core.errors import Unwritable
from atoll.runtimes.network.server.disk import hold
from atoll.runtimes.network.server.health import Endpoint, ServerStatus, Standing

EVERY = 1.0  # seconds between two snapshots
STANDSTILL = ("rejected", "declined", "refused", "left", "waiting")  # notes that are no progress
log = logging.getLogger(__name__)


class Monitor:
    """Takes the notes of a run and looks at its hub; says both in `status.json`, and at a health endpoint if asked to.

    It is entered before the server's store and left after it: once it is gone, another server can begin.
    """

    def __init__(self, folder: Path, rounds: int, health: str | None = None) -> None:
        self._folder, self._rounds, self._health = folder, rounds, health
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._snapshot: Callable[[], Standing] = Standing
        self._state, self._reason = "waiting", ""
        self._round = 0
        self._epsilon: float | None = None
        self._seconds, self._count = 0.0, 0
        self._rejected: Counter[str] = Counter()
        self._began, self._moved = time.time(), time.monotonic()
        self._endpoint: Endpoint | None = None

    def __enter__(self) -> Self:
        path = self._folder / "server.pid"
        try:
            self._held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Unwritable(f"cannot write to {self._folder}: {error.strerror}; choose another folder") from None
        try:
            _hold_soon(self._held, path)
            os.ftruncate(self._held, 0)
            os.write(self._held, str(os.getpid()).encode())
            if self._health:
                self._endpoint = Endpoint(self._health, self.status)
        except BaseException:
            os.close(self._held)
            raise
        self._write()
        self._thread = threading.Thread(target=self._tell, name="atoll-monitor", daemon=True)
        self._thread.start()
        return self

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
                self._state, self._round = "running", note.t
            if note.what == "round":
                self._seconds, self._count = self._seconds + (note.number("seconds") or 0.0), self._count + 1
                spent = note.number("epsilon")
                self._epsilon = self._epsilon if spent is None else spent
            if note.what == "end":
                self._reason = str(note.facts.get("reason", ""))

    def status(self) -> ServerStatus:
        """Say all that is known now."""
        seen = self._snapshot().copy()
        over, needed = seen.pop("over", ""), seen.get("needed", 0)
        with self._lock:
            state = self._state
            if state in ("waiting", "running"):
                state = "stopping" if over else "waiting" if needed else state
            return {
                "state": state, "reason": self._reason, "round": self._round, "rounds": self._rounds,
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
        # A disk that is full is reported by the journal, and ends the run; this file is only for people to look at.
        with suppress(OSError):
            replace_file(self._folder / "status.json", json.dumps(self.status()).encode(), sync=False)


def _hold_soon(file: int, path: Path) -> None:
    """Hold a file that somebody may be looking at: a look takes no time, a server does."""
    until = time.monotonic() + 1.0
    while True:
        try:
            return hold(file, path)
        except Unwritable:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def server_of(folder: Path) -> int | None:
    """Return the process that serves in this folder now, or None."""
    try:
        file = os.open(folder / "server.pid", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None  # nobody holds it: its server was killed
    except BlockingIOError:
        said = os.read(file, 20)
        return int(said) if said.isdigit() else None  # it is being written just now
    finally:
        os.close(file)


def last_said(folder: Path) -> ServerStatus:
    """Return what the server of this folder said last; nothing if it never did."""
    try:
        said: ServerStatus = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
