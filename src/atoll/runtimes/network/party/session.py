"""What passes between a party and its child processes: what it was told, what it holds, what a job would do to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from atoll.core.question import Layout, Question
from atoll.core.wire import Combine, Wire
from atoll.core.world import World
from atoll.runtimes.local.worker import Worker
from atoll.runtimes.network.party.policy import Manifest, Policy


@dataclass(frozen=True)
class Session:
    """What a party is told on joining, and its own policy: enough to work out everything else anywhere."""

    policy: Policy
    job: str
    number: int
    parties: int
    classes: int
    world: Callable[[int], World] = World.real
    sample: Layout | None = None  # of an edge, which has no data

    @property
    def first(self) -> int:
        return self.number

    def create(self) -> Worker:
        """Make the worker that trains, in the process that will."""
        from atoll.runtimes.network.party.assess import worker_of

        return worker_of(self)


@dataclass(frozen=True)
class Assessment:
    """What a job would do to this party, from the job itself and not from what the server says of it."""

    manifest: Manifest
    words: str
    questions: Mapping[str, Question]  # what may be asked
    spent: tuple[float, ...]  # ε after so many answers; empty where nothing is promised
    conversations: Mapping[str, tuple[Combine, Wire]]  # by phase: sums that take more than one answer
    answers: int  # at most
    batches: tuple[tuple[int, ...], ...] = ()  # that cohorts are made of, as the job cuts them
    cycle: int = 1  # answers of a round; 0 where the method decides as it runs

    def counted(self, given: Mapping[str, int]) -> int:
        """Return for how many answers a party accounts that has given these, by phase.

        Of every phase as many as of the one that was asked most: a server may leave out those with more noise.
        """
        return max(sum(given.values()), self.cycle * max(given.values(), default=0))
