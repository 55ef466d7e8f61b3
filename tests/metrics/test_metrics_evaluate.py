"""Several metrics at once have sums of one set of names; padding does not count; what disagrees is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.metrics import (
    AUC,
    MSE,
    R2,
    Accuracy,
    LogLoss,
    Metric,
    Recall,
    better,
    default_metrics,
    layouts,
    party_values,
    totals,
    values,
)  # fmt: skip
from atoll.models import functions


def test_defaults_by_kind() -> None:
    assert default_metrics("classes") == (Accuracy(),)
    assert default_metrics("real") == (MSE(), R2())
    with pytest.raises(ValueError, match="'classes' or 'real'"):
        default_metrics("any")


def test_sums_are_named_by_metric() -> None:
    metrics: list[Metric] = [Accuracy(), AUC(8)]
    sums = totals(metrics, np.array([1.0, -1.0, 1.0]), np.array([1, 1, 0]), np.array([0, 0, 2]), 3)
    assert list(sums) == ["n", "accuracy/correct", "accuracy/n", "auc/positive", "auc/negative"]
    assert sums["n"].tolist() == [2.0, 0.0, 1.0]
    assert sums["accuracy/correct"].tolist() == [1.0, 0.0, 0.0]
    assert sums["auc/positive"].shape == (3, 1, 8)
    assert layouts(metrics, 1) == {name: leaf.shape[1:] for name, leaf in sums.items()}
    assert values(metrics, {name: leaf.sum(0) for name, leaf in sums.items()}) == {"accuracy": 1 / 3, "auc": 0.25}
    assert party_values(metrics, sums)["accuracy"].tolist() == [0.5, 0.0, 0.0]


def test_directions_name_every_class() -> None:
    assert better([Recall(), LogLoss()], 3) == {
        "recall": "high", "recall.0": "high", "recall.1": "high", "recall.2": "high", "log_loss": "low",
    }  # fmt: skip
    assert better([MSE()]) == {"mse": "low"}


def test_padding_does_not_count() -> None:
    scores = np.eye(3)[[[0, 1, 2], [1, 1, 2]]]
    y = np.array([[0, 0, 2], [1, 2, 2]])
    sums = totals([Accuracy()], scores, y, np.array([1, 0]), 2, ignore=2)
    assert sums["n"].tolist() == [1.0, 2.0]
    assert sums["accuracy/correct"].tolist() == [1.0, 1.0]
    assert totals([Accuracy()], scores, y, np.array([1, 0]), 2)["n"].tolist() == [3.0, 3.0]


def test_padding_does_not_count_in_jobs() -> None:
    """The mean loss of the job's metric is that of the model itself; 2 is padding."""
    ones = functions(lambda seed: np.array([0.0, 9.0, 0.0]), lambda p, x: p + 0 * x[..., None], ignore=2)
    x, y = np.zeros((2, 3), np.float32), np.array([[0, 1, 0], [0, 2, 2]], np.int32)
    data = atoll.data.federate([(x, y), (x, np.ones((2, 3), np.int32))], test=(x, y), classes=3)
    job = atoll.Job(atoll.FedAvg(ones, lr=1e-6), atoll.All(), rounds=1, metrics=[LogLoss()])
    run = atoll.simulate(job, data, workers=0)
    assert run.curve("test.log_loss")[1] == pytest.approx(run.curve("test.loss")[1])


@pytest.mark.parametrize(("model", "outputs"), [("softmax", 3), ("logistic", 2), ("linear", 1)])
def test_sums_are_those_of_the_engine(model: str, outputs: int) -> None:
    """What a model's evaluation counts is what the default metrics count."""
    made = getattr(atoll.models, model)().bind((5,), outputs)
    generator = np.random.default_rng(0)
    x, w = generator.normal(size=(200, 5)).astype(np.float32), generator.normal(size=made.size).astype(np.float32)
    y = generator.integers(0, outputs, 200) if model != "linear" else generator.normal(size=200).astype(np.float32)
    _, right, n = made.engine.losses(made, w, x, y)
    kind, name = ("real", "mse/squares") if model == "linear" else ("classes", "accuracy/correct")
    sums = totals(default_metrics(kind), made.scores(w, x), y, np.zeros(200, int), 1)
    assert sums[name][0] == pytest.approx(np.sum(right), rel=1e-5 if kind == "real" else 0)
    assert sums["n"][0] == np.sum(n)


@dataclass(frozen=True)
class Wrong:
    """A metric whose layout and sums disagree in the way that `how` says."""

    how: str
    name, better, kind = "wrong", "high", "any"

    def layout(self, outputs: int) -> Any:
        return {"a": (), "b": ()} if self.how == "names" else {"a": (2,)} if self.how == "shape" else {"a": ()}

    def sums(self, scores: Any, y: Any, party: Any, parties: int) -> Any:
        return {"a": np.bincount(party, minlength=parties)}

    def values(self, sums: Any) -> Any:
        return {"wrong": 1.0}


def test_metrics_that_disagree_with_themselves_are_refused() -> None:
    rows = np.zeros(3), np.zeros(3, int), np.zeros(3, int), 2
    with pytest.raises(ValueError, match=r"metric 'wrong' has the sums \['a'\], its layout says \['a', 'b'\]"):
        totals([Wrong("names")], *rows)
    with pytest.raises(ValueError, match=r"the sum 'a' has shape \(2,\), its layout says \(2, 2\)"):
        totals([Wrong("shape")], *rows)
    sums = totals([Wrong("axes")], *rows)
    assert sums["wrong/a"].dtype == np.float64
    with pytest.raises(ValueError, match="over the last axes"):
        party_values([Wrong("axes")], sums)


def test_two_metrics_of_one_name_are_refused() -> None:
    for call in (better, lambda m: layouts(m, 2), lambda m: values(m, {})):
        with pytest.raises(ValueError, match="two metrics are called 'auc': keep one"):
            call([AUC(8), AUC(16)])
