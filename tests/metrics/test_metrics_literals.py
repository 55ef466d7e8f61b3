"""Values that can be checked by hand, and what metrics refuse."""

from __future__ import annotations

from math import exp, log
from typing import Any

import numpy as np
import pytest

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
)  # fmt: skip


def measure(m: Metric, scores: Any, y: Any) -> dict[str, float]:
    scores, y = np.asarray(scores, float), np.asarray(y)
    sums = m.sums(scores, y, np.zeros(len(scores), np.int64), 1)
    return {name: float(value) for name, value in m.values({name: leaf[0] for name, leaf in sums.items()}).items()}


# Labels 0 0 0 1 1 2; predicted 0 0 1 1 0 2.
THREE = np.eye(3)[[0, 0, 1, 1, 0, 2]]
LABELS = [0, 0, 0, 1, 1, 2]


@pytest.mark.parametrize(("m", "expected"), [
    (Accuracy(), {"accuracy": 4 / 6}),
    (BalancedAccuracy(), {"balanced_accuracy": (2 / 3 + 1 / 2 + 1) / 3}),
    (Recall(), {"recall": (2 / 3 + 1 / 2 + 1) / 3, "recall.0": 2 / 3, "recall.1": 1 / 2, "recall.2": 1.0}),
    (F1(), {"f1": (2 / 3 + 1 / 2 + 1) / 3, "f1.0": 4 / 6, "f1.1": 2 / 4, "f1.2": 1.0}),
    (TopKAccuracy(1), {"top_1": 4 / 6}),
    (TopKAccuracy(2), {"top_2": 5 / 6 + 1 / 6}),  # the two that are wrong have their label second
    (LogLoss(), {"log_loss": log(exp(1) + 2) - 4 / 6}),
    (Perplexity(), {"perplexity": exp(log(exp(1) + 2) - 4 / 6)}),
], ids=repr)  # fmt: skip
def test_three_classes_by_hand(m: Metric, expected: dict[str, float]) -> None:
    assert measure(m, THREE, LABELS) == pytest.approx(expected, abs=1e-12)


def test_one_score_is_the_logit_of_the_second_class() -> None:
    one, two, y = [2.0, -1.0, 0.5, -3.0], [[0, 2.0], [1.0, 0], [0, 0.5], [3.0, 0]], [1, 1, 0, 0]
    for m in (Accuracy(), BalancedAccuracy(), Recall(), F1(), LogLoss(), Perplexity(), AUC(), AveragePrecision()):
        single, column, pair = measure(m, one, y), measure(m, np.reshape(one, (4, 1)), y), measure(m, two, y)
        assert single == column == pytest.approx(pair)
    assert measure(LogLoss(), [log(3.0)], [1]) == pytest.approx({"log_loss": log(4 / 3)})


def test_auc_and_average_precision_by_hand() -> None:
    # By falling score: + - + -. Of 4 pairs 3 are in order; precision at the positives is 1 and 2/3.
    assert measure(AUC(), [4.0, 3.0, 2.0, 1.0], [1, 0, 1, 0]) == {"auc": 0.75}
    assert measure(AveragePrecision(), [4.0, 3.0, 2.0, 1.0], [1, 0, 1, 0]) == pytest.approx(
        {"average_precision": 5 / 6}
    )
    # Equal scores count half; a bin's precision is that at its end.
    assert measure(AUC(), [0.0] * 4, [1, 0, 1, 0]) == {"auc": 0.5}
    assert measure(AveragePrecision(), [0.0] * 4, [1, 0, 0, 0]) == {"average_precision": 0.25}
    # Two bins know the sign only.
    assert measure(AUC(2), [4.0, 3.0, -2.0, -1.0], [1, 0, 0, 0]) == pytest.approx({"auc": (0.5 + 1 + 1) / 3})


def test_scores_that_are_not_numbers_tell_nothing() -> None:
    assert measure(AUC(), [np.nan] * 4, [1, 0, 1, 0]) == {"auc": 0.5}
    assert measure(LogLoss(), [[np.nan, 0.0]], [0])["log_loss"] == pytest.approx(36.0436534)
    assert measure(MSE(), [np.nan], [0.0]) == {"mse": 1e200}


