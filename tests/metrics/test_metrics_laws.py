"""Laws of every metric: sums add over parties, values do not depend on who holds which row, all is finite."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll.metrics.metric
from atoll.job.catalogue import PARTS, find
from atoll.metrics import (
    AUC,
    F1,
    MAE,
    MSE,
    R2,
    Accuracy,
    AveragePrecision,
    BalancedAccuracy,
    LogLoss,
    Metric,
    Perplexity,
    Recall,
    TopKAccuracy,
    better,
    layouts,
    party_values,
    totals,
    values,
)  # fmt: skip
from atoll.testing import check_part

METRICS: list[Metric] = [
    Accuracy(), BalancedAccuracy(), Recall(), F1(), LogLoss(), Perplexity(), TopKAccuracy(1), TopKAccuracy(3), AUC(),
    AUC(16), AveragePrecision(), AveragePrecision(2), MSE(), MAE(), R2(),
]  # fmt: skip
# (outputs, shape of the scores' rows): one score with and without its axis, two, several, sequences.
SHAPES: list[tuple[int, tuple[int, ...]]] = [(1, ()), (1, (1,)), (2, (2,)), (5, (5,)), (5, (3, 5)), (1, (4, 1))]
EXTREME = np.array([0.0, -0.0, 1e-300, 1.0, -1.0, 40.0, -800.0, 1e30, -1e30, 1e308, -1e308, np.inf, -np.inf, np.nan])
CASES = [
    pytest.param(m, outputs, shape, id=f"{m!r}-{shape}")
    for m in METRICS
    for outputs, shape in SHAPES
    if not (isinstance(m, TopKAccuracy) and m.k >= max(outputs, 2))
]


def rows(m: Metric, outputs: int, shape: tuple[int, ...], n: int, seed: int) -> tuple[Any, Any]:
    """Return scores and targets of n rows."""
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=(n, *shape)).astype(np.float32) * 3
    lead = (n, *shape[:-1])
    if m.kind == "classes":
        return scores, generator.integers(0, max(outputs, 2), lead).astype(np.int32)
    return scores, generator.normal(size=lead if outputs == 1 else (*lead, outputs)) + 2


def added(sums: Any) -> dict[str, Any]:
    return {name: leaf.sum(axis=0) for name, leaf in sums.items()}


def close(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(np.allclose(a[name], b[name], rtol=1e-9, atol=1e-12) for name in a)


@pytest.mark.parametrize(("m", "outputs", "shape"), CASES)
@given(n=st.integers(0, 40), parties=st.integers(1, 7), seed=st.integers(0, 2**20))
@settings(max_examples=12, deadline=None)
def test_sums_of_parties_add_up_to_the_sums_of_all_rows(
    m: Metric, outputs: int, shape: tuple[int, ...], n: int, parties: int, seed: int
) -> None:
    scores, y = rows(m, outputs, shape, n, seed)
    generator = np.random.default_rng(seed + 1)
    party = generator.integers(0, parties, n)  # some parties have no rows
    whole = m.sums(scores, y, np.zeros(n, np.int64), 1)
    dealt = m.sums(scores, y, party, parties)
    assert close(added(dealt), added(whole))
    assert close(m.values(added(dealt)), m.values(added(whole)))
    for k in range(parties):
        own = m.sums(scores[party == k], y[party == k], np.zeros((party == k).sum(), np.int8), 1)
        assert close({name: leaf[k] for name, leaf in dealt.items()}, added(own))
    order = generator.permutation(n)
    assert close(m.sums(scores[order], y[order], party[order], parties), dealt)


@pytest.mark.parametrize(("m", "outputs", "shape"), CASES)
def test_sums_have_the_shapes_of_the_layout_in_float64(m: Metric, outputs: int, shape: tuple[int, ...]) -> None:
    for n in (0, 1, 9):
        scores, y = rows(m, outputs, shape, n, 3)
        sums = m.sums(scores, y, np.full(n, 2), 4)
        assert {name: leaf.shape[1:] for name, leaf in sums.items()} == dict(m.layout(outputs))
        assert all(leaf.dtype == np.float64 and len(leaf) == 4 for leaf in sums.values())
        for leaf in sums.values():
            assert not leaf[[0, 1, 3]].any(), "a party without rows adds nothing"
        found = totals([m], scores, y, np.full(n, 2), 4)
        assert {name: leaf.shape[1:] for name, leaf in found.items()} == layouts([m], outputs)


@pytest.mark.parametrize(("m", "outputs", "shape"), CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_everything_is_finite_whatever_the_scores(m: Metric, outputs: int, shape: tuple[int, ...], dtype: Any) -> None:
    generator = np.random.default_rng(0)
    with np.errstate(over="ignore"):
        extreme = EXTREME.astype(dtype)
    for n in (1, 2, 50):
        _, y = rows(m, outputs, shape, n, n)
        drawn = generator.choice(extreme, (6, n, *shape))
        for scores in [*drawn, *(np.full((n, *shape), value, dtype) for value in extreme)]:
            sums = m.sums(scores, y, np.zeros(n, np.int64), 1)
            assert all(np.isfinite(leaf).all() for leaf in sums.values())
            assert all(np.isfinite(value) for value in m.values(added(sums)).values())


@pytest.mark.parametrize(("m", "outputs", "shape"), CASES)
def test_values_of_noised_sums_are_finite_and_in_range(m: Metric, outputs: int, shape: tuple[int, ...]) -> None:
    scores, y = rows(m, outputs, shape, 20, 5)
    sums = added(m.sums(scores, y, np.zeros(20, np.int64), 1))
    generator = np.random.default_rng(1)
    for scale in (0.0, 1.0, 30.0, 1e6):
        noised = {name: leaf + generator.normal(0, scale, leaf.shape) for name, leaf in sums.items()}
        for value in m.values(noised).values():
            assert np.isfinite(value)
            assert value <= 1.0 if m.better == "high" else value >= 0.0
            assert m.better == "low" or m.name == "r2" or value >= 0.0


@pytest.mark.parametrize(("m", "outputs", "shape"), CASES)
def test_values_of_many_parties_at_once_are_those_of_each(m: Metric, outputs: int, shape: tuple[int, ...]) -> None:
    scores, y = rows(m, outputs, shape, 60, 8)
    sums = totals([m], scores, y, np.arange(60) % 4, 5)
    each = party_values([m], sums)
    for k in range(5):
        assert close({name: leaf[k] for name, leaf in each.items()}, values([m], {n: v[k] for n, v in sums.items()}))


@pytest.mark.parametrize(("m", "outputs", "shape"), CASES)
def test_names_and_directions_agree(m: Metric, outputs: int, shape: tuple[int, ...]) -> None:
    scores, y = rows(m, outputs, shape, 10, 2)
    found = values([m], added(totals([m], scores, y, np.zeros(10, np.int64), 1)))
    assert m.name in found
    assert all(name == m.name or name.startswith(f"{m.name}.") for name in found)
    assert better([m], outputs) == dict.fromkeys(found, m.better)
    assert all(isinstance(value, float) for value in m.values(added(m.sums(scores, y, np.zeros(10, int), 1))).values())
    assert m.better in ("high", "low")
    assert m.kind in ("classes", "real", "any")
    assert type(m).better == m.better, "a constant of the class"


@pytest.mark.parametrize(("m", "outputs", "shape"), CASES)
def test_a_perfect_model_is_at_least_as_good_as_a_random_one(m: Metric, outputs: int, shape: tuple[int, ...]) -> None:
    scores, y = rows(m, outputs, shape, 60, 4)
    if m.kind == "real":
        perfect = y.reshape(scores.shape)
    elif outputs == 1:
        perfect = np.where(y == 1, 20.0, -20.0).reshape(scores.shape)
    else:
        perfect = 40.0 * np.eye(outputs)[y]
    party = np.zeros(60, np.int64)
    best, other = (m.values(added(m.sums(s, y, party, 1)))[m.name] for s in (perfect, scores))
    assert best == pytest.approx({"high": 1.0, "low": float(m.name == "perplexity")}[m.better], abs=1e-6)
    assert best >= other if m.better == "high" else best <= other


@pytest.mark.parametrize("m", METRICS, ids=repr)
def test_every_metric_is_a_record(m: Metric) -> None:
    check_part(m)


def test_the_catalogue_holds_every_metric() -> None:
    assert {find("metric", name) for name in PARTS["metric"]} == {type(m) for m in METRICS}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_small_integers_of_parties_and_labels_do_not_overflow(dtype: Any) -> None:
    scores = np.random.default_rng(0).normal(size=(200, 5))
    y, party = np.arange(200) % 5, np.arange(200) % 100
    for m in METRICS:
        if m.kind == "classes":
            small = m.sums(scores, y.astype(dtype), party.astype(dtype), 100)
            assert close(small, m.sums(scores, y, party, 100))


@pytest.mark.parametrize("dtype", [np.bool_, np.float32, np.float64])
def test_labels_may_be_whole_numbers_of_any_type(dtype: Any) -> None:
    scores, y, party = np.array([3.0, -1.0, 2.0]), np.array([1, 0, 0]), np.zeros(3, int)
    assert close(Accuracy().sums(scores, y.astype(dtype), party, 1), Accuracy().sums(scores, y, party, 1))


def test_the_examples_in_docstrings_run() -> None:
    package = Path(inspect.getfile(atoll.metrics)).parent
    for path in package.glob("*.py"):
        module = __import__(f"atoll.metrics.{path.stem}", fromlist=["x"]) if path.stem != "__init__" else atoll.metrics
        assert doctest.testmod(module, raise_on_error=True).failed == 0
    assert doctest.testmod(atoll.metrics.metric).attempted >= 5
