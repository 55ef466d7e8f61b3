"""What a party is: a name, data, memory, an address for its randomness, and handlers that answer questions.

A handler answers for a *group* of parties at once: every array has a leading axis of parties. A simulator hands it a
hundred small parties, a real party hands it itself. That one group equals many singles is a law (`atoll.testing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from atoll.core.tree import Array, Tree


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


@dataclass(frozen=True, eq=False)
class Group:
    """Some parties, as one question sees them. `at` says where their samples stand in `samples`."""

    me: Array
    samples: Samples
    at: Array
    seed: int
    t: int
    memory: Mapping[str, Array] = field(default_factory=dict)

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
        memory = {name: leaf[k : k + 1] for name, leaf in self.memory.items()}
        return replace(self, me=self.me[k : k + 1], at=self.at[k : k + 1], memory=memory)


Memory = Mapping[str, Array]


class Handler(Protocol):
    """A pure answer: (body, group) to (reply, memory), every leaf with a leading axis of parties.

    `room` names the samples it may see: "train", "own" (a party's test data) or "test" (the server's). `width` is how
    many parties it likes to answer for at once.
    """

    @property
    def room(self) -> str: ...
    @property
    def width(self) -> int: ...
    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]: ...


@dataclass(frozen=True)
class PerParty:
    """Lift a function of one party, (body, x, y, group of one) to a tree, to a handler of groups without memory."""

    answer: Callable[[Tree, Array, Array, Group], Tree]
    room: str = "train"
    width: int = 1

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]:
        answers = [self.answer(body, x, y, group.only(k)) for k, (x, y) in enumerate(group)]
        reply: dict[str, Any] = {name: np.stack([np.asarray(a[name]) for a in answers]) for name in answers[0]}
        return reply, group.memory
