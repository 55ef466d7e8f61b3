"""What a real party remembers of a job: on its disk, provisional until the server used the answer it came with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load, save

from atoll.core.disk import sync_folder
from atoll.core.errors import AtollError
from atoll.core.party import Remembered
from atoll.core.question import CODES
from atoll.core.tree import Array
from atoll.core.wire import Mismatch
from atoll.runtimes.network.server.disk import write_atomic

NEVER = -1  # the last ask whose answer was used, where none was


class _State(NamedTuple):
    """What the answer of ask t left behind: one row a leaf."""

    t: int
    rows: Mapping[str, Array]


class OwnMemory:
    """One party's memory of one job.

    An answer leaves with memory that is only provisional. The next question that this party trains for says whether
    the answer was used: then the memory is committed, else it is forgotten. Both are on disk before the answer leaves,
    so that a party that is killed at any moment goes on from what counts. What was committed before can never be asked
    for again, since the server has a checkpoint after it: it is deleted, so there are two files at most.

    Args:
        folder: where it is written, for this job alone.
        max_bytes: that may be remembered.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._max = folder, max_bytes
        self._committed, self._provisional = self._newest("committed"), self._newest("provisional")

    def recall(self, used: int) -> Remembered | None:
        """Return what this party remembers, as a group of one, where this was the last ask whose answer was used; None
        before the first. Nothing is committed: a server that fails now may still come back as it was before that ask.
        """
        state = self._at(used)
        rows = {} if state is None else {name: row[None] for name, row in state.rows.items()}
        return Remembered(np.ones(1, bool), rows) if rows else None

    def remember(self, t: int, leaves: Mapping[str, Any]) -> None:
        """Note what is to be remembered, should the answer of ask t be used.

        Args:
            t: The ask.
            leaves: By name, one row of booleans or numbers with a leading axis of one party. An object array holds a
                row whose shape may differ from other parties', or None: then this party does not have the leaf.
        """
        rows = {name: _row(name, leaf) for name, leaf in leaves.items() if leaf[0] is not None}
        size = sum(row.nbytes for row in rows.values())
        if size > self._max:
            raise MemoryTooLarge(
                f"the method wants to remember {size:,} bytes at this party, and max_memory = {self._max:,}: raise it"
            )
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._forget()
        write_atomic(self._path("provisional", t), save(rows))
        self._provisional = _State(t, rows)

    def settle(self, used: int) -> None:
        """Commit the provisional memory if the answer of this ask was used; forget it otherwise."""
        state, before = self._at(used), self._committed
        if self._provisional is not None and state is self._provisional:
            self._path("provisional", used).replace(self._path("committed", used))
            sync_folder(self._folder)
            self._provisional = None
        self._committed = state
        if before is not None and before is not state:
            self._path("committed", before.t).unlink(missing_ok=True)
        self._forget()

    def _at(self, used: int) -> _State | None:
        """Return what counts if this was the last ask whose answer was used. Answers since may have left nothing."""
        if used == NEVER:  # the job was begun anew
            return None
        if self._provisional is not None and self._provisional.t == used:
            return self._provisional
        if self._committed is not None and used < self._committed.t:
            raise WentBack(
                f"the server goes back to ask {used + 1}, and this party remembers ask {self._committed.t + 1} only: "
                "serve the run from its newest checkpoint, or begin it anew"
            )
        return self._committed

    def _forget(self) -> None:
        if self._provisional is not None:
            self._path("provisional", self._provisional.t).unlink(missing_ok=True)
            self._provisional = None

    def _path(self, kind: str, t: int) -> Path:
        return self._folder / f"{kind}-{t}.safetensors"

    def _newest(self, kind: str) -> _State | None:
        """Read the newest file of a kind; an older one was left by a kill before it was deleted."""
        found = sorted((int(path.stem.partition("-")[2]), path) for path in self._folder.glob(f"{kind}-*.safetensors"))
        for _, old in found[:-1]:
            old.unlink()
        return _State(found[-1][0], load(found[-1][1].read_bytes())) if found else None


class MemoryTooLarge(AtollError, ValueError):
    """A method wants to remember more than the party's policy allows."""

    code = "memory_too_large"


class WentBack(AtollError, ValueError):
    """The server is at an ask before the one that this party has committed."""

    code = "went_back"


def _row(name: str, leaf: Any) -> Array:
    """Return a copy of a leaf's only row: what a worker gave is overwritten by its next answer."""
    row = np.array(leaf[0], order="C")
    if row.dtype.name not in CODES:
        raise Mismatch(f"memory {name!r} holds {row.dtype}: remember booleans or numbers of up to 64 bits")
    return row