@pytest.mark.parametrize(("m", "expected"), [
    (MSE(), {"mse": (1 + 0 + 4) / 3}), (MAE(), {"mae": 1.0}), (R2(), {"r2": 1 - 5 / 2}),
], ids=repr)  # fmt: skip
def test_numbers_by_hand(m: Metric, expected: dict[str, float]) -> None:
    assert measure(m, [2.0, 2.0, 5.0], [1.0, 2.0, 3.0]) == pytest.approx(expected)
    assert measure(m, [[2.0], [2.0], [5.0]], [1.0, 2.0, 3.0]) == pytest.approx(expected)


def test_several_outputs_count_alike() -> None:
    scores, y = [[1.0, 0.0], [3.0, 4.0]], [[1.0, 0.0], [3.0, 2.0]]
    assert measure(MSE(), scores, y) == {"mse": 1.0}
    assert measure(MAE(), scores, y) == {"mae": 0.5}
    assert measure(R2(), scores, y) == {"r2": (1.0 + (1 - 4 / 2)) / 2}


@pytest.mark.parametrize(("m", "expected"), [
    (Accuracy(), 0.0), (BalancedAccuracy(), 0.0), (Recall(), 0.0), (F1(), 0.0), (LogLoss(), 0.0), (Perplexity(), 1.0),
    (TopKAccuracy(1), 0.0), (AUC(), 0.5), (AveragePrecision(), 0.0), (MSE(), 0.0), (MAE(), 0.0), (R2(), 0.0),
], ids=repr)  # fmt: skip
def test_nothing_has_the_value_that_the_docstring_says(m: Metric, expected: float) -> None:
    assert measure(m, np.zeros((0, 1)), np.zeros(0, np.int64))[m.name] == expected


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e9 / 3])
def test_equal_targets_have_no_variance_to_explain(constant: float) -> None:
    assert measure(R2(), np.arange(7.0), np.full(7, constant)) == {"r2": 0.0}


def test_absent_classes_do_not_count_in_means() -> None:
    scores = np.eye(4)[[0, 1, 1]]  # classes 2 and 3 are neither labels nor predicted
    assert measure(BalancedAccuracy(), scores, [0, 0, 1]) == {"balanced_accuracy": 0.75}
    assert measure(Recall(), scores, [0, 0, 1])["recall.3"] == 0.0
    assert measure(F1(), scores, [0, 0, 1])["f1"] == pytest.approx(2 / 3)
    assert measure(AUC(), scores, [0, 0, 1])["auc"] == pytest.approx(0.75)


def test_equal_scores_predict_the_first_class_and_rank_by_class() -> None:
    scores, y = np.zeros((3, 3)), [0, 1, 2]
    assert measure(Accuracy(), scores, y) == {"accuracy": 1 / 3}
    assert measure(TopKAccuracy(1), scores, y) == {"top_1": 1 / 3}
    assert measure(TopKAccuracy(2), scores, y) == {"top_2": 2 / 3}


@pytest.mark.parametrize(("call", "words"), [
    (lambda: TopKAccuracy(0), "at least 1"), (lambda: AUC(1), r"AUC: bins must be at least 2, got 1"),
    (lambda: AveragePrecision(0), "at least 2"), (lambda: TopKAccuracy(3).layout(3), "smaller k"),
    (lambda: measure(TopKAccuracy(2), [1.0], [1]), "smaller k"),
    (lambda: measure(Recall(), [[1.0, 2.0]], [2]), "labels are 0 to 1 for this model, got 2 to 2"),
    (lambda: measure(Recall(), [[1.0, 2.0]], [-1]), "labels are 0 to 1"),
    (lambda: measure(Accuracy(), [1.0], [0.5]), "whole number .* MSE"),
    (lambda: measure(Accuracy(), [[1.0, 2.0]], [[0.0, 1.0]]), "one whole number for each row"),
    (lambda: measure(MSE(), [[1.0, 2.0]], [1]), r"2 predictions .* Accuracy\(\)"),
    (lambda: measure(MSE(), [[1.0, 2.0]], [1, 2]), "do not match"),
    (lambda: MSE().sums(np.zeros(2), np.zeros(2), np.zeros(1, int), 1), "do not match"),
    (lambda: MSE().sums(np.zeros(2), np.zeros(2), np.array([0, 3]), 3), "numbered 0 to 2, got 0 to 3"),
    (lambda: MSE().sums(np.zeros(2), np.zeros(2), np.array([0, -1]), 3), "numbered 0 to 2, got -1"),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
