"""What passes between a party and its child processes: what it was told, what it holds, what a job would do to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from atoll.core.question import Layout, Question
from atoll.core.wire import Combine, Wire
from atoll.core.world import World
from atoll.data.schema import TableSchema
from atoll.runtimes.local.worker import Worker
from atoll.runtimes.network.party.policy import Manifest, Policy
from atoll.runtimes.network.party.spending import UNLIMITED, AnswerCost


class OwnSummary(NamedTuple):
    """What a party says of its data before it knows a job."""

    samples: int
    sample: Layout
    columns: TableSchema | None  # where they have names


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
    conversations: Mapping[str, tuple[Combine, Wire]]  # by phase: sums that take more than one answer
    answers: int  # at most, of all phases together
    planned: Mapping[str, int] = field(default_factory=dict)  # by phase; without, only their total is limited
    costs: Mapping[str, AnswerCost] = field(
        default_factory=dict
    )  # of an answer, by phase; nothing bounds that of others
    plan: Counter[AnswerCost] = field(default_factory=Counter)  # of the whole job, with all that it allows
    evaluations: int = 0  # on this party's own test data, at most
    evaluating: AnswerCost = UNLIMITED  # what each of them costs
    a_round: int = 1  # answers of a round, as a policy counts rounds
    seed: int = 0  # of the job
    batches: tuple[tuple[int, ...], ...] = ()  # that cohorts are made of, as the job cuts them

    def allows(self, given: Counter[str]) -> bool:
        """Tell whether the job has so many answers, by phase.

        A phase beyond its plan uses up what the job has over: a server may leave out those with more noise.
        """
        over = (given - Counter(self.planned)).total() if self.planned else given.total()
        return over <= self.answers - sum(self.planned.values())
