"""What a real party remembers of a job: on its disk, provisional until the server used the answer it came with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from atoll.core.disk import sync_folder
from atoll.core.errors import AtollError
from atoll.core.party import Remembered
from atoll.core.question import CODES
from atoll.core.tree import Array, leaves
from atoll.core.wire import Mismatch
from atoll.journal.sealed import Damaged, load
from atoll.runtimes.network.server.disk import write_arrays

KEPT = 2  # committed states, as the server keeps checkpoints
NEVER = -1  # the last ask whose answer was used, where none was


class _State(NamedTuple):
    """What the answer of ask t left behind: one row a leaf; a sentence instead, where its file is damaged."""

    t: int
    rows: Mapping[str, Array] | str


class OwnMemory:
    """One party's memory of one job.

    An answer leaves with memory that is only provisional. The next question that this party trains for says whether
    the answer was used: then the memory is committed, else it is forgotten. Both are on disk before the answer leaves,
    so that a party that is killed at any moment goes on from what counts. A server whose newest checkpoint is damaged
    goes on from the one before, so what was committed before is kept, too: there are three files at most.

    Args:
        folder: where it is written, for this job alone.
        max_bytes: that may be remembered.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._max = folder, max_bytes
        self._committed = self._read("committed")  # the newest last
        self._provisional = next(reversed(self._read("provisional")), None)

    def recall(self, used: int) -> Remembered | None:
        """Return what this party remembers, as a group of one, where this was the last ask whose answer was used; None
        before the first. Nothing is committed: a server that fails now may still come back as it was before that ask.
        """
        state = self._at(used)
        if state is None or not state.rows:
            return None
        if isinstance(state.rows, str):
            raise Damaged(f"{state.rows}: put this party's folder back from a copy, or begin the run anew")
        return Remembered(np.ones(1, bool), {name: row[None] for name, row in state.rows.items()})

    def remember(self, t: int, memory: Mapping[str, Any]) -> None:
        """Note what is to be remembered, should the answer of ask t be used.

        Args:
            t: The ask.
            memory: By name, one row of booleans or numbers with a leading axis of one party. An object array holds a
                row whose shape may differ from other parties', or None: then this party does not have the leaf.
        """
        rows = {name: _row(name, leaf) for name, leaf in memory.items() if leaf[0] is not None}
        size = sum(row.nbytes for row in rows.values())
        if size > self._max:
            raise MemoryTooLarge(
                f"the method wants to remember {size:,} bytes at this party, and max_memory = {self._max:,}: raise it"
            )
        for one in (self._folder.parent, self._folder):  # a mode is that of the last folder only
            one.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._forget()
        write_arrays(self._path("provisional", t), rows)
        self._provisional = _State(t, rows)

    def settle(self, used: int) -> None:
        """Commit the provisional memory if the answer of this ask was used; forget it otherwise."""
        state = self._at(used)
        if self._provisional is not None and state is self._provisional:
            self._path("provisional", used).replace(self._path("committed", used))
            sync_folder(self._folder)
            self._committed.append(state)
            self._provisional = None
        kept = [one for one in self._committed if state is not None and one.t <= state.t][-KEPT:]
        for old in {one.t for one in self._committed} - {one.t for one in kept}:
            self._path("committed", old).unlink(missing_ok=True)
        self._committed = kept
        self._forget()

    def _at(self, used: int) -> _State | None:
        """Return what counts if this was the last ask whose answer was used. Answers since may have left nothing."""
        if used == NEVER:  # the job was begun anew
            return None
        if self._provisional is not None and self._provisional.t == used:
            return self._provisional
        found = [state for state in self._committed if state.t <= used]
        if self._committed and not found:
            raise WentBack(
                f"the server goes back to ask {used + 1}, and this party remembers ask {self._committed[0].t + 1} on: "
                "serve the run from its newest checkpoint, or begin it anew"
            )
        return found[-1] if found else None

    def _forget(self) -> None:
        if self._provisional is not None:
            self._path("provisional", self._provisional.t).unlink(missing_ok=True)
            self._provisional = None

    def _path(self, kind: str, t: int) -> Path:
        return self._folder / f"{kind}-{t}.safetensors"

    def _read(self, kind: str) -> list[_State]:
        """Read the files of a kind, the oldest first; those that a kill has left are deleted with the next."""
        found = sorted((int(path.stem.partition("-")[2]), path) for path in self._folder.glob(f"{kind}-*.safetensors"))
        states = []
        for t, path in found:
            try:
                states.append(_State(t, dict(leaves(load(path)))))
            except Damaged as reason:
                states.append(_State(t, str(reason)))
        return states


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
