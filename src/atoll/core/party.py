"""What a party is: a name, data, memory, a world for its randomness, and handlers that answer questions.

A handler answers for a *group* of parties at once: every array has a leading axis of parties. A simulator hands it a
hundred small parties, a real party hands it itself. That one group equals many singles is a law (`atoll.testing`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from atoll.core.tree import EMPTY, Array, Tree
from atoll.core.world import World


class Samples(Protocol):
    """Samples of many parties end to end; see `atoll.data.Silos`."""

    @property
    def x(self) -> Array: ...
    @property
    def y(self) -> Array: ...
    @property
    def offsets(self) -> Array: ...
    @property
    def index(self) -> Array | None: ...


Memory = Mapping[str, Array]  # leaves with a leading axis of parties
NOTHING: Memory = EMPTY


@dataclass(frozen=True, eq=False)
class Remembered:
    """What the parties of a group remember. A party that has not answered yet remembers nothing: it is not `known`.

    Args:
        known: for each party, whether it remembers anything.
        leaves: a row for every party, zeros where a party is not known. A leaf whose rows differ in shape between
            parties is an object array. Default: none.
        present: by leaf, who has it, where that differs from `known`. Default: nowhere.
    """

    known: Array
    leaves: Memory = field(default_factory=dict)
    present: Memory = field(default_factory=dict)

    def get(self, name: str, default: object) -> Array:
        """Return one row a party: what it remembers under a name, or the default (the value of one row)."""
        blank = np.asarray(default)
        if name not in self.leaves:
            return np.broadcast_to(blank, (len(self.known), *blank.shape))
        rows, there = self.leaves[name], self.present.get(name, self.known)
        if there.all():
            return rows
        if rows.dtype.hasobject:
            return ragged([row if has else blank for row, has in zip(rows, there, strict=True)])
        return np.where(there.reshape(-1, *[1] * (rows.ndim - 1)), rows, blank.astype(rows.dtype))

    def part(self, prefix: str) -> Remembered:
        """Return the leaves below a prefix, under their names without it."""
        found, there = (
            {name[len(prefix) :]: leaf for name, leaf in part.items() if name.startswith(prefix)}
            for part in (self.leaves, self.present)
        )
        return Remembered(self.known, found, there)

    def but(self, named: Container[str]) -> dict[str, Array]:
        """Return the leaves that are not named, to be remembered as they are: None where a party has none."""
        found = {}
        for name, rows in self.leaves.items():
            if name not in named:
                there = self.present.get(name, self.known)
                some = zip(rows, there, strict=True)
                found[name] = rows if there.all() else ragged([row if has else None for row, has in some])
        return found

    def only(self, k: int) -> Remembered:
        one = slice(k, k + 1)
        parts = ({name: leaf[one] for name, leaf in part.items()} for part in (self.leaves, self.present))
        return Remembered(self.known[one], *parts)


NOBODY = Remembered(np.zeros(0, bool))


def ragged(rows: Sequence[Array | None]) -> Array:
    """Hold rows that may differ in shape as an array of arrays.

    Args:
        rows: one array for each party; None where a party has none.
    """
    held = np.empty(len(rows), object)
    for k, row in enumerate(rows):
        held[k] = row
    return held


@dataclass(frozen=True, eq=False)
class Group:
    """Some parties, as one question sees them. Iterating yields (x, y) of each party.

    Args:
        me: numbers of the parties.
        samples: samples of many parties end to end.
        at: for each party of the group, its position in `samples`.
        world: where the run takes place; all randomness comes from it.
        t: the number of the ask, from 0.
        split: which samples these are: "train", "local" (a party's test data) or "test" (the server's). Default
            "train".
        phase: the name of the method's phase. Default: none.
        memory: what the parties remember of their last answer. Default: nothing.
        cache: for each party what the method prepared from its samples. Default: nothing.
    """

    me: Array
    samples: Samples
    at: Array
    world: World
    t: int
    split: str = "train"
    phase: str = ""
    memory: Remembered = NOBODY
    cache: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        if self.memory is NOBODY:
            object.__setattr__(self, "memory", Remembered(np.zeros(len(self.me), bool)))

    def __len__(self) -> int:
        return len(self.me)

    @cached_property
    def size(self) -> Array:
        """Samples of every party of the group."""
        return np.asarray(self.samples.offsets[self.at + 1] - self.samples.offsets[self.at], np.int64)

    @cached_property
    def rows(self) -> Array:
        """Rows of x and y, (parties, most samples); what lies beyond a party's size repeats its first row."""
        position = np.arange(max(int(self.size.max(initial=0)), 1))
        position = np.where(position < self.size[:, None], position, 0) + self.samples.offsets[self.at][:, None]
        position = np.minimum(position, max(int(self.samples.offsets[-1]) - 1, 0))  # the last party may have none
        return position if self.samples.index is None else self.samples.index[position]

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        """Yield each party's own (x, y)."""
        for k in range(len(self)):
            rows = self.rows[k, : self.size[k]]
            whole = self.samples.index is None
            where = slice(int(rows[0]), int(rows[-1]) + 1) if whole and len(rows) else rows
            yield self.samples.x[where], self.samples.y[where]

    def only(self, k: int) -> Group:
        """Return the k-th party of the group as a group of its own."""
        one = slice(k, k + 1)
        return replace(self, me=self.me[one], at=self.at[one], memory=self.memory.only(k), cache=self.cache[one])


class Handler(Protocol):
    """A pure answer: (body, group) to (reply, memory), every leaf with a leading axis of parties.

    `split` names the samples it may see. `group_size` is how many parties it likes to answer for at once.
    """

    @property
    def split(self) -> str: ...
    @property
    def group_size(self) -> int: ...
    def cache_key(self, body: Tree) -> bytes | None:
        """Return what `prepare` depends on beside the samples; None: nothing is prepared."""
        return None

    def prepare(self, body: Tree, group: Group) -> Sequence[object]:
        """Work out what each party of the group needs again and again; kept per party and process."""
        return ()

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]: ...


@dataclass(frozen=True)
class PerParty(Handler):
    """Lift a function of one party to a handler of groups without memory.

    Args:
        answer: function from (body, x, y, group of one party) to the answer, a tree.
        split: the samples that it may use. Default "train".
        group_size: number of parties in one call. Default 1.
    """

    answer: Callable[[Tree, Array, Array, Group], Tree]
    split: str = "train"
    group_size: int = 1

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]:
        answers = [self.answer(body, x, y, group.only(k)) for k, (x, y) in enumerate(group)]
        reply: dict[str, object] = {name: np.stack([np.asarray(a[name]) for a in answers]) for name in answers[0]}
        return reply, NOTHING
