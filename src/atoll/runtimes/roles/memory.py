"""What a role remembers of a run: provisional until the hub has a checkpoint, then committed; on disk or in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from atoll.core.tree import Array, leaves
from atoll.crypto.keys import Refused
from atoll.journal.sealed import Damaged, load

NEW = -1  # the number of the checkpoint that a run starts from
_NUMBER = "number"
_LEAF = "leaf/"


class _State(NamedTuple):
    """What was remembered at a checkpoint, or since it."""

    number: int
    leaves: Mapping[str, Array]


class RoleMemory:
    """One role's memory of one run.

    What a role remembers changes with every answer, and is on disk before the answer leaves. It counts once the hub
    has a checkpoint: the next question says which is the last. A hub or a party that is killed at any moment goes on
    from the last checkpoint; what was remembered since then is forgotten.

    Args:
        folder: where it is written; None: nowhere, as in a simulation.
        max_bytes: that may be remembered.
    """

    def __init__(self, folder: Path | None = None, max_bytes: int = 2**40) -> None:
        self._folder, self._max = folder, max_bytes
        for left in folder.glob("*.part") if folder is not None else ():  # by a process that was killed as it wrote
            left.unlink()
        self._committed = self._read("committed")
        found = self._read("provisional")
        # One that began at another checkpoint was left by a crash in the middle of a commit.
        current = found is not None and self._committed is not None and found.number == self._committed.number
        self._provisional = found if current else None

    @property
    def leaves(self) -> Mapping[str, Array]:
        """What is remembered now."""
        state = self._provisional or self._committed
        return state.leaves if state else {}

    def begin(self, used: int) -> None:
        """Start a session at a checkpoint of the hub; what was remembered after it is forgotten."""
        if self._committed is None:
            if used != NEW:
                raise Refused(
                    f"this role has no memory of the run, which has done {used} rounds: join with the folder it was "
                    "begun with, or start the run anew"
                )
            self._commit(_State(NEW, {}))
        self.settle(used)
        self._forget()

    def settle(self, used: int) -> bool:
        """Commit what is provisional if the hub has a newer checkpoint; say whether it has."""
        committed = self._committed
        if committed is None:
            raise Refused("a role settles what it remembers after a session has begun")
        if used == committed.number:
            return False
        if used == NEW:  # the run starts again from nothing
            self._forget()
            self._commit(_State(NEW, {}))
            return True
        if used < committed.number:
            raise Refused(
                f"the hub goes back to round {used}, and this role remembers round {committed.number} only: serve the "
                "run from its newest checkpoint"
            )
        self._commit(_State(used, self.leaves))
        self._forget()
        return True

    def remember(self, leaves: Mapping[str, Array]) -> None:
        """Replace what is remembered; it counts with the hub's next checkpoint."""
        if self._committed is None:
            raise Refused("a role remembers something after a session has begun")
        before = self.leaves
        if before.keys() == leaves.keys() and all(_same(leaves[name], before[name]) for name in leaves):
            return
        size = sum(leaf.nbytes for leaf in leaves.values())
        if size > self._max:
            raise Refused(f"the program would remember {size:,} bytes here, and max_memory = {self._max:,}: raise it")
        self._provisional = _State(self._committed.number, dict(leaves))
        self._write("provisional", self._provisional)

    def restore(self, number: int, leaves: Mapping[str, Array]) -> None:
        """Take over what was remembered at a checkpoint that is stored elsewhere, as a simulation's is."""
        self._committed, self._provisional = _State(number, dict(leaves)), None

    def _commit(self, state: _State) -> None:
        self._write("committed", state)
        self._committed = state

    def _forget(self) -> None:
        if self._provisional is not None and self._folder is not None:
            (self._folder / "provisional.safetensors").unlink(missing_ok=True)
        self._provisional = None

    def _write(self, name: str, state: _State) -> None:
        if self._folder is None:
            return
        from atoll.runtimes.network.server.disk import write_arrays

        for one in (self._folder.parent, self._folder):  # a mode is that of the last folder only
            one.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._folder / f"{name}.safetensors"
        write_arrays(path, {_NUMBER: np.array(state.number), **{_LEAF + leaf: x for leaf, x in state.leaves.items()}})

    def _read(self, name: str) -> _State | None:
        path = None if self._folder is None else self._folder / f"{name}.safetensors"
        if path is None or not path.is_file():
            return None
        try:
            flat = dict(leaves(load(path)))
        except Damaged as reason:
            raise Damaged(f"{reason}: put this party's folder back from a copy, or begin the run anew") from None
        return _State(int(flat[_NUMBER]), {key[len(_LEAF) :]: x for key, x in flat.items() if key.startswith(_LEAF)})


def _same(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
