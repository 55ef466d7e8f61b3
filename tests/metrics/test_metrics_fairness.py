"""How evenly values are spread over parties, and that spread is what summaries of evaluations have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.metrics import jain, spread, worst_fraction

VALUES = st.lists(st.just(0.0) | st.floats(1e-6, 1e6), min_size=1, max_size=50)


def test_by_hand() -> None:
    values = np.arange(20.0)
    assert worst_fraction(values) == 0.5
    assert worst_fraction(values, 0.1, "low") == 18.5
    assert worst_fraction(values, 1.0) == values.mean()
    assert worst_fraction([3.0, 1.0, 2.0]) == 1.0
    assert worst_fraction(np.arange(100.0), 0.29) == 14.0
    assert jain([1.0, 1.0, 1.0]) == pytest.approx(1.0)
    assert jain([5.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain([1.0, 3.0]) == pytest.approx(16 / 20)
    assert jain([0.0, 0.0]) == 1.0
    assert spread([0.5, 0.75, 1.0]) == {"mean": 0.75, "worst10": 0.5, "best": 1.0}
    assert spread([0.5, 0.75, 1.0], "low") == {"mean": 0.75, "worst10": 1.0, "best": 0.5}
    assert spread([0.5]) == spread([]) == {}


@given(VALUES, st.sampled_from(["high", "low"]), st.floats(0.01, 1.0))
def test_worst_is_between_the_worst_and_the_mean(values: list[float], better: str, fraction: float) -> None:
    sign = 1 if better == "high" else -1
    worst, signed = sign * worst_fraction(values, fraction, better), sign * np.array(values)
    assert signed.min() - 1e-6 <= worst <= signed.mean() + 1e-6


@given(VALUES, st.floats(1e-100, 1e100))
def test_jain_is_from_one_nth_to_one_and_knows_no_unit(values: list[float], unit: float) -> None:
    assert 1 / len(values) - 1e-9 <= jain(values) <= 1 + 1e-9
    assert jain(np.array(values) * unit) == pytest.approx(jain(values), rel=1e-6)


@pytest.mark.parametrize("name", ["correct", "squares"])
def test_spread_is_that_of_summaries(name: str) -> None:
    """To the bit: figures of runs do not change when they are made by this function."""
    from atoll.core.effects import Replies
    from atoll.models import linear, softmax
    from atoll.programs.evaluate import summarise

    generator = np.random.default_rng(3)
    n = generator.integers(1, 30, 37).astype(float)
    each = {"n": n, "loss": n, name: np.floor(generator.uniform(0, n)), "y": n, "yy": n * n}
    if name == "correct":
        del each["y"], each["yy"]
    model = softmax() if name == "correct" else linear()
    _, summary = summarise(Replies(np.arange(37), each), model.bind((1,), 2 if name == "correct" else 1).evaluation)
    metric, better = ("accuracy", "high") if name == "correct" else ("mse", "low")
    found = spread(each[name] / n, better)
    assert found == {k: summary[f"{metric}.{k}"] for k in ("mean", "worst10", "best")}


@pytest.mark.parametrize(("call", "words"), [
    (lambda: worst_fraction([]), "one or more parties"), (lambda: worst_fraction([1.0], 0.0), "above 0"),
    (lambda: worst_fraction([1.0], 1.5), "at most 1"), (lambda: worst_fraction([1.0], 0.1, "up"), "'high' or 'low'"),
    (lambda: spread([1.0, 2.0], "best"), "'high' or 'low'"), (lambda: jain([-1.0, 2.0]), "at least 0, got -1"),
    (lambda: jain(np.ones((2, 2))), "a vector"),
])  # fmt: skip
def test_what_cannot_be_is_refused(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
