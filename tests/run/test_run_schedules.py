"""Learning rates over rounds: their formulas, their use in a run, and what none can be."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi
from typing import Any

import numpy as np
import pytest
from test_run_parts import digits, small

from atoll.methods import Cosine, Exponential, FedAvg, Steps
from atoll.models import softmax
from atoll.runtimes.run import simulate


@pytest.mark.parametrize(
    ("schedule", "formula"),
    [
        (Exponential(0.3, 0.5), lambda t: 0.3 * 0.5**t),
        (Steps(0.8, 3, 0.25), lambda t: [0.8, 0.8, 0.8, 0.2, 0.2, 0.2, 0.05, 0.05, 0.05, 0.0125, 0.0125, 0.0125][t]),
        (Cosine(0.5, 8, 0.1), lambda t: 0.1 + 0.4 * (1 + cos(pi * t / 8)) / 2 if t < 8 else 0.1),
    ],
    ids=["exponential", "steps", "cosine"],
)
def test_a_schedule_is_its_formula(schedule: Any, formula: Callable[[int], float]) -> None:
    assert [schedule(t) for t in range(12)] == pytest.approx([formula(t) for t in range(12)])


def test_the_ends_and_the_middle_of_a_cosine() -> None:
    cosine = Cosine(0.5, 8, 0.1)
    assert (cosine(0), cosine(4), cosine(8), cosine(99)) == pytest.approx((0.5, 0.3, 0.1, 0.1))


def test_a_run_trains_with_the_rate_of_its_round() -> None:
    """A rate that falls to almost nothing after the first round leaves the model where one round brought it."""
    one = simulate(small(method=FedAvg(softmax(), lr=0.1), rounds=1), digits(), workers=0)
    more = simulate(small(method=FedAvg(softmax(), lr=Steps(0.1, 1, 1e-30)), rounds=3), digits(), workers=0)
    assert np.array_equal(more.vector, one.vector)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Exponential(-1.0), "start=-1.0: a learning rate is a positive number"),
        (lambda: Exponential(0.1, 0.0), "factor=0.0: .* positive"),
        (lambda: Exponential(0.1, float("nan")), "factor=nan"),
        (lambda: Steps(0.0), "start=0.0"),
        (lambda: Steps(every=0), "every=0: .* at least 1"),
        (lambda: Steps(factor=-0.1), "factor=-0.1"),
        (lambda: Cosine(float("inf")), "start=inf"),
        (lambda: Cosine(rounds=0), "rounds=0: .* at least 1"),
        (lambda: Cosine(end=-0.1), "end=-0.1: .* below 0"),
    ],
)
def test_what_is_no_schedule_is_refused_when_it_is_made(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
