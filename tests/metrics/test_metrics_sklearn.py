"""Metrics agree with scikit-learn's; those of the order of scores within the bound that they state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as oracle
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

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
    totals,
    values,
)  # fmt: skip


def measure(m: Metric, scores: Any, y: Any, parties: int = 7) -> dict[str, float]:
    """Measure with rows dealt to parties."""
    sums = totals([m], scores, y, np.arange(len(y)) % parties, parties)
    return values([m], {name: leaf.sum(axis=0) for name, leaf in sums.items()})


def fitted(x: Any, y: Any) -> tuple[Any, Any]:
    """Return logits of a logistic regression for rows that it has not seen, and their labels."""
    x = (x - x.mean(0)) / (x.std(0) + 1e-9)
    seen, rest, y_seen, y_rest = train_test_split(x, y, test_size=0.5, random_state=0, stratify=y)
    return LogisticRegression(max_iter=2000).fit(seen, y_seen).decision_function(rest), y_rest


@pytest.fixture(scope="module")
def cancer() -> tuple[Any, Any]:
    return fitted(*load_breast_cancer(return_X_y=True))


@pytest.fixture(scope="module")
def digit() -> tuple[Any, Any]:
    x, y = load_digits(return_X_y=True)
    scores, y = fitted(x, y)
    return scores + np.random.default_rng(0).normal(0, 4, scores.shape), y  # so that a good number is wrong


def softmax(scores: Any) -> Any:
    e = np.exp(scores - scores.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_ten_classes(digit: tuple[Any, Any]) -> None:
    scores, y = digit
    said, p = scores.argmax(1), softmax(scores)
    assert 0.5 < oracle.accuracy_score(y, said) < 0.95
    assert measure(Accuracy(), scores, y)["accuracy"] == pytest.approx(oracle.accuracy_score(y, said))
    balanced = oracle.balanced_accuracy_score(y, said)
    assert measure(BalancedAccuracy(), scores, y)["balanced_accuracy"] == pytest.approx(balanced)
    recall, f1 = measure(Recall(), scores, y), measure(F1(), scores, y)
    assert recall["recall"] == pytest.approx(oracle.recall_score(y, said, average="macro"))
    assert f1["f1"] == pytest.approx(oracle.f1_score(y, said, average="macro"))
    for c, (r, f) in enumerate(
        zip(oracle.recall_score(y, said, average=None), oracle.f1_score(y, said, average=None), strict=True)
    ):
        assert recall[f"recall.{c}"] == pytest.approx(r)
        assert f1[f"f1.{c}"] == pytest.approx(f)
    assert measure(LogLoss(), scores, y)["log_loss"] == pytest.approx(oracle.log_loss(y, p))
    assert measure(Perplexity(), scores, y)["perplexity"] == pytest.approx(np.exp(oracle.log_loss(y, p)))
    for k in (1, 2, 3, 5, 9):
        assert measure(TopKAccuracy(k), scores, y)[f"top_{k}"] == pytest.approx(oracle.top_k_accuracy_score(y, p, k=k))
    auc = oracle.roc_auc_score(y, p, multi_class="ovr", average="macro")
    assert measure(AUC(), scores, y)["auc"] == pytest.approx(auc, abs=1e-3)
    precision = oracle.average_precision_score(np.eye(10)[y], p, average="macro")
    assert measure(AveragePrecision(), scores, y)["average_precision"] == pytest.approx(precision, abs=1e-3)


def test_two_classes(cancer: tuple[Any, Any]) -> None:
    scores, y = cancer
    said, p = (scores > 0).astype(int), 1 / (1 + np.exp(-scores))
    assert measure(Accuracy(), scores, y)["accuracy"] == pytest.approx(oracle.accuracy_score(y, said))
    assert measure(F1(), scores, y)["f1.1"] == pytest.approx(oracle.f1_score(y, said))
    assert measure(Recall(), scores, y)["recall.1"] == pytest.approx(oracle.recall_score(y, said))
    assert measure(LogLoss(), scores, y)["log_loss"] == pytest.approx(oracle.log_loss(y, p))


@pytest.mark.parametrize("noise", [0.0, 3.0])
@pytest.mark.parametrize("scale", [0.3, 1.0, 10.0])
def test_histograms_of_real_scores_are_within_a_thousandth(cancer: tuple[Any, Any], noise: float, scale: float) -> None:
    scores, y = cancer
    scores = (scores + np.random.default_rng(1).normal(0, noise, len(y))) * scale  # flat and overconfident models too
    assert measure(AUC(), scores, y)["auc"] == pytest.approx(oracle.roc_auc_score(y, scores), abs=1e-3)
    exact = oracle.average_precision_score(y, scores)
    assert measure(AveragePrecision(), scores, y)["average_precision"] == pytest.approx(exact, abs=1e-3)


@given(
    st.lists(st.tuples(st.floats(-60, 60), st.booleans()), min_size=2, max_size=60),
    st.sampled_from([2, 3, 8, 64, 1024]),
)
@settings(max_examples=200, deadline=None)
def test_histograms_are_within_the_bound_that_they_state(rows: list[tuple[float, bool]], bins: int) -> None:
    scores, y = np.array([s for s, _ in rows]), np.array([int(label) for _, label in rows])
    if y.min() == y.max():
        return
    sums = AUC(bins).sums(scores, y, np.zeros(len(y), int), 1)
    positive, negative = sums["positive"][0, 0], sums["negative"][0, 0]
    bound = (positive * negative).sum() / positive.sum() / negative.sum() / 2
    assert abs(measure(AUC(bins), scores, y)["auc"] - oracle.roc_auc_score(y, scores)) <= bound + 1e-9
    above, above_negative = (leaf[::-1].cumsum()[::-1] - leaf for leaf in (positive, negative))
    with np.errstate(invalid="ignore"):
        low = (above + 1) / (above + 1 + above_negative + negative)
        high = (above + positive) / (above + positive + above_negative)
        bound = np.where(positive > 0, positive * (high - low), 0.0).sum() / positive.sum()
    exact = oracle.average_precision_score(y, scores)
    assert abs(measure(AveragePrecision(bins), scores, y)["average_precision"] - exact) <= bound + 1e-9


@given(st.lists(st.tuples(st.integers(0, 63), st.booleans()), min_size=2, max_size=60))
@settings(max_examples=200, deadline=None)
def test_histograms_are_exact_where_different_scores_are_in_different_bins(rows: list[tuple[int, bool]]) -> None:
    u = (np.array([b for b, _ in rows]) + 0.5) / 32 - 1  # the middle of bin b of 64
    scores, y = 4 * u / (1 - np.abs(u)), np.array([int(label) for _, label in rows])
    if y.min() == y.max():
        return
    assert measure(AUC(64), scores, y)["auc"] == pytest.approx(oracle.roc_auc_score(y, scores), abs=1e-12)
    exact = oracle.average_precision_score(y, scores)
    assert measure(AveragePrecision(64), scores, y)["average_precision"] == pytest.approx(exact, abs=1e-12)


def test_one_against_the_others_tells_probabilities_apart_that_round_to_one() -> None:
    margin = np.concatenate([np.linspace(40, 50, 15), np.linspace(60, 90, 15)])
    scores = np.stack([margin, np.zeros(30), np.zeros(30)], axis=1)
    y = (np.arange(30) < 15).astype(int)
    assert oracle.roc_auc_score(y == 0, softmax(scores)[:, 0]) == 0.5, "all probabilities are 1.0"
    assert measure(AUC(), scores, y)["auc"] == 1.0


@pytest.mark.parametrize("outputs", [1, 3])
def test_numbers(outputs: int) -> None:
    generator = np.random.default_rng(0)
    y = generator.normal(5, 2, (300, outputs))
    scores = y + generator.normal(0, 1, y.shape)
    y = y[:, 0] if outputs == 1 else y
    assert measure(MSE(), scores, y)["mse"] == pytest.approx(oracle.mean_squared_error(y, scores))
    assert measure(MAE(), scores, y)["mae"] == pytest.approx(oracle.mean_absolute_error(y, scores))
    assert measure(R2(), scores, y)["r2"] == pytest.approx(oracle.r2_score(y, scores))
