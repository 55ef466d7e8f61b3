"""What passes between a party and its child processes: what it was told, what it holds, what a job would do to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atoll.runtimes.network.policy import Manifest
from atoll.runtimes.network.trees import Layout
from atoll.runtimes.workers import Worker


@dataclass(frozen=True)
class Seat:
    """What a party is told on joining, and its own recipe: enough to work out everything else anywhere."""

    recipe: Mapping[str, Any]
    job: str
    number: int
    parties: int
    classes: int
    most_length: float | None = None
    seeded: bool = False
    sample: Layout | None = None  # of an edge, which has no recipe

    @property
    def first(self) -> int:
        return self.number

    def borrow(self) -> Worker:
        """Make the worker that trains, in the process that will."""
        from atoll.party import worker_of

        return worker_of(self)


@dataclass(frozen=True)
class Holding:
    """What a party says of its data before it knows any job."""

    samples: int
    sample: Layout


@dataclass(frozen=True)
class Hidden:
    """A sum that hides its vectors: how, and what a vector is."""

    combine: Any  # a Combine with a side for real parties
    size: int
    width: int  # bits of the ring's integers
    value: int  # bits of one of its numbers, with the sign
    schema: bytes  # hash of the model's names and shapes
    floor: int


@dataclass(frozen=True)
class Assessment:
    """What a job would do to this party, from the job itself and not from what the server says of it."""

    manifest: Manifest
    words: str
    questions: Mapping[str, Layout]  # what may be asked, and what it looks like
    spent: tuple[float, ...]  # ε after so many answers; empty where nothing is promised
    hidden: Hidden | None
    answers: int  # at most
