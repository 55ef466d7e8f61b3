"""Parts that do not fit the data, or cannot be: one sentence before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import atoll
from atoll import metrics, models
from atoll.data.federated import Federated
from atoll.job.catalogue import BadJob
from atoll.job.file import parse
from atoll.testing import check_refusal


@pytest.fixture(scope="module")
def digits() -> Federated:
    return atoll.data.load("digits").split(4, seed=0)


@pytest.fixture(scope="module")
def diabetes() -> Federated:
    return atoll.data.build({"use": "diabetes", "clients": 4}, 0)


def assembled(data: Federated, model: Any, **more: Any) -> Callable[[], object]:
    return lambda: atoll.assemble(atoll.Job(atoll.FedAvg(model), **more), data)


@pytest.mark.parametrize("metric", [metrics.MSE(), metrics.MAE(), metrics.R2()], ids=lambda m: m.name)
def test_a_metric_of_numbers_is_refused_for_classes(metric: metrics.Metric, digits: Federated) -> None:
    check_refusal(assembled(digits, models.softmax(), metrics=[metric]), f"'{metric.name}' is for real numbers", "out")
    job = 'data = { use = "digits", clients = 4 }\nmethod = { use = "fedavg", model = "softmax" }\n'
    text = f'{job}metrics = ["{metric.name}"]'
    said = parse(text, "the test")
    check_refusal(lambda: atoll.assemble(said.job, digits), "labels are classes")


@pytest.mark.parametrize("metric", [metrics.AUC(), metrics.Accuracy(), metrics.F1()], ids=lambda m: m.name)
def test_a_metric_of_classes_is_refused_for_numbers(metric: metrics.Metric, diabetes: Federated) -> None:
    check_refusal(assembled(diabetes, models.linear(), metrics=[metric]), "is for classes", "real numbers", "out")


def test_metrics_that_fit_are_kept(digits: Federated, diabetes: Federated) -> None:
    assembled(digits, models.softmax(), metrics=[metrics.AUC(), metrics.F1()])()
    assembled(diabetes, models.linear(), metrics=[metrics.MAE()])()


@pytest.mark.data
def test_a_model_whose_scores_are_not_for_these_labels_is_refused(digits: Federated) -> None:
    check_refusal(assembled(digits, models.char_lstm(8, 2)), "scores for each position", "softmax")
    text = atoll.data.build({"use": "shakespeare", "clients": 4}, 0)
    check_refusal(assembled(text, models.softmax()), "label for each position", "char_lstm")
    assembled(text, models.char_lstm(8, 2))()


@pytest.mark.parametrize(("make", "words"), [
    (lambda: models.mlp(hidden=(-2,)), "hidden[0] must be at least 1"),
    (lambda: models.mlp(hidden=(16, 0)), "hidden[1] must be at least 1"),
    (lambda: models.mlp((2.5,)), "whole number"),  # type: ignore[arg-type]
    (lambda: models.mlp("10"), "hidden = '10'"),  # type: ignore[arg-type]
    (lambda: models.mlp(10), "mlp(hidden=(64, 32))"),  # type: ignore[arg-type]
    (lambda: models.cnn((1, 2, 3)), "two convolutions"),  # type: ignore[arg-type]
    (lambda: models.cnn(units=0), "units must be at least 1"),
    (lambda: models.char_lstm(units=-1), "units must be at least 1"),
    (lambda: atoll.FedAvg(models.softmax(backend="tf")), "must be 'jax' or 'torch'"),  # type: ignore[arg-type]
    (lambda: atoll.FedAvg(models.softmax(), optimiser=atoll.optimiser("adamm")), "did you mean 'adam'"),
    (lambda: atoll.ServerOptimiser(atoll.optimiser("adamm")), "did you mean 'adam'"),
    (lambda: atoll.ServerOptimiser(atoll.optimiser("adam", beta=1)), "no option 'beta'"),
    (lambda: atoll.ServerOptimiser("adam"), "atoll.optimiser("),  # type: ignore[arg-type]
    (lambda: atoll.FedAvg(models.softmax(), server=atoll.optimiser("adam")), "ServerOptimiser"),  # type: ignore[arg-type]
], ids=range(14))  # fmt: skip
def test_what_cannot_be_is_refused_when_it_is_made(make: Callable[[], object], words: str) -> None:
    check_refusal(make, words)


def test_lists_make_the_layers_that_tuples_make() -> None:
    assert models.mlp([16, 8]) == models.mlp((16, 8))  # type: ignore[arg-type]
    with pytest.raises(BadJob, match="hidden"):
        parse(
            'data = { use = "digits", clients = 4 }\n'
            'method = { use = "fedavg", model = { use = "mlp", hidden = [-1] } }',
            "the test",
        )
