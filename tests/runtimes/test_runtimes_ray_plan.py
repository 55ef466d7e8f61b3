"""Whoever answers which chunks, in whatever order and whoever is lost: the total is the sum in the chunks' order."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from math import ceil, log
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.runtimes.local.worker import Chunk, ChunkResult
from atoll.runtimes.ray.actor import Actor
from atoll.runtimes.ray.plan import LAP, LAST, Add, Plan


def sums(c: int) -> dict[str, Any]:
    """Sums of many magnitudes, so that another order gives other bits."""
    rng = np.random.default_rng(c)
    return {"delta": (rng.normal(size=5) * 10.0 ** rng.integers(-6, 6, 5)).astype(np.float32), "n": np.float64(0.1 * c)}


def left(count: int) -> dict[str, Any]:
    return {name: reduce(lambda a, b: a + b, [sums(c)[name] for c in range(count)]) for name in ("delta", "n")}


class Adder:
    """A worker that only knows the numbers of its chunks."""

    def answer(self, chunk: Chunk, body: Any) -> ChunkResult:
        return ChunkResult(sums(chunk.t), {"me": chunk.me}, {}, {"work": 0.0, "compile": 0.0})


@dataclass
class Cluster:
    """Actors whose calls are done in any order: what `RayPool` has, without Ray."""

    count: int
    actors: int
    capacity: int
    answering: list[tuple[int, range]] = field(default_factory=list)
    holding: list[tuple[int, int, Any]] = field(default_factory=list)
    adding: Add | None = None
    total: Any = None
    travels: int = 0

    def __post_init__(self) -> None:
        self.plan = Plan(self.count)
        self.hands = [Actor(Adder()) for _ in range(self.actors)]  # type: ignore[arg-type]

    def deal(self) -> None:
        for h in 2 * list(range(self.actors)):
            if chunks := self.plan.take(h, self.actors, self.capacity):
                self.answering.append((h, chunks))
        self.adding = self.adding or self.plan.add()
        if not self.adding and (holder := self.plan.hold()) is not None:
            self.holding.append((holder, self.plan.added, self.total))

    def step(self, i: int) -> None:
        """Do one of the calls; the last is to add, if there is something to add."""
        if i < len(self.answering):
            h, chunks = self.answering.pop(i)
            some = {c: Chunk("sum", c, np.array([c]), None, ("delta", "n")) for c in chunks}
            failed, results, _ = self.hands[h].answer(1, some, {})
            assert failed is None
            assert {c: (r.each["me"].tolist(), r.sums) for c, r in results.items()} == {c: ([c], {}) for c in chunks}
            self.plan.answered(h, chunks)
        elif i < len(self.answering) + len(self.holding):
            h, before, total = self.holding.pop(i - len(self.answering))
            self.hands[h].hold(1, before, total)
        elif self.adding:
            _, self.total = self.hands[self.adding.actor].add(self.adding.chunks, self.total)
            self.plan.has_added(self.adding)
            self.adding, self.travels = None, self.travels + 1

    def calls(self) -> int:
        return len(self.answering) + len(self.holding) + bool(self.adding)

    def waiting(self) -> int:
        return sum(len(hand._sums) for hand in self.hands)

    def lose(self, h: int, blame: bool) -> None:
        self.answering = [call for call in self.answering if call[0] != h]
        self.holding = [call for call in self.holding if call[0] != h]
        self.adding = None if self.adding and self.adding.actor == h else self.adding
        for c in self.plan.lost(h):
            self.plan.tries[c] += blame
        self.hands[h] = Actor(Adder())  # type: ignore[arg-type]

    def lose_total(self) -> None:
        """Let the next actor find that the total that was given to it is gone."""
        self.plan.lost_total()
        self.adding = self.total = None


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 40), st.data())
def test_the_total_is_the_sum_in_the_order_of_the_chunks(
    count: int, actors: int, capacity: int, data: st.DataObject
) -> None:
    work = Cluster(count, actors, capacity)
    losses = data.draw(st.dictionaries(st.integers(0, 60), st.sampled_from(["total", *range(actors)]), max_size=4))
    step = 0
    while work.plan.added < count:
        work.deal()
        assert work.calls()  # somebody has something to do: nobody waits for ever
        if losses.get(step) == "total":
            work.lose_total()
        elif step in losses:
            work.lose(int(losses[step]), data.draw(st.booleans()))
        else:
            work.step(data.draw(st.integers(0, work.calls() - 1)))
        # What waits does not grow with the cohort.
        assert losses or work.waiting() <= (capacity + max(capacity // 2, 1)) * actors
        step += 1
    expected = left(count)
    assert work.total["delta"].tobytes() == expected["delta"].tobytes()
    assert work.total["n"] == expected["n"]
    assert isinstance(work.total["n"], np.float64)
    assert work.waiting() == 0 or losses


@pytest.mark.parametrize("count", [1, 7, 40, 81, 1000])
@pytest.mark.parametrize("actors", [1, 2, 3, 4])
def test_few_totals_travel_where_all_are_equally_fast(count: int, actors: int) -> None:
    """An actor that has the total adds as it answers: what is left at the end is a part of the last lap."""
    work = Cluster(count, actors, capacity=2 * count)
    done = [0] * actors
    while work.plan.added < count:
        work.deal()
        if work.holding:
            work.step(len(work.answering))
            continue
        i = min(range(len(work.answering)), key=lambda i: done[work.answering[i][0]], default=0)
        if work.answering and not work.adding:
            h, chunks = work.answering[i]
            done[h] += len(chunks)
            work.step(i)
        else:
            work.step(work.calls() - 1)
    laps = 1 + ceil(max(log(count / actors / LAST) / -log(1 - LAP), 0))
    assert work.travels <= min(count, (laps + 1) * actors)


def answered(plan: Plan, actor: int, actors: int, capacity: int) -> range:
    chunks = plan.take(actor, actors, capacity)
    if chunks:
        plan.answered(actor, chunks)
    return chunks


def test_an_idle_actor_takes_half_of_what_another_has_not_begun() -> None:
    plan = Plan(16)
    assert [answered(plan, h, 2, 16) for h in (0, 1, 1, 1, 1, 1, 1, 1)] == [
        range(2), range(8, 10), range(10, 12), range(12, 13), range(13, 14), range(14, 15), range(15, 16), range(5, 6)
    ]  # fmt: skip


def test_chunks_over_which_an_actor_died_go_one_by_one_with_no_other_call() -> None:
    plan = Plan(16)
    assert [plan.take(0, 1, 32) for _ in range(3)] == [range(12), range(12, 13), range(0)]
    for c in plan.lost(0):
        plan.tries[c] += 1
    assert [plan.take(0, 1, 32) for _ in range(2)] == [range(1), range(0)]
    plan.answered(0, range(1))
    assert [answered(plan, 0, 1, 32) for _ in range(13)] == [*(range(c, c + 1) for c in range(1, 13)), range(13, 14)]


def test_chunks_far_ahead_of_the_total_wait() -> None:
    plan = Plan(100)
    taken = [c for _ in range(30) for h in (0, 1) for c in answered(plan, h, 2, 4)]
    assert sorted(taken) == list(range(8))


def test_an_actor_forgets_the_sums_of_an_earlier_question() -> None:
    actor = Actor(Adder())  # type: ignore[arg-type]
    for question in (1, 2):
        actor.answer(question, {question: Chunk("sum", question, np.array([0]), None, ("n",))}, {})
    assert list(actor._sums) == [2]
